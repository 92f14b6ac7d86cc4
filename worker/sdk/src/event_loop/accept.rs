//! Decides which triggers are accepted, and how all others are settled.

use std::collections::HashMap;
use std::time::Duration;

use cueline_broker::{Receipt, Settlement};
use cueline_model::{Outcome, OutcomeKind};
use cueline_protocol::Trigger;
use tokio::time::Instant;

use super::decisions::{Decisions, StartableAttempt, Unjournalled};
use super::halt::Halt;
use super::lane_events;
use super::state::EventLoop;
use crate::identity::{AttemptKey, RunKey};
use crate::intake::{ParsedTrigger, Received};
use crate::journal::{Entry, EntryState};
use crate::lanes::{LaneRequest, NotStarted};

/// The state of an attempt whose trigger came again.
enum KnownAttempt {
    /// It waits or runs.
    Held,
    /// It has this outcome, as JSON.
    Ended(String),
    /// The journal says that it was started, but nothing runs. The lock of the state directory excludes that, unless its
    /// file system does not keep locks.
    Orphaned,
    /// This newer attempt of the run is known.
    Superseded(u32),
}

impl EventLoop {
    pub(super) async fn accept_all(
        &mut self,
        received: Vec<Received>,
        decisions: &mut Decisions,
    ) -> Result<(), Halt> {
        if received.is_empty() {
            return Ok(());
        }
        if self.is_fenced() {
            // The broker keeps them until the lease is renewed or the schedulers choose another executor.
            for message in received {
                decisions.settle(message.receipt, Settlement::Retry(Duration::ZERO));
            }
            return Ok(());
        }
        let parsed = received.iter().filter_map(|m| m.parsed.as_ref().ok());
        let runs: Vec<RunKey> = parsed.map(|p| AttemptKey::of(&p.trigger).run).collect();
        let known = self.known(&runs).await?;
        let mut repeated = 0_usize;
        for message in received {
            let settlement = match message.parsed {
                Ok(parsed) => {
                    let trigger = &parsed.trigger;
                    self.queue_position.set(trigger.store, trigger.deadline);
                    self.accept(
                        (parsed, message.receipt, message.fetched_at),
                        &known,
                        &mut repeated,
                        decisions,
                    )
                }
                Err(why) => Some(Settlement::Dead(why)),
            };
            if let Some(Settlement::Dead(reason)) = &settlement {
                tracing::warn!(
                    reason,
                    "moved a message to the dead letters; `cueline dlq list` shows it"
                );
            }
            if let Some(settlement) = settlement {
                decisions.settle(message.receipt, settlement);
            }
        }
        if repeated > 0 {
            tracing::info!(
                count = repeated,
                "received triggers of known attempts; none is started again"
            );
        }
        Ok(())
    }

    /// Returns how to settle the message now. `None` for a trigger that came into its lane: it is settled when the
    /// journal has it.
    fn accept(
        &mut self,
        (parsed, receipt, fetched_at): (ParsedTrigger, Receipt, Instant),
        known: &HashMap<RunKey, Entry>,
        repeated: &mut usize,
        decisions: &mut Decisions,
    ) -> Option<Settlement> {
        let ParsedTrigger {
            trigger,
            payload,
            handler,
        } = parsed;
        let key = AttemptKey::of(&trigger);
        if let Err(why) = self.journal.check(key.run) {
            let why = format!("failed to accept the trigger: {why}");
            return Some(Settlement::Dead(why));
        }
        if let Some(found) = self.recognise(key, known, decisions) {
            if let Some(why) = self.other_fire(&trigger, known, decisions) {
                return Some(self.refuse_other_fire(&trigger, why, decisions));
            }
            *repeated += usize::from(handler.is_ok());
            // This message may be the broker's only copy.
            self.journal_held(key, decisions);
            answer_again(found, &trigger, decisions);
            return Some(Settlement::Ack);
        }
        if let Some(why) = self.expired(&trigger, decisions) {
            return Some(Settlement::Dead(why));
        }
        let job = trigger.job.name.clone();
        if self.is_of_earlier_session(&trigger) {
            let outcome = self.not_started(NotStarted::EarlierSession, decisions);
            decisions.end(key, job, outcome);
            return Some(Settlement::Ack);
        }
        let handler = match handler {
            Ok(handler) => handler,
            Err(why) => {
                let outcome = Outcome::new(OutcomeKind::Failed, decisions.now).because(why);
                decisions.end(key, job, outcome);
                decisions.set_fire(&trigger);
                return Some(Settlement::Ack);
            }
        };
        if self.early_cancels.contains(key.run) {
            let outcome = self.not_started(NotStarted::Cancelled, decisions);
            decisions.end(key, job, outcome);
            decisions.set_fire(&trigger);
            return Some(Settlement::Ack);
        }
        self.last_seq += 1;
        lane_events::accepted(key);
        let mut steps = Vec::new();
        self.lanes.accept(LaneRequest::of(&trigger), &mut steps);
        let attempt = StartableAttempt {
            trigger,
            handler,
            fetched_at,
            unjournalled: Some(Unjournalled {
                receipt,
                payload,
                seq: self.last_seq,
            }),
        };
        self.waiting.insert(key, attempt);
        decisions.accepted.push(key);
        self.follow(steps, decisions);
        None
    }

