//! The claims of executors that wait to be carried out, and what their executors were told.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Mutex;

use bytes::Bytes;
use cueline_model::{ExecutorId, Timestamp};
use cueline_protocol::origin::{EnrolmentClaim, RotationClaim, WorkerKeyId, WorkerPublicKey};
use cueline_runtime::Activator;
use tokio::time::Instant;

use crate::lock::lock;

/// The most claims that wait. Further ones are dropped; the next heartbeat of the executor repeats its claim.
const MAX_WAITING: usize = 256;
/// The largest heartbeat that is kept for its claim, in bytes. Workers send a few hundred bytes and their capabilities.
const MAX_HEARTBEAT_BYTES: usize = 64 * 1024;
/// An executor is told once in this time that its key is enrolled. It waits for that after each start with a token.
const CONFIRM_EVERY_MS: u64 = 1_000;
/// An executor is told the same refusal once in this time.
const REFUSE_EVERY_MS: u64 = 10_000;
/// The most keys whose last answer is remembered. At the limit all are forgotten, and answers may be repeated.
const MAX_TOLD: usize = 10_000;

/// The claims that wait, one for each key.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    waiting: Mutex<Waiting>,
    /// When each key was last answered, and whether it was enrolled.
    told: Mutex<HashMap<ClaimId, (Timestamp, bool)>>,
    added: Activator,
}

/// The executor, and the key that it wants accepted.
pub(super) type ClaimId = (ExecutorId, WorkerKeyId);

/// Claims in the order of their arrival, so that none waits for the ones that came later.
#[derive(Debug, Default)]
struct Waiting {
    /// The ids of `claims`, each once.
    order: VecDeque<ClaimId>,
    claims: HashMap<ClaimId, Claim>,
}

impl Waiting {
    /// Returns whether the claim was taken. The place of one that waits is kept.
    fn add(&mut self, id: ClaimId, claim: Claim) -> bool {
        if let Some(waits) = self.claims.get_mut(&id) {
            // Anyone with rights on the broker can name this key. That must not replace what its owner has sent.
            if matches!(claim, Claim::Unverified { .. }) {
                return false;
            }
            *waits = claim;
            return true;
        }
        if self.order.len() >= MAX_WAITING {
            return false;
        }
        self.order.push_back(id.clone());
        self.claims.insert(id, claim);
        true
    }

    fn take(&mut self, most: usize) -> Vec<(ClaimId, Claim)> {
        let (mut taken, mut executors) = (Vec::new(), HashSet::new());
        for id in std::mem::take(&mut self.order) {
            // The set keeps the executors whose further claims stay.
            if taken.len() < most
                && executors.insert(id.0.clone())
                && let Some(claim) = self.claims.remove(&id)
            {
                taken.push((id, claim));
            } else {
                self.order.push_back(id);
            }
        }
        taken
    }
}

/// A heartbeat that has, or may have, a claim.
#[derive(Debug, Clone)]
pub(super) enum Claim {
    /// It is sealed with a key that does not count.
    Unverified {
        /// The whole message.
        heartbeat: Bytes,
        arrived_at: Instant,
    },
    /// Its seal is verified. The executor does not know yet that the key which sealed it is accepted.
    Accepted,
    Verified(Claimed),
}

