//! Publish: pending triggers go to their queues when they are due, in order.
//!
//! If the broker does not answer, the run stays `dispatching` and its trigger is published again until the broker
//! accepts it. A pause, edit or delete of the job waits for that. Before each retry the run is marked again. The store
//! refuses that if the run has changed since, and the trigger is dropped. Newer triggers of the queue wait behind it.
//! If the queue accepts nothing for 30 s, their runs are released to the store.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Broker, Outgoing, Refusal};
use cueline_model::{AttemptId, ExecutorId, OutcomeKind, Session, Timestamp};
use cueline_runtime::{BurstGate, Duty, Next};
use cueline_store::{AttemptReport, DispatchRequest, NodeId, Store, StoreError};
use tokio::sync::mpsc;

use super::burst;
use super::trigger_writer::TriggerSigner;
use crate::claims::{NodeClaims, PendingPublish};
use crate::counters::{Counters, add};
use crate::database_clock::DatabaseClock;
use crate::error::EngineError;
use crate::liveness::registry::Registry;
use crate::scheduler_report::attempt_ended;
use crate::times::elapsed_ms;

/// Publishes triggers that are due.
pub(crate) struct Publish {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) broker: Broker,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) claims: Arc<NodeClaims>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) signer: TriggerSigner,
    pub(crate) burst_gate: Arc<BurstGate>,
    pub(crate) counters: Arc<Counters>,
    /// Attempts that the broker has accepted, for the confirm stage.
    pub(crate) confirmed: mpsc::Sender<AttemptId>,
    pub(crate) batch: usize,
}

/// The clock is read again after this time, because it may have been set back.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// A refused trigger is published again after this time.
const REFUSED_WAIT_MS: u64 = 1_000;
/// A run that waited behind a queue without an answer stays in the store for this long before it is claimed again.
const STUCK_WAIT_MS: u64 = 10_000;
/// Runs released in one transaction.
const MAX_RELEASED: usize = 2_000;

impl Duty for Publish {
    type Error = EngineError;

    fn name(&self) -> &'static str {
        "publish"
    }

    async fn activate(&mut self) -> Result<Next, EngineError> {
        let released = self.release_stuck().await;
        // Take the second step even if the first fails: other queues must not wait for it.
        let next = self.publish_due().await?;
        released?;
        Ok(next)
    }
}

impl Publish {
    async fn publish_due(&self) -> Result<Next, EngineError> {
        let now = self.clock.now();
        let (mut due, next_due) = {
            let mut pending = self.claims.pending();
            let batch = burst::publish_batch(self.batch, pending.len());
            (pending.pop_due(now, batch), pending.next_due())
        };
        if due.is_empty() {
            let wait = next_due.map_or(LONGEST_WAIT, |due| self.clock.until(due));
            let wait = wait.min(LONGEST_WAIT);
            // There may be more to release.
            return Ok(if wait.is_zero() {
                Next::Now
            } else {
                Next::After(wait)
            });
        }
        self.burst_gate.record_urgent(due.len());
        self.signer
            .refresh(&mut due, |trigger| self.session(trigger), now);
        let due = self.still_dispatching(due).await?;
        self.publish(due).await?;
        Ok(Next::Now)
    }

    /// Releases runs whose triggers wait behind a queue that accepts nothing. They are claimed and routed again, here
    /// or by another node.
    async fn release_stuck(&self) -> Result<(), StoreError> {
        let now = self.clock.now();
        let stuck = self.claims.pending().pop_stuck(now, MAX_RELEASED);
        let (Some(first), Some(node)) = (stuck.first(), self.claims.node()) else {
            // A node without a lease has dropped its claims.
            return Ok(());
        };
        let queue = first.message.queue.clone();
        let attempts: Vec<AttemptId> = stuck.iter().map(|t| t.dispatch.attempt).collect();
        let due_at = now.plus_ms(STUCK_WAIT_MS);
        let released = self
            .store
            .release_claims(node, &attempts, Some(due_at))
            .await;
        if released.is_err() {
            self.keep_uncertain(stuck);
        } else {
            tracing::warn!(
                %queue,
                runs = attempts.len(),
                "released runs that waited behind triggers without an answer; they are routed again. Check the broker and this queue"
            );
        }
        released
    }

