//! The signature field of a trigger: the signature of its batch, and the proof that the trigger belongs to the batch.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};

use crate::merkle::{HASH_BYTES, Hash};

/// The length of an Ed25519 signature.
pub(crate) const SIGNATURE_BYTES: usize = 64;

/// The length of the bytes of a signature of the largest batch, which has seven levels.
const MAX_BYTES: usize = 2 + 2 + SIGNATURE_BYTES + 7 * HASH_BYTES;

/// Longer than the bytes of any signature: a tree whose size has 16 bits has at most 16 levels.
const MAX_DECODED: usize = 2 + 2 + SIGNATURE_BYTES + 17 * HASH_BYTES;

/// What stands before the text of the field, and after it.
const BEFORE: &[u8] = b",\"signature\":\"";
const AFTER: &[u8] = b"\"}";

/// Proves that a scheduler has signed a trigger, together with the others of its batch.
///
/// The schedulers' key signs the root of a hash tree over the messages of the batch. The trigger has its place in the
/// tree and the hashes that lead from it to the root. See [`crate::sign`].
///
/// It is one text in base64. Its bytes are the number of triggers in the batch and the place of this one from 0, both as
/// 16 bits with the high byte first; the Ed25519 signature of the batch; and the hashes beside the way to the root, one
/// after the other. A batch of one has no hashes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TriggerSignature(String);

/// The parts of a signature.
#[derive(Debug)]
pub(crate) struct SignatureParts {
    /// The number of triggers in the batch.
    pub(crate) size: u16,
    /// The place of the trigger in it.
    pub(crate) place: u16,
    /// The signature of the batch. All its triggers have the same one.
    pub(crate) batch: [u8; SIGNATURE_BYTES],
    /// The hashes beside the way from the trigger to the root.
    pub(crate) path: Vec<Hash>,
}

impl TriggerSignature {
    pub(crate) fn new(
        batch: &[u8; SIGNATURE_BYTES],
        size: u16,
        place: u16,
        path: impl Iterator<Item = Hash>,
    ) -> Self {
        let mut bytes = Vec::with_capacity(MAX_BYTES);
        bytes.extend(size.to_be_bytes());
        bytes.extend(place.to_be_bytes());
        bytes.extend(batch);
        for hash in path {
            bytes.extend(hash);
        }
        Self(BASE64.encode(bytes))
    }

    /// The parts. `None` if the text is no signature.
    pub(crate) fn parts(&self) -> Option<SignatureParts> {
        let mut bytes = [0; MAX_DECODED];
        let length = BASE64.decode_slice(&self.0, &mut bytes).ok()?;
        let (size, rest) = bytes[..length].split_first_chunk()?;
        let (place, rest) = rest.split_first_chunk()?;
        let (batch, rest) = rest.split_first_chunk()?;
        let (path, rest) = rest.as_chunks::<HASH_BYTES>();
        rest.is_empty().then(|| SignatureParts {
            size: u16::from_be_bytes(*size),
            place: u16::from_be_bytes(*place),
            batch: *batch,
            path: path.to_vec(),
        })
    }

    /// Adds the end of a signed message, in the place of the closing brace that was signed.
    pub(crate) fn end(&self, message: &mut Vec<u8>) {
        message.pop();
        message.reserve_exact(BEFORE.len() + self.0.len() + AFTER.len());
        for part in [BEFORE, self.0.as_bytes(), AFTER] {
            message.extend_from_slice(part);
        }
    }

    /// What stands before the signature, if the message ends with it.
    pub(crate) fn strip_from<'m>(&self, message: &'m [u8]) -> Option<&'m [u8]> {
        let rest = message.strip_suffix(AFTER)?;
        rest.strip_suffix(self.0.as_bytes())?.strip_suffix(BEFORE)
    }
}
