//! Ed25519 signatures of triggers.
//!
//! A worker holds only public keys, so it can check a trigger but not forge one. The signature covers all bytes of the
//! message before the signature field. Fields that are new to the worker are covered too, so signer and verifier need
//! not know the same fields.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::{Signature, Signer, VerifyingKey};

use crate::key_text::key_bytes;
use crate::message::{Trigger, encode};
pub use crate::sign_error::SignError;

/// The key with which a scheduler signs.
#[derive(Clone)]
pub struct SigningKey(ed25519_dalek::SigningKey);

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningKey(secret)")
    }
}

impl SigningKey {
    /// Makes a key from 32 random bytes.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self(ed25519_dalek::SigningKey::from_bytes(&seed))
    }

    /// Reads a key in the format of [`to_base64`](Self::to_base64).
    pub fn from_base64(text: &str) -> Result<Self, SignError> {
        Ok(Self::from_seed(key_bytes(text)?))
    }

    /// The secret key as text.
    pub fn to_base64(&self) -> String {
        BASE64.encode(self.0.to_bytes())
    }

    /// The public key as text.
    pub fn public_base64(&self) -> String {
        BASE64.encode(self.0.verifying_key().to_bytes())
    }

    /// The public key, to check messages of this key's holders.
    pub fn verifying_keys(&self) -> VerifyingKeys {
        VerifyingKeys(vec![self.0.verifying_key()])
    }

    /// Signs `trigger` and returns the message to publish.
    pub fn sign(&self, trigger: &mut Trigger) -> Vec<u8> {
        trigger.signature = None;
        let mut message = encode(trigger);
        let text = BASE64.encode(self.0.sign(&signed(&message)).to_bytes());
        // Remove the closing brace; the signature field and a new brace follow.
        message.pop();
        message.extend_from_slice(ending(&text).as_bytes());
        trigger.signature = Some(text);
        message
    }
}

/// The public keys that a worker trusts. There are several while a key is being replaced.
#[derive(Debug, Clone, Default)]
pub struct VerifyingKeys(Vec<VerifyingKey>);

impl VerifyingKeys {
    /// Reads public keys in the format of [`SigningKey::public_base64`].
    pub fn from_base64<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, SignError> {
        texts
            .into_iter()
            .map(|text| VerifyingKey::from_bytes(&key_bytes(text)?).map_err(|_| SignError::Key))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Checks that one of the keys signed `message`, from which `trigger` was read.
    pub fn verify(&self, message: &[u8], trigger: &Trigger) -> Result<(), SignError> {
        let text = trigger.signature.as_deref().ok_or(SignError::Missing)?;
        let mismatch = || SignError::Mismatch(self.0.len());
        let bytes = BASE64.decode(text).map_err(|_| mismatch())?;
        let signature = Signature::from_slice(&bytes).map_err(|_| mismatch())?;
        // The signed bytes end with a brace. `sign` put the signature field in its place.
        let before = message.strip_suffix(ending(text).as_bytes());
        let signed = signed(&[before.ok_or_else(mismatch)?, b"}"].concat());
        let trusted = self
            .0
            .iter()
            .any(|key| key.verify_strict(&signed, &signature).is_ok());
        if trusted { Ok(()) } else { Err(mismatch()) }
    }
}

/// The end of a signed message.
fn ending(signature: &str) -> String {
    format!(",\"signature\":\"{signature}\"}}")
}

/// The bytes that are signed. The prefix keeps signatures of other data from being valid for a trigger.
fn signed(message: &[u8]) -> Vec<u8> {
    [b"cueline trigger 1\n", message].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::decode;

    #[test]
    fn the_signature_covers_fields_that_the_worker_does_not_know() {
        let key = SigningKey::from_seed([7; 32]);
        let public = key.public_base64();
        let keys = VerifyingKeys::from_base64([public.as_str()]).expect("a key");
        let unsigned = r#"{"v":1,"store":"0123456789abcdef0123456789abcdef","run":7,"attempt":2,"group":"g","executor":"one","kind":"manual","fire_at":1800000000000,"shard":{"index":0,"total":1},"job":{"id":1,"name":"report","version":1,"handler":{"native":"work"},"block":"serial","scope":"executor","backlog":1000,"kill_grace":"5s","on_lost":"fail","priority":5},"deadline":1800003600000,"news":"new"}"#;
        let text = BASE64.encode(key.0.sign(&signed(unsigned.as_bytes())).to_bytes());
        let message = unsigned[..unsigned.len() - 1].to_owned() + &ending(&text);
        let verify = |message: &str| {
            let trigger: Trigger = decode(message.as_bytes()).expect("readable");
            keys.verify(message.as_bytes(), &trigger)
        };
        assert_eq!(verify(&message), Ok(()));
        let changed = message.replacen("\"new\"", "\"old\"", 1);
        assert_eq!(verify(&changed), Err(SignError::Mismatch(1)));
    }
}