    /// Keeps triggers whose runs the store may have released or ended in spite of an error.
    fn keep_uncertain(&self, triggers: impl IntoIterator<Item = PendingPublish>) {
        let triggers = triggers.into_iter().map(|t| PendingPublish {
            is_dispatch_uncertain: true,
            ..t
        });
        self.claims.add_pending(triggers);
    }

    /// The session to bring a trigger up to date with. Its executor may have begun one since it was written.
    ///
    /// Only a dispatch that the store is about to confirm gets another session, and the session is read before that. A
    /// failover that replaces the attempt comes later. Its executor then returns with a session that is later still.
    fn session(&self, trigger: &PendingPublish) -> Option<Session> {
        if !trigger.is_dispatch_uncertain {
            return None;
        }
        self.registry.session(&ExecutorId {
            group: trigger.group.clone(),
            name: trigger.dispatch.executor.clone(),
        })
    }

    async fn publish(&self, due: Vec<PendingPublish>) -> Result<(), EngineError> {
        let messages: Vec<Outgoing> = due.iter().map(|t| t.message.clone()).collect();
        let answers = match self.broker.publish(&messages).await {
            Ok(answers) => answers,
            Err(e) => {
                // The runs stay `dispatching`. An executor ignores a trigger that it receives twice.
                let unanswered = due.into_iter().map(PendingPublish::unanswered);
                self.claims.add_pending(unanswered);
                return Err(e.into());
            }
        };
        let accepted = answers.iter().filter(|answer| answer.is_ok()).count();
        add(&self.counters.published, accepted);
        let now = self.clock.now();
        let accepted = due.iter().zip(&answers).filter(|(_, a)| a.is_ok());
        let late_ms = accepted.map(|(t, _)| elapsed_ms(t.due_at, now));
        self.counters.times.trigger_lateness.record(late_ms);
        // Before the refused ones: a queue may have accepted only the first of its triggers.
        let answered = messages.iter().zip(&answers).filter(|(_, a)| a.is_ok());
        self.claims.note_accepted(answered.map(|(m, _)| &m.queue));
        let mut refused = Vec::new();
        for (trigger, answer) in due.into_iter().zip(answers) {
            match answer {
                Ok(()) => self.confirm(trigger.dispatch.attempt).await,
                Err(refusal) => refused.push((trigger, refusal)),
            }
        }
        if !refused.is_empty() {
            self.handle_refused(refused).await?;
        }
        Ok(())
    }

    async fn confirm(&self, attempt: AttemptId) {
        if self.confirmed.send(attempt).await.is_err() {
            tracing::warn!(
                run_id = %attempt.run,
                attempt = attempt.attempt,
                "confirm stage ended before a published trigger was confirmed; the next node publishes it again"
            );
        }
    }

