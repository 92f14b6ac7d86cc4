//! Reconcile: compares the attempts that executors should hold with those that they report to hold.
//!
//! It repairs the loss of a queue with its broker, of an ack in a crash, and of a journal with its disk. A missing
//! attempt that has not started is published again, as the same attempt, to the same executor. The executor ignores a
//! repeated trigger. A missing attempt that may have started ends `lost`, and the job's `on_lost` decides what follows
//! (G5). One whose trigger was published too often ends `failed`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cueline_broker::{Broker, QueueId};
use cueline_model::{AttemptId, ExecutorId, OutcomeKind, RunId};
use cueline_runtime::{Activator, Duty, Next};
use cueline_store::{AttemptReport, ErrorKind, OutstandingAttempt, Store, StoreError};

use super::holdings::{BATCH, Holdings, Missing};
use super::not_held::NotHeld;
use super::republish_limit::{RepublishLimit, published_too_often};
use super::results_queue::ResultsQueue;
use crate::claims::NodeClaims;
use crate::counters::{Counters, add};
use crate::database_clock::DatabaseClock;
use crate::error::EngineError;
use crate::scheduler_report::attempt_ended;

/// Publishes missing attempts again.
#[derive(Clone)]
pub(crate) struct Reconciler {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) claims: Arc<NodeClaims>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) holdings: Holdings,
}

/// Compares all attempts in turn, a batch at a time.
pub(crate) struct Reconcile {
    pub(crate) reconciler: Reconciler,
    pub(crate) broker: Broker,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) claim: Activator,
    pub(crate) older_than_ms: u64,
    /// The next turn continues after this run.
    pub(crate) after: Option<RunId>,
    pub(crate) not_held: NotHeld,
    pub(crate) limit: RepublishLimit,
}

const WHY_LOST: &str = "its executor no longer knows it; its state directory was lost, or it has forgotten the attempt";

impl Duty for Reconcile {
    type Error = EngineError;

    fn name(&self) -> &'static str {
        "reconcile"
    }

    async fn activate(&mut self) -> Result<Next, EngineError> {
        let every = Duration::from_millis((self.older_than_ms / 3).max(100));
        let outstanding = self.list(self.older_than_ms, self.after).await?;
        let may_be_more = outstanding.len() >= BATCH;
        let last = outstanding.last().map(|o| o.attempt.run);
        self.after = last.filter(|_| may_be_more);
        self.compare(outstanding, self.older_than_ms).await?;
        Ok(if may_be_more {
            Next::Now
        } else {
            Next::After(every)
        })
    }
}

impl Reconcile {
    /// Compares the first batch of attempts queued more than `older_than_ms` ago. Returns the number published again.
    pub(crate) async fn compare_older_than(
        &mut self,
        older_than_ms: u64,
    ) -> Result<usize, EngineError> {
        let outstanding = self.list(older_than_ms, None).await?;
        self.compare(outstanding, older_than_ms).await
    }

    /// Lists attempts to compare. The results queue comes first: results that were ingested before the look have
    /// changed what the store lists.
    async fn list(
        &mut self,
        older_than_ms: u64,
        after: Option<RunId>,
    ) -> Result<Vec<OutstandingAttempt>, EngineError> {
        if !self.not_held.is_empty() {
            self.look_at_results().await?;
        }
        let store = &self.reconciler.store;
        Ok(store
            .outstanding_attempts(older_than_ms, None, after, BATCH)
            .await?)
    }

    async fn look_at_results(&mut self) -> Result<(), EngineError> {
        let queue = QueueId::Results;
        let stats = self.broker.stats(std::slice::from_ref(&queue)).await?;
        let counters = &self.reconciler.counters;
        let ingested = counters.ingested_messages.load(Ordering::Relaxed);
        if let Some(results) = ResultsQueue::of(&stats, ingested) {
            self.not_held.look_at_results(results, self.clock.now());
        }
        Ok(())
    }

