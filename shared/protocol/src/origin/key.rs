//! The keys of workers.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::key_text::{hex, is_id, key_bytes};
use crate::sign_error::SignError;

/// A worker's secret Ed25519 key.
#[derive(Clone)]
pub struct WorkerKey(SigningKey);

impl fmt::Debug for WorkerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkerKey({}, secret)", self.public().id())
    }
}

impl WorkerKey {
    /// Makes a key from 32 random bytes.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self(SigningKey::from_bytes(&seed))
    }

    /// Reads a key in the format of [`to_base64`](Self::to_base64).
    ///
    /// # Errors
    ///
    /// [`SignError::Key`] if the text is not 32 bytes in base64.
    pub fn from_base64(text: &str) -> Result<Self, SignError> {
        Ok(Self::from_seed(key_bytes(text)?))
    }

    /// The secret key as text.
    pub fn to_base64(&self) -> String {
        BASE64.encode(self.0.to_bytes())
    }

    /// The public half.
    pub fn public(&self) -> WorkerPublicKey {
        WorkerPublicKey(self.0.verifying_key().to_bytes())
    }

    /// The signature of `bytes`, in base64.
    pub(super) fn sign(&self, bytes: &[u8]) -> String {
        BASE64.encode(self.0.sign(bytes).to_bytes())
    }
}

/// The public half of a [`WorkerKey`]. Its text form is base64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerPublicKey([u8; 32]);

impl WorkerPublicKey {
    /// The key with these bytes. Bytes that are no Ed25519 key verify no seal.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes of the key.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The short name of the key.
    pub fn id(&self) -> WorkerKeyId {
        let digest: [u8; 32] = Sha256::digest(self.0).into();
        WorkerKeyId(hex(&digest[..8]))
    }

    /// Whether this key made `signature`, in base64, of `bytes`. Weak keys make none.
    pub(super) fn verifies(&self, bytes: &[u8], signature: &str) -> bool {
        let (Ok(key), Ok(signature)) = (
            VerifyingKey::from_bytes(&self.0),
            BASE64.decode(signature.as_bytes()),
        ) else {
            return false;
        };
        Signature::from_slice(&signature)
            .is_ok_and(|signature| key.verify_strict(bytes, &signature).is_ok())
    }
}

impl fmt::Display for WorkerPublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64.encode(self.0))
    }
}

impl fmt::Debug for WorkerPublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkerPublicKey({self})")
    }
}

impl FromStr for WorkerPublicKey {
    type Err = SignError;

    fn from_str(text: &str) -> Result<Self, SignError> {
        key_bytes(text).map(Self)
    }
}

impl Serialize for WorkerPublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WorkerPublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// Why a text is not a [`WorkerKeyId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the id of a worker's key must be 16 lower-case hexadecimal digits")]
pub struct InvalidWorkerKeyId;

/// The short name of a [`WorkerPublicKey`]: the first 16 hexadecimal digits of its SHA-256.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct WorkerKeyId(String);

impl WorkerKeyId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkerKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for WorkerKeyId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for WorkerKeyId {
    type Err = InvalidWorkerKeyId;

    fn from_str(text: &str) -> Result<Self, InvalidWorkerKeyId> {
        if is_id(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidWorkerKeyId)
        }
    }
}

impl<'de> Deserialize<'de> for WorkerKeyId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_round_trip_as_text() {
        let key = WorkerKey::from_seed([7; 32]);
        let read = WorkerKey::from_base64(&format!("{}\n", key.to_base64())).expect("a key");
        assert_eq!(read.public(), key.public());
        let text = key.public().to_string();
        assert_eq!(text.parse::<WorkerPublicKey>(), Ok(key.public()));
        assert_eq!(
            WorkerPublicKey::from_bytes(*key.public().as_bytes()),
            key.public()
        );
        let json = serde_json::to_string(&key.public()).expect("writable");
        assert_eq!(json, format!("\"{text}\""));
        let read: WorkerPublicKey = serde_json::from_str(&json).expect("readable");
        assert_eq!(read, key.public());
        assert!(matches!(
            WorkerKey::from_base64("c2hvcnQ="),
            Err(SignError::Key)
        ));
    }

    #[test]
    fn debug_output_has_no_secret() {
        let key = WorkerKey::from_seed([7; 32]);
        assert!(!format!("{key:?}").contains(&key.to_base64()));
    }

    /// An id stands in databases and in operators' scripts.
    #[test]
    fn the_id_is_the_beginning_of_the_hash() {
        let key = WorkerPublicKey::from_bytes([0; 32]);
        // SHA-256 of 32 zero bytes.
        assert_eq!(key.id().as_str(), "66687aadf862bd77");
        assert_eq!("66687aadf862bd77".parse::<WorkerKeyId>(), Ok(key.id()));
        for bad in [
            "",
            "66687aadf862bd7",
            "66687AADF862BD77",
            "66687aadf862bd7\n",
        ] {
            assert_eq!(
                bad.parse::<WorkerKeyId>(),
                Err(InvalidWorkerKeyId),
                "{bad:?}"
            );
        }
    }
}