/// What an executor asks for.
#[derive(Debug, Clone)]
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
            let claim = Claim::Unverified {
                heartbeat: payload.clone(),
                arrived_at: Instant::now(),
            };
            self.add(executor, key, claim);
        }
    }

    /// Keeps the claims of a heartbeat that is verified. `key` has sealed it. `is_asked` says whether the executor wants
    /// to know that this key is accepted.
    pub(crate) fn add_verified(
        &self,
        executor: &ExecutorId,
        key: &WorkerKeyId,
        is_asked: bool,
        rotation: Option<RotationClaim>,
    ) {
        if let Some(rotation) = rotation {
            let (executor, new) = (executor.clone(), rotation.key.id());
            self.add(executor, new, Claim::Verified(Claimed::Rotation(rotation)));
        }
        if is_asked {
            self.add(executor.clone(), key.clone(), Claim::Accepted);
        }
    }

    fn add(&self, executor: ExecutorId, key: WorkerKeyId, claim: Claim) {
        if lock(&self.waiting).add((executor, key), claim) {
            self.added.wake();
        }
    }

    /// Returns once claims were added since the last return.
    pub(super) async fn added(&self) {
        self.added.woken().await;
    }

    /// The claims that wait longest, at most `most` of them. They are of different executors, because a claim may build on an
    /// earlier one of the same executor.
    pub(super) fn take(&self, most: usize) -> Vec<(ClaimId, Claim)> {
        lock(&self.waiting).take(most)
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

/// The claim of the executor that has sealed its heartbeat with `key`. A rotation counts before an enrolment, unless the
/// old key can vouch for nothing: then a token has to admit that one first. `counts` says which keys can vouch.
pub(super) fn claimed_by(
    key: &WorkerKeyId,
    enrolment: Option<EnrolmentClaim>,
    rotation: Option<RotationClaim>,
    counts: impl Fn(&WorkerKeyId) -> bool,
) -> Option<Claimed> {
    let rotation = rotation.filter(|claim| claim.by == *key || claim.key.id() == *key);
    let enrolment = enrolment.filter(|claim| claim.key.id() == *key);
    match (rotation, enrolment) {
        (Some(rotation), Some(enrolment)) if !counts(&rotation.by) => {
            Some(Claimed::Enrolment(enrolment))
        }
        (Some(rotation), _) => Some(Claimed::Rotation(rotation)),
        (None, enrolment) => enrolment.map(Claimed::Enrolment),
    }
}

#[cfg(test)]
mod tests {
    use cueline_protocol::origin::{EnrolmentToken, WorkerKey};

    use super::*;

    fn executor(name: &str) -> ExecutorId {
        ExecutorId {
            group: "g".parse().expect("valid"),
            name: name.parse().expect("valid"),
        }
    }

    fn executors(taken: &[(ClaimId, Claim)]) -> Vec<ExecutorId> {
        let executors = taken.iter().map(|((executor, _), _)| executor.clone());
        executors.collect()
    }

    fn taken(claims: &Claims) -> Option<Claim> {
        claims.take(1).pop().map(|(_, claim)| claim)
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
        assert_eq!(claims.take(usize::MAX).len(), MAX_WAITING);
        claims.add_unverified(executor("e0"), key(), &large);
        assert!(claims.take(1).is_empty());
    }

    #[test]
    fn claims_are_taken_in_the_order_of_their_arrival() {
        let claims = Claims::default();
        let heartbeat = Bytes::from_static(b"{}");
        for name in ["b", "a", "c", "a", "b"] {
            claims.add_unverified(executor(name), key(), &heartbeat);
        }
        assert_eq!(executors(&claims.take(2)), ["b", "a"].map(executor));
        assert_eq!(executors(&claims.take(2)), [executor("c")]);
    }

    #[test]
    fn claims_of_one_executor_are_taken_one_after_the_other() {
        let claims = Claims::default();
        let heartbeat = Bytes::from_static(b"{}");
        let second_key = || WorkerKey::from_seed([2; 32]).public().id();
        for (name, key) in [
            ("a", key()),
            ("b", key()),
            ("a", second_key()),
            ("c", key()),
        ] {
            claims.add_unverified(executor(name), key, &heartbeat);
        }
        assert_eq!(executors(&claims.take(2)), ["a", "b"].map(executor));
        claims.add_unverified(executor("d"), key(), &heartbeat);
        assert_eq!(executors(&claims.take(9)), ["a", "c", "d"].map(executor));
        claims.add_unverified(executor("a"), key(), &heartbeat);
        claims.add_unverified(executor("a"), second_key(), &heartbeat);
        claims.add_unverified(executor("b"), key(), &heartbeat);
        assert_eq!(executors(&claims.take(9)), ["a", "b"].map(executor));
        let left = claims.take(9);
        assert_eq!(left[0].0, (executor("a"), second_key()));
    }

    #[test]
    fn an_unverified_claim_replaces_none_that_waits() {
        let claims = Claims::default();
        let heartbeat = |text: &'static str| Bytes::from_static(text.as_bytes());
        claims.add_unverified(executor("e"), key(), &heartbeat("first"));
        claims.add_unverified(executor("e"), key(), &heartbeat("second"));
        let kept = taken(&claims);
        let is_first = |claim: &Claim| matches!(claim, Claim::Unverified { heartbeat, .. } if heartbeat[..] == *b"first");
        assert!(kept.as_ref().is_some_and(is_first), "{kept:?}");

        claims.add_unverified(executor("e"), key(), &heartbeat("first"));
        claims.add_verified(&executor("e"), &key(), true, None);
        claims.add_unverified(executor("e"), key(), &heartbeat("second"));
        let kept = taken(&claims);
        assert!(matches!(kept, Some(Claim::Accepted)), "{kept:?}");
        assert!(claims.take(1).is_empty());
    }

    /// The key row is gone or revoked while a rotation waits.
    #[test]
    fn a_token_counts_before_an_old_key_that_can_vouch_for_nothing() {
        let (old, new) = (WorkerKey::from_seed([1; 32]), WorkerKey::from_seed([2; 32]));
        let token = EnrolmentToken::new([1; 8], [2; 32]);
        let enrolment = token.claim(&executor("e"), &old.public());
        let rotation = old.rotate_to(&executor("e"), &new.public());
        let claimed = |enrolment: Option<&EnrolmentClaim>, old_counts| {
            let rotation = Some(rotation.clone());
            let claimed = claimed_by(&key(), enrolment.cloned(), rotation, |by| {
                assert_eq!(*by, key());
                old_counts
            });
            claimed.map(|claimed| claimed.key())
        };
        assert_eq!(claimed(Some(&enrolment), true), Some(new.public()));
        assert_eq!(claimed(Some(&enrolment), false), Some(old.public()));
        // The store may have carried out the rotation already.
        assert_eq!(claimed(None, false), Some(new.public()));
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
