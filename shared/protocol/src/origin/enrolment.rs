//! Enrolment: a token that an operator made admits a worker's key.
//!
//! The worker never sends the token's secret, because every reader of the broker could take it. It sends a MAC that only
//! holders of the secret can make. Stores keep a hash of the secret, which checks MACs.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use cueline_model::ExecutorId;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::key::WorkerPublicKey;
use crate::key_text::{hex, is_id, key_bytes};

/// The beginning of a token's text form.
const TEXT_START: &str = "cueline-enrol:";

/// Why a text is not an [`EnrolmentToken`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "an enrolment token must have the form cueline-enrol:ID:SECRET, with 16 lower-case hexadecimal digits and 32 bytes \
     in base64"
)]
pub struct InvalidEnrolmentToken;

/// Admits the keys of workers that know its secret.
#[derive(Clone)]
pub struct EnrolmentToken {
    id: String,
    secret: [u8; 32],
}

impl fmt::Debug for EnrolmentToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EnrolmentToken({}, secret)", self.id)
    }
}

impl EnrolmentToken {
    /// Makes a token from random bytes.
    pub fn new(id: [u8; 8], secret: [u8; 32]) -> Self {
        Self {
            id: hex(&id),
            secret,
        }
    }

    /// Its public name: 16 hexadecimal digits.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The token as text, which has the secret: `cueline-enrol:`, the id, `:`, and the secret in base64.
    pub fn to_text(&self) -> String {
        format!("{TEXT_START}{}:{}", self.id, BASE64.encode(self.secret))
    }

    /// What a store keeps instead of the secret. It checks claims, and its holder could make some.
    pub fn verifier(&self) -> [u8; 32] {
        Sha256::new()
            .chain_update(b"cueline enrolment 1\n")
            .chain_update(self.secret)
            .finalize()
            .into()
    }

    /// Proves that `executor`, whose key is `key`, knows the secret.
    pub fn claim(&self, executor: &ExecutorId, key: &WorkerPublicKey) -> EnrolmentClaim {
        let mac = claim_mac(&self.verifier(), executor, key).finalize();
        EnrolmentClaim {
            token: self.id.clone(),
            key: *key,
            mac: BASE64.encode(mac.into_bytes()),
        }
    }
}

impl FromStr for EnrolmentToken {
    type Err = InvalidEnrolmentToken;

    fn from_str(text: &str) -> Result<Self, InvalidEnrolmentToken> {
        let parts = text.trim().strip_prefix(TEXT_START);
        let (id, secret) = parts
            .and_then(|parts| parts.split_once(':'))
            .filter(|(id, _)| is_id(id))
            .ok_or(InvalidEnrolmentToken)?;
        Ok(Self {
            id: id.to_owned(),
            secret: key_bytes(secret).map_err(|_| InvalidEnrolmentToken)?,
        })
    }
}

/// The proof that a token admits an executor's key. It is part of a heartbeat, and worthless for another executor or key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrolmentClaim {
    /// The token's id.
    pub token: String,
    /// The key that the executor seals with.
    pub key: WorkerPublicKey,
    /// HMAC-SHA256 of executor and key with the token's [verifier](EnrolmentToken::verifier), in base64.
    pub mac: String,
}

impl EnrolmentClaim {
    /// Whether the claim was made for `executor` with the token of this verifier. It compares in constant time.
    pub fn verify(&self, executor: &ExecutorId, verifier: &[u8; 32]) -> bool {
        BASE64.decode(&self.mac).is_ok_and(|mac| {
            claim_mac(verifier, executor, &self.key)
                .verify_slice(&mac)
                .is_ok()
        })
    }
}

fn claim_mac(verifier: &[u8; 32], executor: &ExecutorId, key: &WorkerPublicKey) -> Hmac<Sha256> {
    let ExecutorId { group, name } = executor;
    Hmac::<Sha256>::new_from_slice(verifier)
        .expect("HMAC takes keys of any length")
        .chain_update(format!("cueline enrolment claim 1\n{group}\n{name}\n"))
        .chain_update(key.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::super::key::WorkerKey;
    use super::*;

    fn executor(group: &str, name: &str) -> ExecutorId {
        ExecutorId {
            group: group.parse().expect("a name"),
            name: name.parse().expect("a name"),
        }
    }

    fn token() -> EnrolmentToken {
        EnrolmentToken::new([0xab; 8], [7; 32])
    }

    #[test]
    fn tokens_round_trip_as_text() {
        let text = token().to_text();
        let secret = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";
        assert_eq!(text, format!("cueline-enrol:abababababababab:{secret}"));
        let read: EnrolmentToken = format!("{text}\n").parse().expect("a token");
        assert_eq!(read.to_text(), text);
        assert_eq!(read.id(), "abababababababab");
        assert!(!format!("{read:?}").contains(secret));
        for bad in [
            "",
            secret,
            "cueline-enrol:abababababababab",
            "cueline-enrol:ABABABABABABABAB:BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=",
            "cueline-enrol:abababababababab:BwcH",
        ] {
            let read = bad.parse::<EnrolmentToken>();
            assert_eq!(read.err(), Some(InvalidEnrolmentToken), "{bad}");
        }
    }

    #[test]
    fn a_claim_is_valid_for_its_executor_key_and_token_alone() {
        let one = executor("billing", "one");
        let key = WorkerKey::from_seed([1; 32]).public();
        let claim = token().claim(&one, &key);
        let verifier = token().verifier();
        assert!(claim.verify(&one, &verifier));
        assert!(!claim.verify(&executor("billing", "two"), &verifier));
        assert!(!claim.verify(&executor("sales", "one"), &verifier));
        let other = EnrolmentToken::new([0xab; 8], [8; 32]);
        assert!(!claim.verify(&one, &other.verifier()));
        let of_another_key = EnrolmentClaim {
            key: WorkerKey::from_seed([2; 32]).public(),
            ..claim.clone()
        };
        assert!(!of_another_key.verify(&one, &verifier));
        for mac in ["", "%", &claim.mac[..40]] {
            let shortened = EnrolmentClaim {
                mac: mac.to_owned(),
                ..claim.clone()
            };
            assert!(!shortened.verify(&one, &verifier), "{mac}");
        }
    }

    #[test]
    fn neither_claim_nor_verifier_has_the_secret() {
        let key = WorkerKey::from_seed([1; 32]).public();
        let claim = token().claim(&executor("billing", "one"), &key);
        let wire = serde_json::to_string(&claim).expect("writable");
        assert!(!wire.contains(&BASE64.encode([7; 32])), "{wire}");
        assert_ne!(token().verifier(), [7; 32]);
    }
}
