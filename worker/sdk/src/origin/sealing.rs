//! What the worker seals with, and which keys it asks schedulers to accept.
//!
//! Reports wait while it is open which key schedulers accept: what they cannot verify becomes a dead letter. A refusal
//! of the next key ends that wait, because the present one stays valid. A refusal of the present key begins it again,
//! even long after the start: schedulers whose store was restored may have lost the key.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cueline_protocol::origin::{
    EnrolmentClaim, EnrolmentToken, Purpose, RotationClaim, Sealer, WorkerKeyId,
};
use cueline_protocol::{HeartbeatMessage, encode};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::rotation::{KeyRotation, OnAccepted};

/// The shortest time between two errors in the log about refused keys.
const LOG_EVERY: Duration = Duration::from_mins(1);
/// In bytes. A longer reason is cut.
const MAX_REASON_BYTES: usize = 500;

/// The origin of the worker's messages.
#[derive(Debug)]
pub(crate) struct Origin {
    keys: Mutex<Keys>,
    may_report: watch::Sender<bool>,
    accepted: Notify,
}

impl Origin {
    /// Nothing is sealed, and schedulers are asked for nothing.
    pub(crate) fn unsealed() -> Self {
        Self::new(None, None, None)
    }

    /// Without a sealer, nothing is sealed and schedulers are asked for nothing.
    pub(super) fn new(
        sealer: Option<Sealer>,
        token: Option<EnrolmentToken>,
        rotation: Option<KeyRotation>,
    ) -> Self {
        let keys = Keys::new(sealer, token, rotation);
        Self {
            may_report: watch::Sender::new(keys.may_report()),
            keys: Mutex::new(keys),
            accepted: Notify::new(),
        }
    }

    /// Seals `body` with the present key.
    pub(crate) fn seal(&self, purpose: Purpose, body: Vec<u8>) -> Vec<u8> {
        let sealer = self.keys().sealer.clone();
        match sealer {
            Some(sealer) => sealer.seal(purpose, body),
            None => body,
        }
    }

    /// An upper bound of what [`seal`](Self::seal) adds, in bytes.
    pub(crate) fn overhead(&self) -> usize {
        self.keys().sealer.as_ref().map_or(0, Sealer::overhead)
    }

    /// Adds what schedulers are asked for, and seals the heartbeat.
    pub(crate) fn seal_heartbeat(&self, mut message: HeartbeatMessage) -> Vec<u8> {
        let claims = self.keys().next_claims();
        let Some(claims) = claims else {
            return encode(&message);
        };
        message.enrolment = claims.enrolment;
        message.rotation = claims.rotation;
        message.confirm_key = claims.confirm_key;
        claims.sealer.seal(Purpose::Heartbeat, encode(&message))
    }

    /// Schedulers accept what is sealed with this key.
    pub(crate) fn take_acceptance(&self, key: &WorkerKeyId) {
        let (accepted, may_report) = {
            let mut keys = self.keys();
            (keys.accept(key), keys.may_report())
        };
        match accepted {
            Accepted::Nothing => return,
            Accepted::Present => {
                tracing::info!(key_id = %key, "schedulers accept the worker's key");
            }
            Accepted::Next(on_accepted) => {
                tracing::info!(key_id = %key, "schedulers accept the worker's next key; it replaces the present one");
                on_accepted.call();
            }
        }
        self.may_report.send_replace(may_report);
        self.accepted.notify_one();
    }

    /// Schedulers refuse what is sealed with this key.
    pub(crate) fn take_refusal(&self, key: &WorkerKeyId, reason: &str) {
        let reason = &reason[..reason.floor_char_boundary(MAX_REASON_BYTES)];
        let (refused, may_report) = {
            let mut keys = self.keys();
            (keys.refuse(key, reason, Instant::now()), keys.may_report())
        };
        match refused {
            Refused::Silently => {}
            Refused::Present => tracing::error!(
                key_id = %key, reason,
                "schedulers refuse the worker's key, so nothing that it sends counts. Give it a valid --enrol-token-file, or allow its key with `cueline worker-key allow`"
            ),
            Refused::Next => tracing::error!(
                key_id = %key, reason,
                "schedulers refuse the worker's next key; the present one stays. Remove the file with the next key, or have the present key allowed first"
            ),
        }
        self.may_report.send_replace(may_report);
    }