    /// Marks runs with an uncertain dispatch record again. Drops the triggers that the store refuses: their runs have
    /// changed, or belong to another node.
    async fn still_dispatching(
        &self,
        due: Vec<PendingPublish>,
    ) -> Result<Vec<PendingPublish>, StoreError> {
        if !due.iter().any(|t| t.is_dispatch_uncertain) {
            return Ok(due);
        }
        let Some(node) = self.claims.node() else {
            // A node without a lease has dropped its claims.
            return Ok(due
                .into_iter()
                .filter(|t| !t.is_dispatch_uncertain)
                .collect());
        };
        let uncertain = due.iter().filter(|t| t.is_dispatch_uncertain);
        let dispatches: Vec<_> = uncertain.map(|t| marked_before(&t.dispatch)).collect();
        match self.store.begin_dispatch_in_lanes(node, &dispatches).await {
            Ok(begun) => {
                let marked: HashSet<AttemptId> = begun.accepted.into_iter().collect();
                let (undecided, waiting): (Vec<_>, Vec<_>) =
                    begun.waits.iter().partition(|wait| wait.undecided);
                let undecided: HashSet<AttemptId> = undecided.iter().map(|w| w.attempt).collect();
                let waiting = waiting.iter().map(|w| w.attempt);
                let limited = begun.limit_waits.iter().map(|w| w.attempt);
                let waiting: Vec<AttemptId> = waiting.chain(limited).collect();
                let (due, rest): (Vec<_>, Vec<_>) = due.into_iter().partition(|t| {
                    !t.is_dispatch_uncertain || marked.contains(&t.dispatch.attempt)
                });
                let kept = rest.into_iter();
                let kept = kept.filter(|t| undecided.contains(&t.dispatch.attempt));
                let retry_at = self.clock.now().plus_ms(REFUSED_WAIT_MS);
                self.claims.add_unanswered(kept, retry_at);
                if !waiting.is_empty() {
                    // They are certainly not published. They are claimed and routed again.
                    let released = self.store.release_claims(node, &waiting, None).await;
                    if let Err(e) = released {
                        self.claims.set_uncertain();
                        self.claims.add_marked(node, due);
                        return Err(e);
                    }
                }
                Ok(due)
            }
            Err(e) => {
                self.claims.add_marked(node, due);
                Err(e)
            }
        }
    }

    /// Ends attempts whose triggers are too large. Keeps triggers that the broker may have accepted. Releases the other
    /// runs to the store, where they are claimed and routed again.
    async fn handle_refused(
        &self,
        refused: Vec<(PendingPublish, Refusal)>,
    ) -> Result<(), StoreError> {
        let now = self.clock.now();
        let retry_at = now.plus_ms(REFUSED_WAIT_MS);
        let (mut unanswered, mut released, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        let mut reports = Vec::new();
        for (trigger, refusal) in refused {
            let attempt = trigger.dispatch.attempt;
            tracing::warn!(
                run_id = %attempt.run,
                attempt = attempt.attempt,
                error = %refusal,
                "broker refused a trigger; the run is retried, or fails if the trigger is too large"
            );
            match refusal {
                Refusal::TooLarge { .. } => {
                    let message = format!("failed to publish the trigger: {refusal}");
                    reports.push(attempt_ended(attempt, OutcomeKind::Failed, now, message));
                    failed.push(trigger);
                }
                Refusal::Full { .. } | Refusal::NoQueue(_) if !trigger.maybe_published => {
                    released.push(trigger);
                }
                Refusal::Full { .. } | Refusal::NoQueue(_) | Refusal::Unknown { .. } => {
                    unanswered.push(trigger);
                }
            }
        }
        self.claims.add_unanswered(unanswered, retry_at);
        let Some(node) = self.claims.node() else {
            // The node that takes over finds the released and failed runs `dispatching`.
            return Ok(());
        };
        let release: Vec<AttemptId> = released.iter().map(|t| t.dispatch.attempt).collect();
        let written = self.write_refused(node, &release, retry_at, &reports).await;
        if written.is_err() {
            self.keep_uncertain(released.into_iter().chain(failed));
        }
        written
    }

    async fn write_refused(
        &self,
        node: NodeId,
        release: &[AttemptId],
        retry_at: Timestamp,
        failed: &[AttemptReport],
    ) -> Result<(), StoreError> {
        if !release.is_empty() {
            self.store
                .release_claims(node, release, Some(retry_at))
                .await?;
        }
        if !failed.is_empty() {
            let ingested = self.store.ingest_reports(failed).await?;
            self.counters.note_ended(&ingested);
        }
        Ok(())
    }
}

/// A request for an attempt that was marked before.
fn marked_before(dispatch: &DispatchRequest) -> DispatchRequest {
    let mut dispatch = dispatch.clone();
    if let Some(place) = &mut dispatch.lane {
        place.maybe_published = true;
    }
    dispatch
}