    /// Returns what is known about this attempt, and `None` for a new one.
    fn recognise(
        &self,
        key: AttemptKey,
        known: &HashMap<RunKey, Entry>,
        decisions: &Decisions,
    ) -> Option<KnownAttempt> {
        let entry = decisions.entry_of(key.run).or_else(|| known.get(&key.run));
        let held = self.lanes.newest_attempt(key.run);
        let newest = held.max(entry.map(|entry| entry.key.attempt))?;
        if newest > key.attempt {
            return Some(KnownAttempt::Superseded(newest));
        }
        if newest < key.attempt {
            return None;
        }
        if held == Some(newest) {
            return Some(KnownAttempt::Held);
        }
        let entry = entry?;
        match entry.state {
            // The previous process accepted it, see `Orphaned`. It never started, so it is accepted as new.
            EntryState::Accepted => None,
            EntryState::Started => Some(KnownAttempt::Orphaned),
            EntryState::Ended | EntryState::Reported => {
                let outcome = entry.outcome.clone();
                Some(outcome.map_or(KnownAttempt::Held, KnownAttempt::Ended))
            }
        }
    }

    /// Whether the trigger was written before an absence after which the schedulers may have given its run to another
    /// executor.
    fn is_of_earlier_session(&self, trigger: &Trigger) -> bool {
        let session = self.services.lease.session();
        let is_earlier = trigger.session.is_none_or(|of| of < session);
        self.services.settings.lease_timings.is_some() && is_earlier
    }

    /// The reason if a new trigger is too old. The worker may have forgotten that attempt, and another sender may
    /// repeat the trigger. With schedulers in this process no other sender exists.
    fn expired(&self, trigger: &Trigger, decisions: &Decisions) -> Option<String> {
        let (deadline, now) = (trigger.deadline, decisions.now);
        let expired = self.services.settings.lease_timings.is_some() && deadline < now;
        expired.then(|| {
            format!(
                "failed to accept the trigger: it was valid until {deadline}, and it is {now} by this worker's clock"
            )
        })
    }
}

/// Answers the trigger of a known attempt. Nothing is started.
fn answer_again(known: KnownAttempt, trigger: &Trigger, decisions: &mut Decisions) {
    let key = AttemptKey::of(trigger);
    let job = trigger.job.name.clone();
    match known {
        KnownAttempt::Held => {}
        KnownAttempt::Ended(outcome) => decisions.resend(key, job, &outcome),
        KnownAttempt::Orphaned => {
            let outcome = Outcome::new(OutcomeKind::Lost, decisions.now)
                .because("the worker stopped while it ran");
            decisions.end(key, job, outcome);
        }
        KnownAttempt::Superseded(newer) => {
            tracing::info!(run_id = %key.run, attempt = key.attempt, newer, "dropped the trigger of an older attempt");
        }
    }
}
