//! What is made of what the core hears. Nothing here acts: it all goes into the batch.

use std::collections::HashMap;
use std::time::Duration;

use cueline_broker::{Channel, Settlement};
use cueline_model::{Outcome, OutcomeKind, RunId};
use cueline_protocol::{Holding, Trigger};

use super::Core;
use super::batch::{Batch, id_of};
use crate::attempt::Ended;
use crate::control::Order;
use crate::error::Result;
use crate::intake::{Arrived, Read};
use crate::journal::{Known, State};
use crate::lanes::{Arrival, Step, Unstarted};
use bytes::Bytes;

/// Questions to be answered after the turn.
pub(super) type Asked = Vec<(Vec<Holding>, Channel)>;

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
                Order::Cancel(run) => {
                    if self.lanes.newest(run).is_none() {
                        self.cancelled.remember(run);
                    }
                    let mut steps = Vec::new();
                    self.lanes.cancel(run, &mut steps);
                    self.follow(steps, batch);
                }
                Order::Holdings(ids, reply_to) => asked.push((ids, reply_to)),
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
        if self.fenced {
            // Never taken: the broker has them still, for whoever the schedulers want to have them.
            for arrived in arrivals {
                let again = Settlement::Retry(Duration::ZERO);
                batch.settle(arrived.source, arrived.receipt, again);
            }
            return Ok(true);
        }
        let Some(known) = self.known(&arrivals).await? else {
            return Ok(false);
        };
        let mut again = 0_usize;
        for arrived in arrivals {
            let settlement = match arrived.read {
                Read::Good(trigger, payload) => {
                    let is_new = self.hear_trigger(*trigger, payload, &known, batch);
                    again += usize::from(!is_new);
                    Settlement::Ack
                }
                Read::CannotRun(trigger, why) => {
                    self.refuse(&trigger, why, &known, batch);
                    Settlement::Ack
                }
                Read::NotOurs(wait) => Settlement::Retry(wait),
                Read::Bad(why) => {
                    tracing::warn!(why, "a message goes to the dead letters");
                    Settlement::Dead(why)
                }
            };
            batch.settle(arrived.source, arrived.receipt, settlement);
        }
        if again > 0 {
            tracing::info!(
                count = again,
                "triggers came again that are known here; none is started again"
            );
        }
        Ok(true)
    }

    /// False if it is known already.
    fn hear_trigger(
        &mut self,
        trigger: Trigger,
        payload: Bytes,
        known: &HashMap<RunId, Known>,
        batch: &mut Batch,
    ) -> bool {
        if !self.is_new(&trigger, known, batch) {
            return false;
        }
        let id = id_of(&trigger);
        if self.cancelled.contains(id.run) {
            let outcome = self.unstarted(Unstarted::Cancelled, batch);
            batch.end(id, trigger.job.name.clone(), outcome);
            return true;
        }
        self.next_seq += 1;
        batch.accept(&trigger, payload, self.next_seq);
        let mut steps = Vec::new();
        self.lanes.arrive(Arrival::of(&trigger), &mut steps);
        self.waiting.insert(id, trigger);
        self.follow(steps, batch);
        true
    }

    fn refuse(
        &mut self,
        trigger: &Trigger,
        why: String,
        known: &HashMap<RunId, Known>,
        batch: &mut Batch,
    ) {
        if self.is_new(trigger, known, batch) {
            let outcome = Outcome::new(OutcomeKind::Failed, batch.now).because(why);
            batch.end(id_of(trigger), trigger.job.name.clone(), outcome);
        }
    }

    /// Whether the trigger is one to be treated. One that has ended is answered again.
    fn is_new(&self, trigger: &Trigger, known: &HashMap<RunId, Known>, batch: &mut Batch) -> bool {
        let id = id_of(trigger);
        match self.novelty(id, known, batch) {
            Novelty::New => return true,
            Novelty::Held => {}
            Novelty::Ended(outcome) => match serde_json::from_str(&outcome) {
                Ok(outcome) => batch.report(id, trigger.job.name.clone(), outcome, true),
                Err(error) => {
                    tracing::error!(run = %id.run, %error, "an outcome in the journal cannot be read");
                }
            },
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

    fn novelty(&self, id: Holding, known: &HashMap<RunId, Known>, batch: &Batch) -> Novelty {
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
                        batch.start(trigger);
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
