//! Carries out the claims of executors whose keys are not enrolled, in the background, so that a slow store cannot delay
//! heartbeats.
//!
//! A claim is part of a heartbeat. An enrolment token admits a new key, and an enrolled key admits the one that takes its
//! place. The executor is told the result, and repeats its claim until then. One without a claim is told that its key does
//! not count: it cannot know that a restored store has lost the key.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use cueline_broker::Broker;
use cueline_model::{ExecutorId, Timestamp};
use cueline_protocol::origin::{EnrolmentClaim, Purpose, RotationClaim, Sealed, WorkerKeyId};
use cueline_protocol::{Control, HeartbeatMessage, VERSION, decode, encode};
use cueline_runtime::Stop;
use cueline_store::{
    EnrolOutcome, EnrolRefusal, ErrorKind, KeyOrigin, NewWorkerKey, Store, StoreError,
};

use super::claims::{Claim, ClaimId, Claimed, Claims, claimed_by};
use super::forged::Forged;
use super::forged_messages::{ForgedKind, ForgedMessages};
use super::heartbeat_order::check_time;
use super::key_table::KeyStanding;
use super::keys::EnrolledKeys;
use crate::addresses::control_channel;
use crate::database_clock::DatabaseClock;

/// Claims that wait, and what their executors were told.
pub(crate) struct Enrolment {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) broker: Broker,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) keys: Arc<EnrolledKeys>,
    pub(crate) forged: Arc<ForgedMessages>,
    pub(crate) claims: Arc<Claims>,
}

/// The most claims carried out at once. Each one has up to two signatures, which are verified without giving other tasks a
/// turn.
const AT_ONCE: usize = 32;

/// The verifiers of enrolment tokens that were read, by the id of the token. `None` if there is no such token.
type Verifiers = HashMap<String, Option<[u8; 32]>>;

/// What an executor is told about a key: `Err` with the reason of a refusal.
type Answer = (WorkerKeyId, Result<(), String>);

impl Enrolment {
    /// Carries out claims until the stop.
    pub(crate) async fn run(self: Arc<Self>, stop: Stop) {
        loop {
            tokio::select! {
                () = self.claims.added() => {}
                () = stop.soft() => return,
            }
            tokio::select! {
                () = self.carry_out_all() => {}
                () = stop.soft() => return,
            }
        }
    }

    /// Carries out all claims that wait. A failure is only logged: the next heartbeats of the executors repeat their claims.
    pub(crate) async fn carry_out_all(&self) {
        loop {
            let claims = self.claims.take(AT_ONCE);
            if claims.is_empty() {
                return;
            }
            let (accepted, claims): (Vec<_>, Vec<_>) = claims
                .into_iter()
                .partition(|(_, claim)| matches!(claim, Claim::Accepted));
            // These need no store.
            for ((executor, key), _) in accepted {
                self.tell(&executor, (key, Ok(()))).await;
            }
            if let Err(error) = self.refresh_for(&claims).await {
                warn(&error);
                continue;
            }
            match self.carry_out(claims.clone()).await {
                Ok(()) => {}
                Err(error) if claims.len() == 1 || error.kind() == ErrorKind::Transient => {
                    warn(&error);
                }
                // What is wrong with one must not stop the others.
                Err(error) => {
                    tracing::debug!(%error, "failed to enrol keys of workers together; trying one by one");
                    self.carry_out_each(claims).await;
                }
            }
        }
    }

    async fn carry_out_each(&self, claims: Vec<(ClaimId, Claim)>) {
        for claim in claims {
            if let Err(error) = self.carry_out(vec![claim]).await {
                warn(&error);
            }
        }
    }

    /// Another node may have enrolled or allowed the keys. A worker that is refused reports nothing.
    async fn refresh_for(&self, claims: &[(ClaimId, Claim)]) -> Result<(), StoreError> {
        let unverified = claims.iter().filter_map(|(_, claim)| match claim {
            Claim::Unverified { arrived_at, .. } => Some(*arrived_at),
            Claim::Accepted | Claim::Verified(_) => None,
        });
        match unverified.max() {
            Some(newest) => self.keys.refresh_since(newest).await,
            None => Ok(()),
        }
    }

