//! Ingest: applies reports of executors to runs.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Broker, Delivery, QueueId, Receipt, Settlement};
use cueline_model::{ExecutorId, GroupName, NameError, StoreId};
use cueline_protocol::{DecodeError, ReportMessage, decode_reports};
use cueline_runtime::{Activator, BurstGate, Linger, Stop};
use cueline_store::{AttemptReport, ErrorKind, Store, StoreError};
use tokio::time::{Instant, timeout_at};

use super::burst;
use crate::counters::{Counters, add};
use crate::database_clock::DatabaseClock;
use crate::error::EngineError;
use crate::queue_consumer::{QueueConsumer, fetch, settle_all};
use crate::store_mismatch::store_mismatch;

/// Messages fetched at once. Each may hold up to 100 reports.
const MAX_MESSAGES: usize = 256;
/// After a failure of the store, the messages are delivered again after this time.
const RETRY_AFTER: Duration = Duration::from_millis(200);

pub(crate) struct Ingest {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) broker: Broker,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) store_id: StoreId,
    pub(crate) burst_gate: Arc<BurstGate>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) claim: Activator,
    pub(crate) poll_ms: u64,
    /// The most reports in one transaction.
    pub(crate) batch: usize,
}

impl QueueConsumer for Ingest {
    const QUEUE: QueueId = QueueId::Results;
    const LINGER: Option<Linger> = Some(burst::WRITE);

    fn broker(&self) -> &Broker {
        &self.broker
    }

    fn max_messages(&self) -> usize {
        self.batch.clamp(1, MAX_MESSAGES)
    }

    /// Returns the number of reports.
    async fn process(&self, batch: &[Delivery], _stop: &Stop) -> Result<usize, EngineError> {
        self.burst_gate.wait_until_open().await;
        if cueline_runtime::planted!("slow_results") {
            // All nodes at the same time.
            let ms = self
                .clock
                .now()
                .as_millis()
                .rem_euclid(20_000)
                .cast_unsigned();
            tokio::time::sleep(Duration::from_millis(14_000_u64.saturating_sub(ms))).await;
        }
        let (mut count, mut rest) = (0, batch);
        while !rest.is_empty() {
            let mut part = self.read_batch(rest);
            if let Err(e) = self.ingest_batch(&mut part).await {
                let retry = Settlement::Retry(RETRY_AFTER);
                settle_all(&self.broker, &Self::QUEUE, rest, retry).await?;
                return Err(e);
            }
            self.broker.settle(&Self::QUEUE, &part.settlements).await?;
            let messages = part.settlements.len();
            add(&self.counters.ingested_messages, messages);
            count += part.reports.len().max(messages);
            rest = &rest[messages..];
        }
        Ok(count)
    }
}

/// The first messages of a fetch, enough to fill a transaction.
struct Batch {
    reports: Vec<AttemptReport>,
    /// One for each message.
    settlements: Vec<(Receipt, Settlement)>,
    /// For each message, the number of reports up to its end.
    ends: Vec<usize>,
}

impl Batch {
    /// Makes the message of this report a dead letter.
    fn refuse(&mut self, report: usize, why: &StoreError) {
        let message = self.ends.partition_point(|end| *end <= report);
        if let Some((_, settlement)) = self.settlements.get_mut(message)
            && *settlement == Settlement::Ack
        {
            *settlement = Settlement::Dead(why.to_string());
        }
    }
}

impl Ingest {
    /// Ingests until the queue is empty, for at most `at_most`. With other nodes active the queue may never be
    /// empty.
    pub(crate) async fn finish(&self, at_most: Duration) {
        let give_up_at = Instant::now() + at_most;
        while Instant::now() < give_up_at {
            let fetched = timeout_at(give_up_at, fetch(self, Duration::ZERO)).await;
            let Ok(Ok(batch)) = fetched else { return };
            if batch.is_empty() || self.process(&batch, &Stop::new()).await.is_err() {
                return;
            }
        }
    }

    /// Applies all reports in one transaction. If the store cannot keep what some report says, it applies the others,
    /// and the messages of those reports become dead letters: a retry would fail for ever, and would stop all results
    /// behind it.
    ///
    /// A refused part is halved until the report is alone. So n reports take less than 2n transactions, and with one
    /// such report about 2 log n. The reports are applied in their order.
    async fn ingest_batch(&self, batch: &mut Batch) -> Result<(), EngineError> {
        let whole = 0..batch.reports.len();
        let mut parts: Vec<Range<usize>> = std::iter::once(whole).collect();
        while let Some(part) = parts.pop() {
            match self.apply(&batch.reports[part.clone()]).await {
                Ok(()) => {}
                Err(why) if why.kind() != ErrorKind::Invalid => return Err(why.into()),
                Err(why) if part.len() < 2 => batch.refuse(part.start, &why),
                Err(_) => {
                    let middle = part.start + part.len() / 2;
                    // The earlier half comes first.
                    parts.extend([middle..part.end, part.start..middle]);
                }
            }
        }
        Ok(())
    }

    async fn apply(&self, reports: &[AttemptReport]) -> Result<(), StoreError> {
        let ingested = self.store.ingest_reports(reports).await?;
        // A retry or a child run may be due before the claim stage polls the store again.
        let next_poll = self.clock.now().plus_ms(self.poll_ms);
        if ingested.next_due_at.is_some_and(|due| due <= next_poll) {
            self.claim.wake();
        }
        Ok(())
    }

    /// Reads messages until their reports fill a batch.
    fn read_batch(&self, messages: &[Delivery]) -> Batch {
        let mut batch = Batch {
            reports: Vec::new(),
            settlements: Vec::new(),
            ends: Vec::new(),
        };
        for delivery in messages {
            if batch.reports.len() >= self.batch.max(1) {
                break;
            }
            let mut refused = None;
            for message in decode_reports(&delivery.payload) {
                match self.read(message) {
                    Ok(report) => batch.reports.push(report),
                    Err(reason) => refused = refused.or(Some(reason)),
                }
            }
            // The readable reports of a dead letter are applied too. After a replay they are applied again without
            // effect.
            let settlement = refused.map_or(Settlement::Ack, Settlement::Dead);
            batch.settlements.push((delivery.receipt, settlement));
            batch.ends.push(batch.reports.len());
        }
        batch
    }

    fn read(&self, message: Result<ReportMessage, DecodeError>) -> Result<AttemptReport, String> {
        let message = message.map_err(|e| e.to_string())?;
        if let Some(mismatch) = store_mismatch(self.store_id, message.store) {
            return Err(format!("failed to ingest the report: {mismatch}"));
        }
        // A message without a seal does not name the group.
        let group: GroupName = "default".parse().map_err(|e: NameError| e.to_string())?;
        Ok(AttemptReport {
            attempt: message.attempt_id(),
            executor: Some(ExecutorId {
                group,
                name: message.executor,
            }),
            event: message.event,
        })
    }
}
