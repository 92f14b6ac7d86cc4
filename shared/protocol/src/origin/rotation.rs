//! Rotation: a worker's key names its successor.

use cueline_model::ExecutorId;
use serde::{Deserialize, Serialize};

use super::key::{WorkerKey, WorkerKeyId, WorkerPublicKey};
use super::seal::{SealError, Sealer};

/// The proof that the holder of an enrolled key wants another one in its place. It is part of a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotationClaim {
    /// The new key.
    pub key: WorkerPublicKey,
    /// The old key, which made the signature.
    pub by: WorkerKeyId,
    /// The signature, in base64.
    pub signature: String,
}

impl WorkerKey {
    /// Names `new` as the key that `executor` seals with from now on.
    pub fn rotate_to(&self, executor: &ExecutorId, new: &WorkerPublicKey) -> RotationClaim {
        RotationClaim {
            key: *new,
            by: self.public().id(),
            signature: self.sign(&signed(executor, new)),
        }
    }
}

impl Sealer {
    /// Names `new` as the key that the executor seals with from now on.
    pub fn rotate_to(&self, new: &WorkerPublicKey) -> RotationClaim {
        self.key().rotate_to(self.executor(), new)
    }
}

impl RotationClaim {
    /// Checks that `old` made this claim for `executor`.
    ///
    /// # Errors
    ///
    /// [`SealError::Mismatch`] if it did not.
    pub fn verify(&self, executor: &ExecutorId, old: &WorkerPublicKey) -> Result<(), SealError> {
        if old.verifies(&signed(executor, &self.key), &self.signature) {
            Ok(())
        } else {
            Err(SealError::Mismatch)
        }
    }
}

fn signed(executor: &ExecutorId, new: &WorkerPublicKey) -> Vec<u8> {
    let ExecutorId { group, name } = executor;
    let head = format!("cueline rotation 1\n{group}\n{name}\n");
    [head.as_bytes(), new.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_valid_for_its_executor_and_keys_alone() {
        let executor = |name: &str| ExecutorId {
            group: "billing".parse().expect("a name"),
            name: name.parse().expect("a name"),
        };
        let old = WorkerKey::from_seed([1; 32]);
        let new = WorkerKey::from_seed([2; 32]);
        let claim = old.rotate_to(&executor("one"), &new.public());
        assert_eq!(claim.by, old.public().id());
        assert_eq!(claim.verify(&executor("one"), &old.public()), Ok(()));
        let mismatch = Err(SealError::Mismatch);
        assert_eq!(claim.verify(&executor("two"), &old.public()), mismatch);
        assert_eq!(claim.verify(&executor("one"), &new.public()), mismatch);
        let of_another_key = RotationClaim {
            key: WorkerKey::from_seed([3; 32]).public(),
            ..claim
        };
        assert_eq!(
            of_another_key.verify(&executor("one"), &old.public()),
            mismatch
        );
    }
}
