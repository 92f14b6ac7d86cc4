//! The secrets of sessions and of API tokens, and what follows from them.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cueline_store::SecretHash;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::problem::Problem;
use crate::random::random;

/// Says what the code is for, so that no other code of the same secret equals it.
const CSRF_PURPOSE: &[u8] = b"cueline csrf token 1";

/// 32 random bytes. As text, they are base64 for URLs, without padding.
#[derive(Clone)]
pub(crate) struct Secret([u8; 32]);

impl Secret {
    pub(crate) fn random() -> Result<Self, Problem> {
        Ok(Self(random()?))
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        Some(Self(bytes.try_into().ok()?))
    }

    pub(crate) fn to_text(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }

    /// What the store keeps.
    pub(crate) fn hash(&self) -> SecretHash {
        SecretHash(Sha256::digest(self.0).into())
    }

    /// The text that requests of this session have in `X-CSRF-Token`. The secret cannot be computed from it.
    pub(crate) fn csrf(&self) -> String {
        let code: [u8; 32] = self.csrf_mac().finalize().into_bytes().into();
        URL_SAFE_NO_PAD.encode(code)
    }

    /// Whether `given` is [`csrf`](Self::csrf). It compares in constant time.
    pub(crate) fn is_csrf(&self, given: &str) -> bool {
        URL_SAFE_NO_PAD
            .decode(given)
            .is_ok_and(|code| self.csrf_mac().verify_slice(&code).is_ok())
    }

    fn csrf_mac(&self) -> Hmac<Sha256> {
        self.mac(CSRF_PURPOSE)
    }

    /// The begin of a code that cannot be computed without the secret. `purpose` says what the code is for. No purpose may
    /// be the begin of another one.
    pub(crate) fn mac(&self, purpose: &[u8]) -> Hmac<Sha256> {
        Hmac::<Sha256>::new_from_slice(&self.0)
            .expect("HMAC takes keys of any length")
            .chain_update(purpose)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The text of an API token: `cueline_<id>_<secret>`.
#[derive(Debug, Clone)]
pub(crate) struct ApiTokenText {
    /// 16 lower-case hexadecimal digits.
    pub(crate) id: String,
    pub(crate) secret: Secret,
}

impl ApiTokenText {
    pub(crate) fn random() -> Result<Self, Problem> {
        Ok(Self {
            id: format!("{:016x}", u64::from_be_bytes(random()?)),
            secret: Secret::random()?,
        })
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix("cueline_")?.split_once('_')?;
        let is_digit = |c: char| matches!(c, '0'..='9' | 'a'..='f');
        (id.len() == 16 && id.chars().all(is_digit)).then_some(())?;
        Some(Self {
            id: id.to_owned(),
            secret: Secret::parse(secret)?,
        })
    }

    pub(crate) fn to_text(&self) -> String {
        format!("cueline_{}_{}", self.id, self.secret.to_text())
    }
}

#[cfg(test)]
mod tests {
    use super::{ApiTokenText, Secret};

    #[test]
    fn a_token_is_read_as_it_was_written() {
        let token = ApiTokenText::random().expect("random bytes");
        let text = token.to_text();
        assert_eq!(text.len(), "cueline_".len() + 16 + 1 + 43);
        let read = ApiTokenText::parse(&text).expect("a token");
        assert_eq!(
            (&read.id, read.secret.hash()),
            (&token.id, token.secret.hash())
        );
    }

    #[test]
    fn a_secret_with_an_underscore_is_read_whole() {
        let secret = Secret([0xff; 32]);
        assert!(secret.to_text().contains('_'), "{}", secret.to_text());
        let text = format!("cueline_0123456789abcdef_{}", secret.to_text());
        let read = ApiTokenText::parse(&text).expect("a token");
        assert_eq!(read.secret.hash(), secret.hash());
    }

    #[test]
    fn other_texts_are_no_token() {
        let secret = Secret([7; 32]).to_text();
        for text in [
            String::new(),
            secret.clone(),
            format!("cueline_0123456789abcdef{secret}"),
            format!("cueline_0123456789ABCDEF_{secret}"),
            format!("cueline_0123_{secret}"),
            format!("cueline_0123456789abcdef_{secret}A"),
            format!("cueline_0123456789abcdef_{}", &secret[1..]),
        ] {
            assert!(ApiTokenText::parse(&text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn only_the_code_of_the_same_session_matches() {
        let (one, other) = (Secret([1; 32]), Secret([2; 32]));
        assert!(one.is_csrf(&one.csrf()));
        for wrong in [other.csrf(), one.to_text(), String::new(), "%".to_owned()] {
            assert!(!one.is_csrf(&wrong), "{wrong:?}");
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let token = ApiTokenText::random().expect("random bytes");
        assert!(!format!("{token:?}").contains(&token.secret.to_text()));
    }
}