    /// Why schedulers send the worker no triggers, as far as its key is the cause.
    pub(crate) fn problem(&self) -> Option<String> {
        self.keys().problem()
    }

    /// Returns once it is clear which key schedulers accept.
    pub(crate) async fn may_report(&self) {
        let mut may_report = self.may_report.subscribe();
        // Waiting fails only without a sender, and `self` has it.
        let _ = may_report.wait_for(|may_report| *may_report).await;
    }

    /// Returns when schedulers have accepted a key that was asked for. They count the next heartbeat.
    pub(crate) async fn accepted(&self) {
        self.accepted.notified().await;
    }

    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The keys of the worker, and what schedulers said about them.
#[derive(Debug)]
struct Keys {
    sealer: Option<Sealer>,
    /// It is kept after the enrolment, because schedulers may lose the key.
    token: Option<EnrolmentToken>,
    /// Whether schedulers are taken to accept the present key. Without a token they are, until they refuse it.
    is_accepted: bool,
    /// Until schedulers have accepted the next key.
    next: Option<NextKey>,
    /// The number of sealed heartbeats.
    heartbeats: u64,
    /// Why schedulers have refused the present key, until they accept it.
    refusal: Option<String>,
    logged_at: Option<Instant>,
}

#[derive(Debug)]
struct NextKey {
    sealer: Sealer,
    claim: RotationClaim,
    is_refused: bool,
    on_accepted: OnAccepted,
}

/// What goes with one heartbeat.
struct Claims {
    sealer: Sealer,
    enrolment: Option<EnrolmentClaim>,
    rotation: Option<RotationClaim>,
    confirm_key: bool,
}

/// What schedulers have accepted.
#[derive(Debug)]
enum Accepted {
    /// A key that was not asked for.
    Nothing,
    Present,
    Next(OnAccepted),
}

/// Of which refusal an error is due.
#[derive(Debug, PartialEq, Eq)]
enum Refused {
    Silently,
    Present,
    Next,
}

impl Keys {
    fn new(
        sealer: Option<Sealer>,
        token: Option<EnrolmentToken>,
        rotation: Option<KeyRotation>,
    ) -> Self {
        let next = sealer.as_ref().zip(rotation).map(|(present, rotation)| {
            let executor = present.executor();
            let sealer = Sealer::new(executor.clone(), rotation.key);
            NextKey {
                claim: present.rotate_to(&sealer.public_key()),
                sealer,
                is_refused: false,
                on_accepted: rotation.on_accepted,
            }
        });
        let token = token.filter(|_| sealer.is_some());
        Self {
            is_accepted: token.is_none(),
            token,
            sealer,
            next,
            heartbeats: 0,
            refusal: None,
            logged_at: None,
        }
    }

    /// While a key is being replaced, each second heartbeat is sealed with the next one. Schedulers that have already
    /// replaced it refuse the present key, and then recognise the next. Once they refuse the next one, it takes no turn
    /// while they accept the present one, whose heartbeats go on to ask for it.
    fn next_claims(&mut self) -> Option<Claims> {
        let present = self.sealer.as_ref()?;
        self.heartbeats += 1;
        let rotation = self.next.as_ref().map(|next| next.claim.clone());
        if let Some(next) = &self.next
            && self.heartbeats.is_multiple_of(2)
            && !(next.is_refused && self.is_accepted)
        {
            return Some(Claims {
                sealer: next.sealer.clone(),
                enrolment: None,
                rotation,
                confirm_key: false,
            });
        }
        let claim = |token: &EnrolmentToken| token.claim(present.executor(), &present.public_key());
        let token = self.token.as_ref().filter(|_| !self.is_accepted);
        Some(Claims {
            sealer: present.clone(),
            enrolment: token.map(claim),
            rotation,
            confirm_key: !self.is_accepted && token.is_none(),
        })
    }

    fn accept(&mut self, key: &WorkerKeyId) -> Accepted {
        if let Some(next) = self.next.take_if(|next| next.sealer.key_id() == key) {
            self.sealer = Some(next.sealer);
            self.is_accepted = true;
            self.refusal = None;
            return Accepted::Next(next.on_accepted);
        }
        if self.is_accepted || !self.is_present(key) {
            return Accepted::Nothing;
        }
        self.is_accepted = true;
        self.refusal = None;
        Accepted::Present
    }

