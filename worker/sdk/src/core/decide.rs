//! What is made of what the core hears. Nothing here acts: it all goes into the batch.

use std::collections::HashMap;
use std::time::Duration;

use cueline_broker::{Channel, Settlement};
use cueline_model::{AttemptId, Outcome, OutcomeKind, StoreId};
use cueline_protocol::Trigger;

use super::Core;
use super::batch::Batch;
use crate::attempt::Ended;
use crate::control::Order;
use crate::error::Result;
use crate::intake::{Arrived, Read};
use crate::journal::{Known, State};
use crate::lanes::{Arrival, Step, Unstarted};
use crate::stores::{AttemptKey, RunKey};
use bytes::Bytes;

/// Questions to be answered after the turn.
pub(super) type Asked = Vec<(StoreId, Vec<AttemptId>, Channel)>;

/// What a trigger is to the worker.
enum Novelty {
    New,
    /// It is held: waits or runs.
    Held,
    /// It has ended like this, as JSON.
    Ended(String),
    /// The journal says that it was started, and nothing runs: a write of the last worker came to the disk after this one had read it.
    Stray,
    /// This newer attempt of the run is known.
    Older(u32),
}

impl Core {
    pub(super) fn hear_ended(&mut self, ended: impl Iterator<Item = Ended>, batch: &mut Batch) {
        for ended in ended {
            self.lanes.ended(ended.id);
            let Some(running) = self.running.remove(&ended.id) else {
                continue;
            };
            batch.reports.extend(ended.rest);
            batch.end(ended.id, running.job.clone(), ended.outcome);
        }
    }

    pub(super) fn hear_orders(
        &mut self,
        orders: impl Iterator<Item = Order>,
        batch: &mut Batch,
    ) -> Asked {
        let mut asked = Vec::new();
        for order in orders {
            match order {
                Order::Cancel(store, run) => {
                    // Of a store that has sent nothing there is nothing here; the order comes again.
                    let Some(run) = self.stores.known_key(store, run) else {
                        continue;
                    };
                    if self.lanes.newest(run).is_none() {
                        self.cancelled.remember(run);
                    }
                    let mut steps = Vec::new();
                    self.lanes.cancel(run, &mut steps);
                    self.follow(steps, batch);
                }
                Order::Holdings(store, ids, reply_to) => asked.push((store, ids, reply_to)),
            }
        }
        asked
    }

    /// False after a hard stop.
    pub(super) async fn hear_arrivals(
        &mut self,
        arrivals: Vec<Arrived>,
        batch: &mut Batch,
    ) -> Result<bool> {
        if arrivals.is_empty() {
            return Ok(true);
        }
        if self.is_fenced() {
            // Never taken: the broker has them still, for whoever the schedulers want to have them.
            for arrived in arrivals {
                let again = Settlement::Retry(Duration::ZERO);
                batch.settle(arrived.receipt, again);
            }
            return Ok(true);
        }
        let keys: Vec<Option<AttemptKey>> = arrivals.iter().map(|a| self.key_of(&a.read)).collect();
        let runs: Vec<RunKey> = keys.iter().flatten().map(|id| id.run).collect();
        let Some(known) = self.known(&runs).await? else {
            return Ok(false);
        };
        let mut again = 0_usize;
        for (arrived, id) in arrivals.into_iter().zip(keys) {
            let settlement = self.hear_arrival(arrived.read, id, &known, &mut again, batch);
            if let Settlement::Dead(why) = &settlement {
                tracing::warn!(why, "a message goes to the dead letters");
            }
            batch.settle(arrived.receipt, settlement);
        }
        if again > 0 {
            tracing::info!(
                count = again,
                "triggers came again that are known here; none is started again"
            );
        }
        Ok(true)
    }

    /// The attempt that a message is about; `None` where it is about none.
    fn key_of(&self, read: &Read) -> Option<AttemptKey> {
        match read {
            Read::Good(trigger, _) | Read::CannotRun(trigger, _) => Some(AttemptKey {
                run: self.stores.key(trigger.store, trigger.run)?,
                attempt: trigger.attempt,
            }),
            Read::Bad(_) => None,
        }
    }

    fn hear_arrival(
        &mut self,
        read: Read,
        id: Option<AttemptKey>,
        known: &HashMap<RunKey, Known>,
        again: &mut usize,
        batch: &mut Batch,
    ) -> Settlement {
        let (trigger, payload) = match read {
            Read::Bad(why) => return Settlement::Dead(why),
            Read::Good(trigger, payload) => (trigger, Ok(payload)),
            Read::CannotRun(trigger, why) => (trigger, Err(why)),
        };
        let Some(id) = id else {
            return Settlement::Dead(format!(
                "failed to accept the trigger: there is no run {}, or this worker has heard of too many stores; give it an empty state directory",
                trigger.run
            ));
        };
        if !self.is_new(id, &trigger, known, batch) {
            *again += usize::from(payload.is_ok());
            return Settlement::Ack;
        }
        if let Some(why) = self.too_late(&trigger, batch) {
            return Settlement::Dead(why);
        }
        match payload {
            Ok(payload) => self.accept(id, *trigger, payload, batch),
            Err(why) => {
                let outcome = Outcome::new(OutcomeKind::Failed, batch.now).because(why);
                batch.end(id, trigger.job.name.clone(), outcome);
            }
        }
        Settlement::Ack
    }

