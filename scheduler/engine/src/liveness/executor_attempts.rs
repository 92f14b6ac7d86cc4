//! The attempts of one executor: those in its queue, and those that the store lists.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Broker, BrokerError, Delivery, QueueId, Settlement};
use cueline_model::{AttemptId, ExecutorId, OutcomeKind, StoreId};
use cueline_protocol::{Trigger, decode};
use cueline_runtime::Backoff;
use cueline_store::{
    AttemptReport, ErrorKind, NewDeadLetter, OutstandingAttempt, Store, StoreError,
};

use super::start_evidence::StartEvidence;
use crate::addresses::executor_queue;
use crate::counters::Counters;
use crate::database_clock::DatabaseClock;
use crate::error::EngineError;
use crate::queue_consumer::settle_all;
use crate::refused_messages::{LetterOrigin, RefusedMessages, namespace_of};
use crate::scheduler_report::attempt_ended;
use crate::store_mismatch::store_mismatch;

/// Reads and empties the queues of executors.
#[derive(Clone)]
pub(crate) struct ExecutorAttempts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) broker: Broker,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) store_id: StoreId,
    pub(crate) refused: RefusedMessages,
}

/// Why the attempts of drained triggers are [returned](OutcomeKind::Returned), and which of them are not.
pub(crate) struct Ending<'a> {
    pub(crate) reason: &'a str,
    /// The starts of the executor, which starts nothing more.
    pub(crate) evidence: &'a StartEvidence,
    /// The attempts that the store listed before the queue was read.
    pub(crate) listed: &'a HashMap<AttemptId, &'a OutstandingAttempt>,
}

impl Ending<'_> {
    /// An attempt is not returned if its trigger was delivered before or its start is recorded: it may have started.
    fn may_end(&self, delivery: &Delivery, trigger: &Trigger) -> bool {
        !delivery.redelivered
            && !self.evidence.has_start(trigger.attempt_id())
            && !self.may_have_lost_start(trigger)
    }

    /// Whether the trigger may be a second copy, and the log may have lost the start from the first one. The attempt then
    /// ends when the store lists it.
    fn may_have_lost_start(&self, trigger: &Trigger) -> bool {
        let attempt = trigger.attempt_id();
        let dispatched_at = match self.listed.get(&attempt) {
            Some(o) if was_confirmed_at_once(o) => return false,
            Some(o) => o.dispatched_at,
            // It was not confirmed yet, so it may have been published again and again.
            None => trigger.fire_at.minus_ms(DISPATCHED_AHEAD_MS),
        };
        self.evidence.may_have_started(attempt, dispatched_at)
    }
}

/// No attempt is marked `dispatching` this long before the fire time of its run.
const DISPATCHED_AHEAD_MS: u64 = 5_000;

/// A publish without an answer is repeated a second later, by another node later still. So an attempt that was confirmed
/// within this time of its mark was not published again by a scheduler. Both times are by the database's clock.
const REPEATED_AFTER_MS: u64 = 1_000;

/// Whether the trigger of the attempt was confirmed before a scheduler could publish it again. Only the broker port's own
/// retry, after a broken connection, is sooner.
pub(crate) fn was_confirmed_at_once(o: &OutstandingAttempt) -> bool {
    o.queued_at < o.dispatched_at.plus_ms(REPEATED_AFTER_MS)
}

/// Triggers fetched at once, and attempts ended in one transaction.
pub(crate) const BATCH: usize = 500;
/// The most batches per executor in one call. The next call continues.
pub(crate) const MAX_BATCHES: usize = 200;
/// Attempts that the store lists per page.
const PAGE: usize = 1_000;
/// The wait at an empty queue. Meanwhile the broker may return messages that a dead consumer held.
const FETCH_WAIT: Duration = Duration::from_millis(50);
/// They take about eight seconds, less than a delivery may stay unsettled.
const STORE_TRIES: usize = 12;
/// After a failure of the store, the triggers are delivered again after this time.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// The beginning of each reason for which a drain refuses a trigger. Its executor has not refused it.
pub(crate) const NOT_ROUTED_AGAIN: &str = "failed to route the trigger again: ";