    /// Carries out claims that need the store, and tells their executors the results.
    async fn carry_out(&self, claims: Vec<(ClaimId, Claim)>) -> Result<(), StoreError> {
        let (mut answers, mut vouched) = (Vec::new(), Vec::new());
        let mut verifiers = Verifiers::new();
        for ((executor, _), claim) in claims {
            let claimed = match claim {
                Claim::Accepted => continue,
                Claim::Verified(claimed) => claimed,
                Claim::Unverified { heartbeat, .. } => match self.claimed_in(&heartbeat) {
                    Ok(Some(claimed)) => claimed,
                    Ok(None) => continue,
                    Err(why) => {
                        answers.extend(self.refuse(why).map(|answer| (executor, answer)));
                        continue;
                    }
                },
            };
            let key = claimed.key();
            let checked = match claimed {
                Claimed::Enrolment(claim) => {
                    self.check_enrolment(&executor, &claim, &mut verifiers)
                        .await?
                }
                Claimed::Rotation(claim) => self.check_rotation(&executor, &claim),
            };
            let id = key.id();
            match checked {
                Ok(by) => {
                    let new = NewWorkerKey {
                        executor,
                        key: *key.as_bytes(),
                        key_id: id.to_string(),
                        by,
                    };
                    vouched.push((id, new));
                }
                Err(reason) => {
                    let answer = self.refuse_key(&executor, id, reason);
                    answers.push((executor, answer));
                }
            }
        }
        answers.extend(self.enrol(vouched).await?);
        for (executor, answer) in answers {
            self.tell(&executor, answer).await;
        }
        Ok(())
    }

    fn refuse_key(&self, executor: &ExecutorId, key: WorkerKeyId, reason: String) -> Answer {
        let why = format!("key {key} of executor {executor}: {reason}");
        self.forged.note(ForgedKind::Enrolment, &why);
        (key, Err(reason))
    }

    /// Notes a heartbeat that does not count. Returns what its executor is told about its key.
    ///
    /// The seal of an unknown key cannot be verified, so another sender may have named it. The answer is true
    /// nevertheless, and only the worker that has the key heeds it.
    fn refuse(&self, why: Forged) -> Option<Answer> {
        // A revoked key was noted when its heartbeat arrived.
        if !matches!(why, Forged::Revoked { .. }) {
            self.forged.note(ForgedKind::Heartbeat, &why);
        }
        let reason = why.to_string();
        match why {
            Forged::NotEnrolled { key, .. } | Forged::Revoked { key, .. } => {
                Some((key, Err(reason)))
            }
            _ => None,
        }
    }

    /// The claim in a heartbeat that was sealed just now, with the key of the claim or with the old key of a rotation.
    /// `None` if there is no claim but the key counts by now, so that the next heartbeat does.
    fn claimed_in(&self, heartbeat: &[u8]) -> Result<Option<Claimed>, Forged> {
        let sealed = Sealed::parse(heartbeat)?;
        let now = self.clock.now();
        let known = self.keys.find(&sealed.executor, &sealed.key, now);
        let message = decode::<HeartbeatMessage>(sealed.body).ok();
        let found = message.and_then(|message| {
            let (enrolment, rotation) = (message.enrolment, message.rotation);
            let counts = |key: &WorkerKeyId| self.counts(&sealed.executor, key, now);
            let claimed = claimed_by(&sealed.key, enrolment, rotation, counts)?;
            Some((message.heartbeat.executor, message.sender, claimed))
        });
        let Some((named, sender, claimed)) = found else {
            let (executor, key) = (sealed.executor, sealed.key);
            return match known {
                Some((_, KeyStanding::Revoked)) => Err(Forged::Revoked { executor, key }),
                Some(_) => Ok(None),
                None => Err(Forged::NotEnrolled { executor, key }),
            };
        };
        let own = claimed.key();
        let sealed_with = if own.id() == sealed.key {
            own
        } else if let Some((old, _)) = known {
            old
        } else {
            let (executor, key) = (sealed.executor, sealed.key);
            return Err(Forged::NotEnrolled { executor, key });
        };
        sealed.verify(Purpose::Heartbeat, &sealed_with)?;
        let executor = sealed.executor;
        if named != executor {
            return Err(Forged::OtherExecutor {
                sealer: executor,
                named,
            });
        }
        check_time(&executor, sender.as_ref(), now)?;
        Ok(Some(claimed))
    }

