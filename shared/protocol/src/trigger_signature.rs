//! The signature field of a trigger: the signature of its batch, and the proof that the trigger belongs to the batch.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};

use crate::merkle::{HASH_BYTES, Hash, root_by_path};

/// The length of an Ed25519 signature.
pub(crate) const SIGNATURE_BYTES: usize = 64;

/// Proves that a scheduler has signed a trigger, together with the others of its batch.
///
/// The schedulers' key signs the root of a hash tree over the messages of the batch. The trigger has its place in the
/// tree and the hashes that lead from it to the root. See [`crate::sign`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriggerSignature {
    /// The Ed25519 signature of the batch, in base64. All its triggers have the same one.
    batch: String,
    /// The number of triggers in the batch.
    size: u16,
    /// The place of the trigger in the batch, from 0.
    place: u16,
    /// The hashes beside the way to the root, one after the other, in base64. Empty in a batch of one.
    path: String,
}

impl TriggerSignature {
    pub(crate) fn new(batch: &[u8; SIGNATURE_BYTES], size: u16, place: u16, path: &[Hash]) -> Self {
        Self {
            batch: BASE64.encode(batch),
            size,
            place,
            path: BASE64.encode(path.as_flattened()),
        }
    }

    /// The number of triggers in the batch.
    pub(crate) const fn size(&self) -> u16 {
        self.size
    }

    /// The signature of the batch. `None` if the text is no signature.
    pub(crate) fn batch(&self) -> Option<[u8; SIGNATURE_BYTES]> {
        BASE64.decode(&self.batch).ok()?.try_into().ok()
    }

    /// The root of the tree with this leaf. `None` if place, size and path do not fit each other.
    pub(crate) fn root(&self, leaf: Hash) -> Option<Hash> {
        let path = BASE64.decode(&self.path).ok()?;
        let (path, rest) = path.as_chunks::<HASH_BYTES>();
        if !rest.is_empty() {
            return None;
        }
        root_by_path(leaf, self.place.into(), self.size.into(), path)
    }

    /// The end of a signed message: it stands in the place of the closing brace that was signed.
    pub(crate) fn ending(&self) -> Vec<u8> {
        let mut ending = b",\"signature\":".to_vec();
        let fields = serde_json::to_vec(self)
            .expect("signatures have string keys only, so writing them cannot fail");
        ending.extend(fields);
        ending.push(b'}');
        ending
    }
}