impl ExecutorAttempts {
    /// The attempts that the store lists as `queued` or `running` at the executor.
    pub(crate) async fn outstanding(
        &self,
        executor: &ExecutorId,
    ) -> Result<Vec<OutstandingAttempt>, StoreError> {
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let page = self
                .store
                .outstanding_attempts(0, Some(executor), after, PAGE)
                .await?;
            let Some(last) = page.last() else { break };
            after = Some(last.attempt.run);
            let is_last = page.len() < PAGE;
            all.extend(page);
            if is_last || all.len() >= BATCH * MAX_BATCHES {
                break;
            }
        }
        Ok(all)
    }

    /// Takes triggers out of the executor's queue and ends their attempts. Stops once `is_valid` returns false: an
    /// unreachable broker may answer so late that the reason no longer applies. `count` includes the attempts that
    /// ended before an error.
    pub(crate) async fn drain(
        &self,
        executor: &ExecutorId,
        ending: &Ending<'_>,
        is_valid: impl Fn() -> bool,
        count: &mut usize,
    ) -> Result<(), EngineError> {
        let queue = executor_queue(&executor.group, &executor.name);
        let drained = self.drain_queue(&queue, ending, is_valid, count).await;
        self.stop_fetching(&queue).await;
        drained
    }

    /// Like [`drain`](Self::drain). Returns whether the queue is known to be empty.
    pub(crate) async fn drain_and_check(
        &self,
        executor: &ExecutorId,
        ending: &Ending<'_>,
        is_valid: impl Fn() -> bool,
        count: &mut usize,
    ) -> Result<bool, EngineError> {
        let queue = executor_queue(&executor.group, &executor.name);
        let drained = match self.drain_queue(&queue, ending, is_valid, count).await {
            Ok(()) => Ok(self.is_empty(&queue).await),
            Err(e) => Err(e),
        };
        self.stop_fetching(&queue).await;
        drained
    }

    /// The executor may be back. The broker would go on delivering a part of its triggers here.
    pub(crate) async fn stop_fetching(&self, queue: &QueueId) {
        if let Err(error) = self.broker.stop_fetching(queue).await {
            tracing::debug!(%queue, %error, "failed to end the deliveries of a drained queue; they end by themselves");
        }
    }

    /// Whether the queue is known to be empty. Called while this node consumes it: without a consumer, some products give
    /// the same counts for an empty queue and for one that does not answer.
    async fn is_empty(&self, queue: &QueueId) -> bool {
        match self.broker.stats(std::slice::from_ref(queue)).await {
            Ok(stats) => {
                let found = stats.of(queue);
                !stats.is_unanswered(queue) && found.is_none_or(|s| !s.may_have_messages())
            }
            Err(error) => {
                tracing::debug!(%queue, %error, "failed to count the messages of a drained queue");
                false
            }
        }
    }

    async fn drain_queue(
        &self,
        queue: &QueueId,
        ending: &Ending<'_>,
        is_valid: impl Fn() -> bool,
        count: &mut usize,
    ) -> Result<(), EngineError> {
        for _ in 0..MAX_BATCHES {
            let batch = self.fetch(queue).await?;
            if batch.is_empty() {
                break;
            }
            if !is_valid() {
                let retry = Settlement::Retry(Duration::ZERO);
                settle_all(&self.broker, queue, &batch, retry).await?;
                break;
            }
            self.end(queue, &batch, ending, count).await?;
        }
        Ok(())
    }

    /// Fetches a batch of triggers; none if the queue is empty.
    pub(crate) async fn fetch(&self, queue: &QueueId) -> Result<Vec<Delivery>, BrokerError> {
        match self.broker.fetch(queue, BATCH, FETCH_WAIT).await {
            // The broker has lost the queue.
            Err(e) if e.kind() == cueline_broker::ErrorKind::Permanent => {
                tracing::debug!(%queue, error = %e, "failed to read the queue of an executor; treating it as empty");
                Ok(Vec::new())
            }
            fetched => fetched,
        }
    }

    async fn end(
        &self,
        queue: &QueueId,
        batch: &[Delivery],
        ending: &Ending<'_>,
        count: &mut usize,
    ) -> Result<(), EngineError> {
        let mut reports = Vec::with_capacity(batch.len());
        let mut letters = Vec::new();
        for delivery in batch {
            match self.read(delivery) {
                Ok(trigger) => {
                    let attempt = trigger.attempt_id();
                    if ending.may_end(delivery, &trigger) {
                        let (kind, now) = (OutcomeKind::Returned, self.clock.now());
                        reports.push(attempt_ended(attempt, kind, now, ending.reason));
                    }
                }
                Err(refused) => letters.push(self.letter(queue, delivery, refused)),
            }
        }
        if let Err(e) = self.write(&letters, &reports).await {
            let retry = Settlement::Retry(RETRY_AFTER);
            settle_all(&self.broker, queue, batch, retry).await?;
            return Err(e.into());
        }
        *count += reports.len();
        Ok(settle_all(&self.broker, queue, batch, Settlement::Ack).await?)
    }

    async fn write(
        &self,
        letters: &[NewDeadLetter],
        reports: &[AttemptReport],
    ) -> Result<(), StoreError> {
        self.refused.keep(letters).await?;
        self.ingest(reports).await
    }

    /// The dead letter of a message in an executor's queue that is not a trigger of this store.
    pub(crate) fn letter(
        &self,
        queue: &QueueId,
        delivery: &Delivery,
        reason: String,
    ) -> NewDeadLetter {
        let origin = LetterOrigin::scheduler(namespace_of(queue));
        self.refused.letter(queue, delivery, reason, origin)
    }

    /// The trigger in a delivery, or why it is refused.
    pub(crate) fn read(&self, delivery: &Delivery) -> Result<Trigger, String> {
        let trigger: Trigger =
            decode(&delivery.payload).map_err(|e| format!("{NOT_ROUTED_AGAIN}{e}"))?;
        match store_mismatch(self.store_id, trigger.store) {
            Some(mismatch) => Err(format!("{NOT_ROUTED_AGAIN}{mismatch}")),
            None => Ok(trigger),
        }
    }

    /// Retries several times. If it gave up at once, the triggers would return to the queue and count as delivered.
    pub(crate) async fn ingest(&self, reports: &[AttemptReport]) -> Result<(), StoreError> {
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        for _ in 0..STORE_TRIES {
            match self.store.ingest_reports(reports).await {
                Err(e) if e.kind() == ErrorKind::Transient => {
                    tracing::warn!(error = %e, "failed to end drained attempts; trying again. Check the database");
                    tokio::time::sleep(backoff.next_wait()).await;
                }
                done => return done.map(|ingested| self.counters.note_ended(&ingested)),
            }
        }
        let ingested = self.store.ingest_reports(reports).await?;
        self.counters.note_ended(&ingested);
        Ok(())
    }
}