    /// Compares attempts. Returns the number published again.
    ///
    /// An executor that has just returned is left out. What was delivered to it before its absence, or in it, may still be
    /// on its way, and some products count only their own deliveries.
    async fn compare(
        &mut self,
        mut outstanding: Vec<OutstandingAttempt>,
        wait_ms: u64,
    ) -> Result<usize, EngineError> {
        // Those that are left out are listed too, so that what was found about them before counts no longer.
        let listed: Vec<AttemptId> = outstanding.iter().map(|o| o.attempt).collect();
        let (registry, now) = (&self.reconciler.holdings.registry, self.clock.now());
        let is_settled = |executor: &ExecutorId| {
            let alive_ms = registry.alive_ms(executor, now);
            alive_ms.is_some_and(|ms| ms >= wait_ms.cast_signed())
        };
        outstanding.retain(|o| is_settled(&o.executor));
        let missing = self.reconciler.missing(outstanding).await?;
        let republished = self.republish(missing.not_started).await?;
        let now = self.clock.now();
        let may_have_started = &missing.may_have_started;
        let lost = self
            .not_held
            .compare(&listed, may_have_started, now, wait_ms);
        if !lost.is_empty() {
            let ended = |attempt| attempt_ended(attempt, OutcomeKind::Lost, now, WHY_LOST);
            let reports: Vec<_> = lost.into_iter().map(ended).collect();
            self.reconciler.end(&reports).await?;
            tracing::warn!(
                count = reports.len(),
                "executors no longer knew attempts that may have started; ended them as lost. Check the disks and state directories of the workers"
            );
            self.claim.wake();
        }
        Ok(republished)
    }

    /// Publishes missing attempts again. Those at the limit end `failed` instead. Returns the number published again.
    async fn republish(&mut self, missing: Vec<AttemptId>) -> Result<usize, EngineError> {
        let (mut again, mut reports) = (Vec::with_capacity(missing.len()), Vec::new());
        for attempt in missing {
            match self.published_too_often(attempt).await? {
                Some(times) => {
                    let message = format!(
                        "its trigger was published {times} times and never accepted: its executor did not hold the attempt after any of them"
                    );
                    let now = self.clock.now();
                    reports.push(attempt_ended(attempt, OutcomeKind::Failed, now, message));
                }
                None => again.push(attempt),
            }
        }
        if !reports.is_empty() {
            self.reconciler.end(&reports).await?;
            tracing::warn!(
                count = reports.len(),
                "triggers were published again and again and never accepted; ended their attempts. Check the dead letters, and the disks and clocks of the workers"
            );
            self.claim.wake();
        }
        self.limit.note(&again);
        self.reconciler.publish_again(&again).await
    }

    /// How often the attempt was published, if that is the limit. Reads the run only if this node has published the
    /// attempt again before.
    async fn published_too_often(&self, attempt: AttemptId) -> Result<Option<usize>, EngineError> {
        if !self.limit.is_noted(attempt) {
            return Ok(None);
        }
        match self.reconciler.store.run(attempt.run).await {
            Ok(detail) => Ok(published_too_often(&detail.timeline, attempt)),
            Err(e) if e.kind() == ErrorKind::Transient => Err(e.into()),
            // The store decides whether the run can be published again.
            Err(_) => Ok(None),
        }
    }
}

impl Reconciler {
    /// Publishes again the attempts that their executor does not hold and that have not started, however often they were
    /// published before. Returns their number.
    pub(crate) async fn republish_missing(
        &self,
        outstanding: Vec<OutstandingAttempt>,
    ) -> Result<usize, EngineError> {
        let missing = self.missing(outstanding).await?;
        self.publish_again(&missing.not_started).await
    }

    /// Asks all executors before anything is published: an attempt in a queue is not in a journal yet. A node without a
    /// lease asks for nothing.
    async fn missing(&self, outstanding: Vec<OutstandingAttempt>) -> Result<Missing, EngineError> {
        if self.claims.node().is_none() || outstanding.is_empty() {
            return Ok(Missing::default());
        }
        self.holdings.missing(outstanding).await
    }

    /// Ends attempts that this scheduler has judged.
    async fn end(&self, reports: &[AttemptReport]) -> Result<(), StoreError> {
        let ingested = self.store.ingest_reports(reports).await?;
        self.counters.note_ended(&ingested);
        Ok(())
    }

    async fn publish_again(&self, attempts: &[AttemptId]) -> Result<usize, EngineError> {
        let Some(node) = self.claims.node() else {
            return Ok(0);
        };
        let reason = "its executor did not hold it; published again";
        let mut republished = 0;
        for batch in attempts.chunks(BATCH) {
            let taken = self.store.reclaim_attempts(node, batch, reason).await;
            let runs = self.claims.note_uncertain_result(taken)?;
            add(&self.counters.reconciled, runs.len());
            republished += runs.len();
            self.claims.schedule(runs);
        }
        if republished > 0 {
            tracing::warn!(
                count = republished,
                "triggers were lost on the way; publishing them again. Check for lost disks and queues"
            );
        }
        Ok(republished)
    }
}
