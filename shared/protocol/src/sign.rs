//! Ed25519 signatures of triggers.
//!
//! A worker that can check a trigger cannot forge one: it holds public keys only. The signature covers all that says
//! what runs where: run, attempt, job, executor, fire time, shard, parameter and handler.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::{Signature, Signer, VerifyingKey};

use crate::message::Trigger;

/// Why a signature does not hold, or a key cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// The trigger has no signature.
    #[error("the trigger is not signed")]
    Missing,
    /// No pinned key made the signature.
    #[error(
        "the signature was made by none of the {0} keys that this worker trusts, or the trigger was changed"
    )]
    Mismatch(usize),
    /// A key is not 32 bytes in base64.
    #[error("a key is 32 bytes in base64")]
    Key,
}

/// What a scheduler signs with.
#[derive(Clone)]
pub struct SigningKey(ed25519_dalek::SigningKey);

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningKey(secret)")
    }
}

impl SigningKey {
    /// The key made of these 32 random bytes.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self(ed25519_dalek::SigningKey::from_bytes(&seed))
    }

    /// Reads a key written by [`to_base64`](Self::to_base64).
    pub fn from_base64(text: &str) -> Result<Self, SignError> {
        Ok(Self::from_seed(bytes_of(text)?))
    }

    /// The secret key as text.
    pub fn to_base64(&self) -> String {
        BASE64.encode(self.0.to_bytes())
    }

    /// The public half, as text.
    pub fn public_base64(&self) -> String {
        BASE64.encode(self.0.verifying_key().to_bytes())
    }

    /// Signs `trigger`.
    pub fn sign(&self, trigger: &mut Trigger) {
        trigger.signature = Some(BASE64.encode(self.0.sign(&covered(trigger)).to_bytes()));
    }
}

/// The public keys that a worker trusts; several while a key is being replaced.
#[derive(Debug, Clone, Default)]
pub struct VerifyingKeys(Vec<VerifyingKey>);

impl VerifyingKeys {
    /// Reads public keys written by [`SigningKey::public_base64`].
    pub fn from_base64<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, SignError> {
        texts
            .into_iter()
            .map(|text| VerifyingKey::from_bytes(&bytes_of(text)?).map_err(|_| SignError::Key))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Whether one of the keys signed `trigger`.
    pub fn verify(&self, trigger: &Trigger) -> Result<(), SignError> {
        let text = trigger.signature.as_deref().ok_or(SignError::Missing)?;
        let mismatch = || SignError::Mismatch(self.0.len());
        let bytes = BASE64.decode(text).map_err(|_| mismatch())?;
        let signature = Signature::from_slice(&bytes).map_err(|_| mismatch())?;
        let covered = covered(trigger);
        let trusted = self
            .0
            .iter()
            .any(|key| key.verify_strict(&covered, &signature).is_ok());
        if trusted { Ok(()) } else { Err(mismatch()) }
    }
}

fn bytes_of(text: &str) -> Result<[u8; 32], SignError> {
    let bytes = BASE64.decode(text.trim()).map_err(|_| SignError::Key)?;
    bytes.try_into().map_err(|_| SignError::Key)
}

/// What a signature covers. Each part is preceded by its length, so no two triggers give the same bytes.
fn covered(trigger: &Trigger) -> Vec<u8> {
    let handler = serde_json::to_vec(&trigger.job.handler)
        .expect("a handler has string keys only, so writing it cannot fail");
    let numbers = format!(
        "{} {} {} {} {} {}",
        trigger.run,
        trigger.attempt,
        trigger.job.id,
        trigger.fire_at.as_millis(),
        trigger.shard.index,
        trigger.shard.total,
    );
    let parts: [&[u8]; 7] = [
        b"cueline trigger 1",
        numbers.as_bytes(),
        trigger.job.name.as_str().as_bytes(),
        trigger.executor.as_str().as_bytes(),
        trigger.shard.item.as_deref().unwrap_or_default().as_bytes(),
        trigger.params.as_deref().unwrap_or_default().as_bytes(),
        &handler,
    ];
    let mut bytes = Vec::with_capacity(256 + handler.len());
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}