    fn refuse(&mut self, key: &WorkerKeyId, reason: &str, now: Instant) -> Refused {
        let refused = if self.is_present(key) {
            self.is_accepted = false;
            self.refusal = Some(reason.to_owned());
            Refused::Present
        } else if let Some(next) = &mut self.next
            && next.sealer.key_id() == key
        {
            next.is_refused = true;
            Refused::Next
        } else {
            return Refused::Silently;
        };
        let is_recent = |last: Instant| now.saturating_duration_since(last) < LOG_EVERY;
        if self.logged_at.is_some_and(is_recent) {
            return Refused::Silently;
        }
        self.logged_at = Some(now);
        refused
    }

    fn is_present(&self, key: &WorkerKeyId) -> bool {
        let present = self.sealer.as_ref();
        present.is_some_and(|present| present.key_id() == key)
    }

    fn may_report(&self) -> bool {
        let is_next_open = self.next.as_ref().is_some_and(|next| !next.is_refused);
        self.is_accepted && !is_next_open
    }

    fn problem(&self) -> Option<String> {
        if self.is_accepted {
            return None;
        }
        Some(match &self.refusal {
            Some(reason) => format!("schedulers refuse the worker's key: {reason}"),
            None => "the worker waits until schedulers have enrolled its key".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use cueline_model::ExecutorId;
    use cueline_protocol::origin::WorkerKey;

    use super::*;

    fn sealer(seed: u8) -> Sealer {
        let executor = ExecutorId {
            group: "billing".parse().expect("a name"),
            name: "one".parse().expect("a name"),
        };
        Sealer::new(executor, WorkerKey::from_seed([seed; 32]))
    }

    #[expect(clippy::unnecessary_wraps, reason = "as the state takes it")]
    fn token() -> Option<EnrolmentToken> {
        Some(EnrolmentToken::new([1; 8], [2; 32]))
    }

    #[expect(clippy::unnecessary_wraps, reason = "as the state takes it")]
    fn rotation() -> Option<KeyRotation> {
        Some(KeyRotation::new(WorkerKey::from_seed([2; 32]), || {}))
    }

    fn id(seed: u8) -> WorkerKeyId {
        sealer(seed).key_id().clone()
    }

    #[test]
    fn the_claim_is_repeated_until_the_key_is_accepted() {
        let mut keys = Keys::new(Some(sealer(1)), token(), None);
        for _ in 0..3 {
            let claims = keys.next_claims().expect("sealed");
            let claim = claims.enrolment.expect("a claim");
            assert_eq!(claim.key, sealer(1).public_key());
            assert!(claims.rotation.is_none());
            assert!(!keys.may_report());
            assert!(keys.problem().is_some());
            assert!(matches!(keys.accept(&id(9)), Accepted::Nothing));
        }
        assert!(matches!(keys.accept(&id(1)), Accepted::Present));
        assert!(keys.next_claims().expect("sealed").enrolment.is_none());
        assert!(keys.may_report());
        assert_eq!(keys.problem(), None);
        assert!(matches!(keys.accept(&id(1)), Accepted::Nothing));
    }

    /// A scheduler may have replaced the key although its answer was lost. The old key is refused from then on.
    #[test]
    fn while_a_key_is_replaced_both_keys_take_turns() {
        let mut keys = Keys::new(Some(sealer(1)), token(), rotation());
        for seed in [1, 2, 1, 2] {
            let claims = keys.next_claims().expect("sealed");
            assert_eq!(claims.sealer.key_id(), &id(seed));
            let rotation = claims.rotation.expect("a claim");
            assert_eq!(rotation.key, sealer(2).public_key());
            let verified = rotation.verify(sealer(1).executor(), &sealer(1).public_key());
            assert_eq!(verified, Ok(()));
            // The token would enrol the next key beside the present one.
            assert_eq!(claims.enrolment.is_some(), seed == 1);
        }
        assert!(!keys.may_report());
        assert!(matches!(keys.accept(&id(2)), Accepted::Next(_)));
        assert!(keys.may_report());
        let claims = keys.next_claims().expect("sealed");
        assert_eq!(claims.sealer.key_id(), &id(2));
        assert!(claims.enrolment.is_none() && claims.rotation.is_none());
    }

    #[test]
    fn a_refused_next_key_leaves_the_present_one_in_use() {
        let mut keys = Keys::new(Some(sealer(1)), None, rotation());
        let now = Instant::now();
        assert!(!keys.may_report());
        assert_eq!(keys.refuse(&id(2), "why", now), Refused::Next);
        assert!(keys.may_report());
        assert_eq!(keys.problem(), None);
        assert!(keys.is_present(&id(1)));
        for _ in 0..2 {
            let claims = keys.next_claims().expect("sealed");
            assert_eq!(claims.sealer.key_id(), &id(1), "each heartbeat counts");
            assert!(claims.rotation.is_some(), "the claim is repeated");
        }
        assert!(matches!(keys.accept(&id(2)), Accepted::Next(_)));
        assert!(keys.is_present(&id(2)));
    }

    /// Schedulers may have replaced the present key, and not know that yet when they refuse the next one.
    #[test]
    fn both_keys_take_turns_while_both_are_refused() {
        let mut keys = Keys::new(Some(sealer(1)), None, rotation());
        let now = Instant::now();
        assert_eq!(keys.refuse(&id(2), "why", now), Refused::Next);
        keys.refuse(&id(1), "why", now);
        assert!(!keys.may_report());
        for seed in [1, 2] {
            let claims = keys.next_claims().expect("sealed");
            assert_eq!(claims.sealer.key_id(), &id(seed));
        }
        assert!(matches!(keys.accept(&id(2)), Accepted::Next(_)));
        assert!(keys.may_report());
        assert_eq!(keys.problem(), None);
    }

    /// A restored store may have lost the key.
    #[test]
    fn a_key_that_is_refused_after_its_acceptance_is_claimed_again() {
        for has_token in [true, false] {
            let token = token().filter(|_| has_token);
            let mut keys = Keys::new(Some(sealer(1)), token, None);
            keys.accept(&id(1));
            let claims = keys.next_claims().expect("sealed");
            assert!(claims.enrolment.is_none() && !claims.confirm_key);
            assert!(keys.may_report());
            keys.refuse(&id(9), "of another worker", Instant::now());
            assert!(keys.may_report());
            keys.refuse(&id(1), "not enrolled", Instant::now());
            assert!(!keys.may_report());
            for _ in 0..2 {
                let claims = keys.next_claims().expect("sealed");
                assert_eq!(claims.enrolment.is_some(), has_token);
                assert_eq!(claims.confirm_key, !has_token);
            }
            assert!(matches!(keys.accept(&id(1)), Accepted::Present));
            let claims = keys.next_claims().expect("sealed");
            assert!(claims.enrolment.is_none() && !claims.confirm_key);
            assert!(keys.may_report());
        }
    }

    #[test]
    fn a_refusal_is_logged_once_a_minute_and_shown_until_the_key_is_accepted() {
        let mut keys = Keys::new(Some(sealer(1)), None, None);
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(keys.refuse(&id(9), "another", start), Refused::Silently);
        assert_eq!(keys.problem(), None);
        assert_eq!(keys.refuse(&id(1), "revoked", start), Refused::Present);
        assert_eq!(keys.refuse(&id(1), "revoked", after(59)), Refused::Silently);
        let shown = keys.problem().expect("a problem");
        assert!(shown.contains("revoked"), "{shown}");
        assert_eq!(keys.refuse(&id(1), "revoked", after(60)), Refused::Present);
        assert!(matches!(keys.accept(&id(1)), Accepted::Present));
        assert_eq!(keys.problem(), None);
    }

    #[tokio::test]
    async fn the_next_key_is_announced_to_the_program_once() {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let rotation = KeyRotation::new(WorkerKey::from_seed([2; 32]), move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        let origin = Origin::new(Some(sealer(1)), None, Some(rotation));
        for _ in 0..2 {
            origin.take_acceptance(&id(2));
        }
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        origin.accepted().await;
        origin.may_report().await;
    }

    #[test]
    fn a_worker_without_a_key_seals_nothing() {
        let origin = Origin::new(None, token(), rotation());
        assert_eq!(origin.seal(Purpose::Reports, b"{}".to_vec()), b"{}");
        assert_eq!((origin.overhead(), origin.problem()), (0, None));
        assert!(origin.keys().may_report());
    }
}