    /// Whether what is sealed with this key counts.
    fn counts(&self, executor: &ExecutorId, key: &WorkerKeyId, now: Timestamp) -> bool {
        let known = self.keys.find(executor, key, now);
        known.is_some_and(|(_, standing)| standing != KeyStanding::Revoked)
    }

    /// What vouches for the key. `Err` with the reason if nothing does.
    async fn check_enrolment(
        &self,
        executor: &ExecutorId,
        claim: &EnrolmentClaim,
        verifiers: &mut Verifiers,
    ) -> Result<Result<KeyOrigin, String>, StoreError> {
        let verifier = if let Some(read) = verifiers.get(&claim.token) {
            *read
        } else {
            let read = self.store.token_verifier(&claim.token).await?;
            *verifiers.entry(claim.token.clone()).or_insert(read)
        };
        let Some(verifier) = verifier else {
            return Ok(Err(EnrolRefusal::NoSuchToken.to_string()));
        };
        if !claim.verify(executor, &verifier) {
            let why = "the proof was made with another token of the same id; give the worker the right token file";
            return Ok(Err(why.to_owned()));
        }
        Ok(Ok(KeyOrigin::Token(claim.token.clone())))
    }

    /// The same for a rotation. The store decides whether the old key still counts: after a rotation whose answer was
    /// lost, it says that the new key is enrolled.
    fn check_rotation(
        &self,
        executor: &ExecutorId,
        claim: &RotationClaim,
    ) -> Result<KeyOrigin, String> {
        let Some((old, _)) = self.keys.find(executor, &claim.by, self.clock.now()) else {
            return Err(EnrolRefusal::OldKeyNotAllowed.to_string());
        };
        if claim.verify(executor, &old).is_err() {
            return Err(format!("key {} has not signed the new key", claim.by));
        }
        let old = claim.by.to_string();
        Ok(KeyOrigin::Rotation { old })
    }

    /// Enrols keys that something vouches for. Returns what their executors are told.
    async fn enrol(
        &self,
        vouched: Vec<(WorkerKeyId, NewWorkerKey)>,
    ) -> Result<Vec<(ExecutorId, Answer)>, StoreError> {
        if vouched.is_empty() {
            return Ok(Vec::new());
        }
        let (ids, new): (Vec<WorkerKeyId>, Vec<NewWorkerKey>) = vouched.into_iter().unzip();
        let outcomes = self.store.enrol_workers(&new).await?;
        let mut is_known = true;
        let mut answers = Vec::with_capacity(new.len());
        for ((id, NewWorkerKey { executor, .. }), outcome) in ids.into_iter().zip(new).zip(outcomes)
        {
            let answer = match outcome {
                EnrolOutcome::Enrolled => {
                    tracing::info!(group = %executor.group, executor = %executor.name, key = %id, "enrolled the key of a worker");
                    is_known = false;
                    (id, Ok(()))
                }
                EnrolOutcome::AlreadyAllowed => {
                    is_known = false;
                    (id, Ok(()))
                }
                EnrolOutcome::Refused(refusal) => {
                    self.refuse_key(&executor, id, refusal.to_string())
                }
            };
            answers.push((executor, answer));
        }
        if !is_known {
            // This node has to know the keys before the workers use them.
            self.keys.refresh_now().await?;
        }
        Ok(answers)
    }

    /// Tells the executor the result. A failure is only logged: the executor repeats its claim.
    async fn tell(&self, executor: &ExecutorId, (key, answer): Answer) {
        let now = self.clock.now();
        if !self.claims.should_tell(executor, &key, answer.is_ok(), now) {
            return;
        }
        let v = VERSION;
        let message = match answer {
            Ok(()) => Control::Enrolled { v, key },
            Err(reason) => Control::NotEnrolled { v, key, reason },
        };
        let channel = control_channel(executor);
        let payload = Bytes::from(encode(&message));
        if let Err(error) = self.broker.announce(&channel, payload).await {
            tracing::warn!(group = %executor.group, executor = %executor.name, %error, "failed to answer the enrolment of a worker; trying again. Check the broker");
        }
    }
}

fn warn(error: &StoreError) {
    tracing::warn!(%error, "failed to enrol keys of workers; their next heartbeats try again. Check the database");
}
