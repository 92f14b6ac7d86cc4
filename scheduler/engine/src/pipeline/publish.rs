//! Publish: pending triggers go to their queues when they are due, in order.
//!
//! If the broker does not answer, the run stays `dispatching` and its trigger is published again until the broker
//! accepts it. A pause, edit or delete of the job waits for that. Before each retry the run is marked again. The store
//! refuses that if the run has changed since, and the trigger is dropped.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Broker, Outgoing, Refusal};
use cueline_model::{AttemptId, OutcomeKind, Timestamp};
use cueline_runtime::{BurstGate, Duty, Next};
use cueline_store::{AttemptReport, NodeId, Store, StoreError};
use tokio::sync::mpsc;

use super::burst;
use super::node_claims::{NodeClaims, PendingPublish};
use super::trigger_writer::TriggerSigner;
use crate::counters::{Counters, add};
use crate::database_clock::DatabaseClock;
use crate::error::EngineError;
use crate::scheduler_report::attempt_ended;

/// Publishes triggers that are due.
pub(crate) struct Publish {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) broker: Broker,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) claims: Arc<NodeClaims>,
    pub(crate) signer: TriggerSigner,
    pub(crate) burst_gate: Arc<BurstGate>,
    pub(crate) counters: Arc<Counters>,
    /// Attempts that the broker has accepted, for the confirm stage.
    pub(crate) confirmed: mpsc::Sender<AttemptId>,
    pub(crate) batch: usize,
}

/// A refused trigger is published again after this time.
const REFUSED_WAIT_MS: u64 = 1_000;

impl Duty for Publish {
    type Error = EngineError;

    fn name(&self) -> &'static str {
        "publish"
    }

    async fn activate(&mut self) -> Result<Next, EngineError> {
        let now = self.clock.now();
        let (due, next_due) = {
            let mut pending = self.claims.pending();
            let batch = burst::publish_batch(self.batch, pending.len());
            (pending.pop_due(now, batch), pending.next_due())
        };
        if due.is_empty() {
            let wait = next_due.map_or(Duration::from_secs(1), |due| self.clock.until(due));
            return Ok(Next::After(wait));
        }
        self.burst_gate.record_urgent(due.len());
        let due = self.still_dispatching(due).await?;
        self.publish(due, now).await?;
        Ok(Next::Now)
    }
}

impl Publish {
    async fn publish(
        &self,
        mut due: Vec<PendingPublish>,
        now: Timestamp,
    ) -> Result<(), EngineError> {
        for trigger in &mut due {
            self.signer.refresh(trigger, now);
        }
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
        let dispatches: Vec<_> = uncertain.map(|t| t.dispatch.clone()).collect();
        match self.store.begin_dispatch(node, &dispatches).await {
            Ok(marked) => {
                let marked: HashSet<AttemptId> = marked.into_iter().collect();
                Ok(due
                    .into_iter()
                    .filter(|t| !t.is_dispatch_uncertain || marked.contains(&t.dispatch.attempt))
                    .collect())
            }
            Err(e) => {
                self.claims.add_pending(due);
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
                    unanswered.push(PendingPublish {
                        due_at: retry_at,
                        ..trigger.unanswered()
                    });
                }
            }
        }
        self.claims.add_pending(unanswered);
        let Some(node) = self.claims.node() else {
            // The node that takes over finds the released and failed runs `dispatching`.
            return Ok(());
        };
        let release: Vec<AttemptId> = released.iter().map(|t| t.dispatch.attempt).collect();
        let written = self.write_refused(node, &release, retry_at, &reports).await;
        if written.is_err() {
            // The store may have released or ended the runs in spite of the error.
            let triggers = released.into_iter().chain(failed);
            self.claims.add_pending(triggers.map(|t| PendingPublish {
                is_dispatch_uncertain: true,
                ..t
            }));
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
            self.store.ingest_reports(failed).await?;
        }
        Ok(())
    }
}
