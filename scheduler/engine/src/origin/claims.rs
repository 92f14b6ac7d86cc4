//! The claims of executors that wait to be carried out, and what their executors were told.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use bytes::Bytes;
use cueline_model::{ExecutorId, Timestamp};
use cueline_protocol::origin::{EnrolmentClaim, RotationClaim, WorkerKeyId, WorkerPublicKey};
use cueline_runtime::Activator;

use crate::lock::lock;

/// The most claims that wait. Further ones are dropped; the next heartbeat of the executor repeats its claim.
const MAX_WAITING: usize = 256;
/// The largest heartbeat that is kept for its claim, in bytes. Workers send a few hundred bytes and their capabilities.
const MAX_HEARTBEAT_BYTES: usize = 64 * 1024;
/// An executor is told once in this time that its key is enrolled. It waits for that after each start.
const CONFIRM_EVERY_MS: u64 = 1_000;
/// An executor is told the same refusal once in this time.
const REFUSE_EVERY_MS: u64 = 10_000;
/// The most keys whose last answer is remembered. At the limit all are forgotten, and answers may be repeated.
const MAX_TOLD: usize = 10_000;

/// The claims that wait, one for each key.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    waiting: Mutex<BTreeMap<(ExecutorId, WorkerKeyId), Claim>>,
    /// When each key was last answered, and whether it was enrolled.
    told: Mutex<HashMap<(ExecutorId, WorkerKeyId), (Timestamp, bool)>>,
    added: Activator,
}

/// A heartbeat that has, or may have, a claim.
#[derive(Debug)]
pub(super) enum Claim {
    /// It is sealed with a key that does not count. This is the whole message.
    Unverified(Bytes),
    /// Its seal is verified. The executor still sends the claim of the key that sealed it, so it missed the answer.
    Repeated,
    Verified(Claimed),
}

/// What an executor asks for.
#[derive(Debug)]
pub(super) enum Claimed {
    /// A token vouches for its key.
    Enrolment(EnrolmentClaim),
    /// Its old key vouches for a new one.
    Rotation(RotationClaim),
}

impl Claimed {
    pub(super) fn key(&self) -> WorkerPublicKey {
        match self {
            Self::Enrolment(claim) => claim.key,
            Self::Rotation(claim) => claim.key,
        }
    }
}

impl Claims {
    /// Keeps a heartbeat that is sealed with a key that does not count, until its claim is looked at.
    pub(crate) fn add_unverified(&self, executor: ExecutorId, key: WorkerKeyId, payload: &Bytes) {
        if payload.len() <= MAX_HEARTBEAT_BYTES {
            self.add(executor, key, Claim::Unverified(payload.clone()));
        }
    }

    /// Keeps the claims of a heartbeat that is verified. `key` has sealed it.
    pub(crate) fn add_verified(
        &self,
        executor: &ExecutorId,
        key: &WorkerKeyId,
        enrolment: Option<&EnrolmentClaim>,
        rotation: Option<RotationClaim>,
    ) {
        if let Some(rotation) = rotation {
            let (executor, new) = (executor.clone(), rotation.key.id());
            self.add(executor, new, Claim::Verified(Claimed::Rotation(rotation)));
        }
        if enrolment.is_some_and(|claim| claim.key.id() == *key) {
            self.add(executor.clone(), key.clone(), Claim::Repeated);
        }
    }

    fn add(&self, executor: ExecutorId, key: WorkerKeyId, claim: Claim) {
        let mut waiting = lock(&self.waiting);
        let id = (executor, key);
        if waiting.len() < MAX_WAITING || waiting.contains_key(&id) {
            waiting.insert(id, claim);
            self.added.wake();
        }
    }

    /// Returns once claims were added since the last return.
    pub(super) async fn added(&self) {
        self.added.woken().await;
    }

    pub(super) fn next(&self) -> Option<((ExecutorId, WorkerKeyId), Claim)> {
        lock(&self.waiting).pop_first()
    }

    /// Whether it is time to tell the executor that this key is enrolled, or that it is not.
    pub(super) fn should_tell(
        &self,
        executor: &ExecutorId,
        key: &WorkerKeyId,
        is_enrolled: bool,
        now: Timestamp,
    ) -> bool {
        let mut told = lock(&self.told);
        let id = (executor.clone(), key.clone());
        let every_ms = if is_enrolled {
            CONFIRM_EVERY_MS
        } else {
            REFUSE_EVERY_MS
        };
        let is_repeated = |(at, was_enrolled): &(Timestamp, bool)| {
            *was_enrolled == is_enrolled && now.since_ms(*at).unsigned_abs() < every_ms
        };
        if told.get(&id).is_some_and(is_repeated) {
            return false;
        }
        if told.len() >= MAX_TOLD {
            told.clear();
        }
        told.insert(id, (now, is_enrolled));
        true
    }
}

/// The claim of the executor that has sealed its heartbeat with `key`.
pub(super) fn claimed_by(
    key: &WorkerKeyId,
    enrolment: Option<EnrolmentClaim>,
    rotation: Option<RotationClaim>,
) -> Option<Claimed> {
    let rotation = rotation.filter(|claim| claim.by == *key || claim.key.id() == *key);
    let enrolment = enrolment.filter(|claim| claim.key.id() == *key);
    rotation
        .map(Claimed::Rotation)
        .or_else(|| enrolment.map(Claimed::Enrolment))
}

#[cfg(test)]
mod tests {
    use cueline_protocol::origin::WorkerKey;

    use super::*;

    fn executor(name: &str) -> ExecutorId {
        ExecutorId {
            group: "g".parse().expect("valid"),
            name: name.parse().expect("valid"),
        }
    }

    fn key() -> WorkerKeyId {
        WorkerKey::from_seed([1; 32]).public().id()
    }

    #[test]
    fn claims_are_bounded_and_one_for_each_key() {
        let claims = Claims::default();
        let small = Bytes::from_static(b"{}");
        for n in 0..=MAX_WAITING {
            claims.add_unverified(executor(&format!("e{n}")), key(), &small);
            claims.add_unverified(executor("e0"), key(), &small);
        }
        let large = Bytes::from(vec![0; MAX_HEARTBEAT_BYTES + 1]);
        assert_eq!(std::iter::from_fn(|| claims.next()).count(), MAX_WAITING);
        claims.add_unverified(executor("e0"), key(), &large);
        assert!(claims.next().is_none());
    }

    #[test]
    fn the_same_answer_is_given_once_in_a_while() {
        let claims = Claims::default();
        let told = |is_enrolled, now| {
            claims.should_tell(
                &executor("e"),
                &key(),
                is_enrolled,
                Timestamp::from_millis(now),
            )
        };
        assert!(told(false, 0));
        assert!(!told(false, 9_999));
        assert!(told(false, 10_000));
        assert!(told(true, 10_000), "another answer");
        assert!(!told(true, 10_999));
        assert!(told(true, 11_000));
    }
}