    /// Why a trigger of which nothing is known here may not be taken any more: what was known of it may have been forgotten, and it may be
    /// somebody who kept it that sends it. Where schedulers share this process's fate, nobody else can send.
    fn too_late(&self, trigger: &Trigger, batch: &Batch) -> Option<String> {
        let deadline = trigger.deadline;
        let late = self.settings.limits.is_some() && deadline < batch.now;
        late.then(|| {
            format!(
                "failed to accept the trigger: it was good until {deadline}, and it is {} here; if the run still waits, it is published again",
                batch.now
            )
        })
    }

    fn accept(&mut self, id: AttemptKey, trigger: Trigger, payload: Bytes, batch: &mut Batch) {
        if self.cancelled.contains(id.run) {
            let outcome = self.unstarted(Unstarted::Cancelled, batch);
            batch.end(id, trigger.job.name.clone(), outcome);
            return;
        }
        self.next_seq += 1;
        batch.accept(id, &trigger, payload, self.next_seq);
        let mut steps = Vec::new();
        self.lanes.arrive(Arrival::of(id, &trigger), &mut steps);
        self.waiting.insert(id, trigger);
        self.follow(steps, batch);
    }

    /// Whether the trigger is one to be treated. One that has ended is answered again.
    fn is_new(
        &self,
        id: AttemptKey,
        trigger: &Trigger,
        known: &HashMap<RunKey, Known>,
        batch: &mut Batch,
    ) -> bool {
        match self.novelty(id, known, batch) {
            Novelty::New => return true,
            Novelty::Held => {}
            Novelty::Ended(outcome) => {
                batch.report_again(id, trigger.job.name.clone(), &outcome);
            }
            Novelty::Stray => {
                let outcome = Outcome::new(OutcomeKind::Lost, batch.now)
                    .because("the worker stopped while it ran");
                batch.end(id, trigger.job.name.clone(), outcome);
            }
            Novelty::Older(newer) => {
                tracing::info!(run = %id.run, attempt = id.attempt, newer, "dropped the trigger of an older attempt");
            }
        }
        false
    }

    fn novelty(&self, id: AttemptKey, known: &HashMap<RunKey, Known>, batch: &Batch) -> Novelty {
        // The batch is newer than what was read from the disk.
        let written = batch.known(id.run).or_else(|| known.get(&id.run).cloned());
        let held = self.lanes.newest(id.run);
        let newest = held.max(written.as_ref().map(|w| w.attempt));
        match (newest, written) {
            (Some(newest), _) if newest > id.attempt => Novelty::Older(newest),
            (Some(newest), _) if newest == id.attempt && held == newest.into() => Novelty::Held,
            (Some(newest), Some(written)) if newest == id.attempt => match written.state {
                // Not held, so not accepted by this incarnation: see `Stray`.
                State::Accepted => Novelty::New,
                State::Started => Novelty::Stray,
                State::Ended | State::Reported => {
                    written.outcome.map_or(Novelty::Held, Novelty::Ended)
                }
            },
            _ => Novelty::New,
        }
    }

    /// Starts what the lanes let start.
    pub(super) fn pump(&mut self, batch: &mut Batch) {
        let mut steps = Vec::new();
        self.lanes.pump(&mut steps);
        self.follow(steps, batch);
    }

    /// Notes what the lanes want done.
    pub(super) fn follow(&mut self, steps: Vec<Step>, batch: &mut Batch) {
        for step in steps {
            match step {
                Step::Start(id) => {
                    if let Some(trigger) = self.waiting.remove(&id) {
                        batch.start(id, trigger);
                    }
                }
                Step::Stop(id, reason) => batch.stop.push((id, reason)),
                Step::End(id, why) => {
                    if let Some(trigger) = self.waiting.remove(&id) {
                        let outcome = self.unstarted(why, batch);
                        batch.end(id, trigger.job.name.clone(), outcome);
                    }
                }
            }
        }
    }

    fn unstarted(&self, why: Unstarted, batch: &Batch) -> Outcome {
        let (kind, message) = match why {
            Unstarted::Busy => (OutcomeKind::Discarded, "the lane is busy".to_owned()),
            Unstarted::Full(most) => (
                OutcomeKind::Discarded,
                format!("the backlog of {most} is full"),
            ),
            Unstarted::Covered(run) => (OutcomeKind::Covered, format!("run {run} replaced it")),
            Unstarted::Cancelled => (
                OutcomeKind::Cancelled,
                "it was cancelled before it started".to_owned(),
            ),
            Unstarted::Superseded(attempt) => (
                OutcomeKind::Cancelled,
                format!("attempt {attempt} of the same run replaced it"),
            ),
            Unstarted::Returned => (
                OutcomeKind::Returned,
                "the executor is about to stop".to_owned(),
            ),
            Unstarted::Fenced => (OutcomeKind::Returned, self.contact.why()),
        };
        Outcome::new(kind, batch.now).because(message)
    }
}
