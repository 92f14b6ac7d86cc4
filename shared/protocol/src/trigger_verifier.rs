//! Checks the signatures of triggers, and each batch once.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::merkle::KnownTree;
use crate::message::Trigger;
use crate::sign::{Proof, SignError, VerifyingKeys};
use crate::trigger_signature::SIGNATURE_BYTES;

/// The number of verified batches that are remembered. At the bound, the one that was used least recently is forgotten;
/// its next trigger costs another check. A batch of the largest size takes 8 KiB, so all take 512 KiB at most.
const MAX_BATCHES: usize = 64;

/// Checks triggers with the keys that a worker trusts.
///
/// It remembers batches that it has verified, and what their triggers have shown of their hash trees. A further trigger of such a
/// batch costs a hash of its message and one or two more. Only genuine batches are remembered, so forged triggers cannot displace
/// them.
#[derive(Debug)]
pub struct TriggerVerifier {
    keys: VerifyingKeys,
    /// The batch that was used last comes first.
    verified: Mutex<VecDeque<VerifiedBatch>>,
}

/// A batch that one of the keys has signed.
#[derive(Debug)]
struct VerifiedBatch {
    signature: [u8; SIGNATURE_BYTES],
    size: u16,
    tree: KnownTree,
}

impl VerifiedBatch {
    /// Whether the trigger of this proof says that it belongs to the batch.
    fn is_claimed_by(&self, proof: &Proof) -> bool {
        self.signature == proof.parts.batch && self.size == proof.parts.size
    }

    fn has(&mut self, proof: &Proof) -> bool {
        let place = proof.parts.place.into();
        self.tree.has(proof.leaf, place, &proof.parts.path)
    }
}

impl TriggerVerifier {
    /// Trusts these keys.
    pub const fn new(keys: VerifyingKeys) -> Self {
        Self {
            keys,
            verified: Mutex::new(VecDeque::new()),
        }
    }

    /// Checks that one of the keys signed `message`, from which `trigger` was read.
    ///
    /// # Errors
    ///
    /// Those of [`VerifyingKeys::verify`].
    pub fn verify(&self, message: &[u8], trigger: &Trigger) -> Result<(), SignError> {
        let proof = self.keys.proof_of(message, trigger)?;
        if let Some(has_it) = self.is_in_known_batch(&proof) {
            return has_it.then_some(()).ok_or_else(|| self.keys.mismatch());
        }
        let root = self.keys.check(&proof)?;
        let mut batch = VerifiedBatch {
            signature: proof.parts.batch,
            size: proof.parts.size,
            tree: KnownTree::new(proof.parts.size.into(), root),
        };
        batch.has(&proof);
        let mut verified = self.verified();
        verified.push_front(batch);
        verified.truncate(MAX_BATCHES);
        Ok(())
    }

    /// Whether the trigger is in the batch that it claims, if that was verified before. Moves the batch to the front.
    fn is_in_known_batch(&self, proof: &Proof) -> Option<bool> {
        let mut verified = self.verified();
        let at = verified
            .iter()
            .position(|batch| batch.is_claimed_by(proof))?;
        if at > 0 {
            let batch = verified.remove(at)?;
            verified.push_front(batch);
        }
        verified.front_mut().map(|batch| batch.has(proof))
    }

    /// It is a list of values. A panic elsewhere leaves it valid.
    fn verified(&self) -> std::sync::MutexGuard<'_, VecDeque<VerifiedBatch>> {
        self.verified.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::decode;
    use crate::sign::{MAX_BATCH, SigningKey};

    fn trigger(run: usize) -> Trigger {
        let text = r#"{"v":1,"store":"0123456789abcdef0123456789abcdef","run":7,"attempt":2,"group":"g","executor":"one","kind":"manual","fire_at":1800000000000,"shard":{"index":0,"total":1},"job":{"id":1,"name":"report","version":1,"handler":{"native":"work"},"block":"serial","scope":"executor","backlog":1000,"kill_grace":"5s","on_lost":"fail","priority":5},"deadline":1800003600000}"#;
        let text = text.replace("\"run\":7", &format!("\"run\":{run}"));
        decode(text.as_bytes()).expect("readable")
    }

    fn key() -> SigningKey {
        SigningKey::from_seed([7; 32])
    }

    /// One batch.
    fn batch() -> (Vec<Trigger>, Vec<Vec<u8>>) {
        let mut triggers: Vec<Trigger> = (0..MAX_BATCH).map(trigger).collect();
        let messages = key().sign_all(&mut triggers);
        (triggers, messages)
    }

    #[test]
    fn the_signature_of_a_batch_is_checked_once() {
        let mut verifier = TriggerVerifier::new(key().verifying_keys());
        let (triggers, messages) = batch();
        assert_eq!(verifier.verify(&messages[3], &triggers[3]), Ok(()));
        // Without a key, nothing that is not remembered passes.
        verifier.keys = VerifyingKeys::default();
        for (trigger, message) in triggers.iter().zip(&messages) {
            assert_eq!(verifier.verify(message, trigger), Ok(()));
        }
        let mut alone = trigger(3);
        let message = key().sign(&mut alone);
        assert_eq!(
            verifier.verify(&message, &alone),
            Err(SignError::Mismatch(0))
        );
    }

    #[test]
    fn a_changed_trigger_of_a_remembered_batch_is_refused() {
        let verifier = TriggerVerifier::new(key().verifying_keys());
        let (triggers, messages) = batch();
        assert_eq!(verifier.verify(&messages[0], &triggers[0]), Ok(()));
        let text = String::from_utf8(messages[0].clone()).expect("UTF-8");
        let changed = text.replacen("\"work\"", "\"wipe\"", 1);
        assert_ne!(changed, text);
        let trigger: Trigger = decode(changed.as_bytes()).expect("readable");
        let result = verifier.verify(changed.as_bytes(), &trigger);
        assert_eq!(result, Err(SignError::Mismatch(1)));
        assert_eq!(verifier.verified().len(), 1);
    }

    #[test]
    fn the_batches_that_were_used_last_are_remembered() {
        let mut verifier = TriggerVerifier::new(key().verifying_keys());
        let signed: Vec<(Trigger, Vec<u8>)> = (0..=MAX_BATCHES)
            .map(|run| {
                let mut one = trigger(run);
                let message = key().sign(&mut one);
                (one, message)
            })
            .collect();
        let (last, earlier) = signed.split_last().expect("some");
        for (one, message) in earlier {
            assert_eq!(verifier.verify(message, one), Ok(()));
        }
        // The first one is used again, so the second one is forgotten for the last one.
        assert_eq!(verifier.verify(&signed[0].1, &signed[0].0), Ok(()));
        assert_eq!(verifier.verify(&last.1, &last.0), Ok(()));
        assert_eq!(verifier.verified().len(), MAX_BATCHES);
        verifier.keys = VerifyingKeys::default();
        let is_known = |at: usize| verifier.verify(&signed[at].1, &signed[at].0).is_ok();
        assert!(is_known(0) && is_known(2) && is_known(MAX_BATCHES));
        assert!(!is_known(1));
    }
}
