//! Ingest: verifies who has sent results, and applies their reports to runs.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Broker, Delivery, QueueId, Settlement};
use cueline_model::{AttemptEvent, StoreId};
use cueline_protocol::origin::Purpose;
use cueline_runtime::{Activator, BurstGate, Linger, Stop};
use cueline_store::{AttemptReport, ErrorKind, IngestSummary, Store, StoreError};
use tokio::time::{Instant, timeout_at};

use super::burst;
use super::report_batch::{Batch, Message};
use crate::claims::NodeClaims;
use crate::counters::{Counters, add};
use crate::database_clock::DatabaseClock;
use crate::error::EngineError;
use crate::liveness::registry::Registry;
use crate::origin::forged_messages::{ForgedKind, ForgedMessages};
use crate::origin::origins::Origins;
use crate::queue_consumer::{QueueConsumer, fetch, settle_all};
use crate::refused_messages::RefusedMessages;
use crate::route::Outstanding;

/// Messages fetched at once. Each may hold up to 400 reports.
const MAX_MESSAGES: usize = 256;
/// Signatures verified without giving other tasks a turn. Each one takes up to a tenth of a millisecond.
const VERIFIED_AT_ONCE: usize = 32;
/// After a failure of the store, the messages are delivered again after this time.
const RETRY_AFTER: Duration = Duration::from_millis(200);

pub(crate) struct Ingest {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) broker: Broker,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) store_id: StoreId,
    pub(crate) burst_gate: Arc<BurstGate>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) origins: Origins,
    pub(crate) forged: Arc<ForgedMessages>,
    pub(crate) refused: RefusedMessages,
    pub(crate) registry: Arc<Registry>,
    pub(crate) outstanding: Arc<Outstanding>,
    pub(crate) claim: Activator,
    pub(crate) claims: Arc<NodeClaims>,
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
        let redelivered = batch.iter().filter(|delivery| delivery.redelivered);
        add(&self.counters.redelivered_messages, redelivered.count());
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
        let messages = match self.open_all(batch).await {
            Ok(messages) => messages,
            Err(e) => {
                self.retry(batch).await?;
                return Err(e.into());
            }
        };
        let (mut count, mut rest) = (0, &messages[..]);
        while !rest.is_empty() {
            let mut part = Batch::read(rest, self.batch, self.store_id);
            let read = part.messages();
            if let Err(e) = self.ingest_batch(&mut part, &rest[..read]).await {
                let left = &batch[batch.len() - rest.len()..];
                self.retry(left).await?;
                return Err(e);
            }
            let done = &batch[batch.len() - rest.len()..][..read];
            settle_all(&self.broker, &Self::QUEUE, done, Settlement::Ack).await?;
            add(&self.counters.ingested_messages, read);
            count += part.reports.len().max(read);
            rest = &rest[read..];
        }
        Ok(count)
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

    async fn retry(&self, batch: &[Delivery]) -> Result<(), EngineError> {
        let retry = Settlement::Retry(RETRY_AFTER);
        Ok(settle_all(&self.broker, &Self::QUEUE, batch, retry).await?)
    }

    /// Verifies the seal of each message, once.
    async fn open_all<'a>(&self, batch: &'a [Delivery]) -> Result<Vec<Message<'a>>, StoreError> {
        let now = self.clock.now();
        let payloads = batch.iter().map(|delivery| &delivery.payload[..]);
        if self.origins.names_unknown_key(payloads, now) {
            self.origins.learn_keys().await?;
        }
        let mut messages = Vec::with_capacity(batch.len());
        for part in batch.chunks(VERIFIED_AT_ONCE) {
            messages.extend(part.iter().map(|delivery| Message {
                delivery,
                opened: self.origins.open(Purpose::Reports, &delivery.payload, now),
            }));
            tokio::task::yield_now().await;
        }
        Ok(messages)
    }

    /// Applies the reports of these messages, and stores those as dead letters that have a report which was refused.
    async fn ingest_batch(
        &self,
        batch: &mut Batch,
        messages: &[Message<'_>],
    ) -> Result<(), EngineError> {
        self.apply_in_parts(batch).await?;
        let letters = batch.letters(messages, &self.refused);
        self.refused.keep(&letters).await?;
        for forged in messages.iter().filter_map(|m| m.opened.as_ref().err()) {
            self.forged.note(ForgedKind::Reports, forged);
        }
        Ok(())
    }

    /// Applies all reports in one transaction. If the store cannot keep what some report says, it applies the others,
    /// and the messages of those reports become dead letters: a retry would fail for ever, and would stop all results
    /// behind it. So do the messages of reports about attempts of other executors.
    ///
    /// A refused part is halved until the report is alone. So n reports take less than 2n transactions, and with one
    /// such report about 2 log n. The reports are applied in their order.
    async fn apply_in_parts(&self, batch: &mut Batch) -> Result<(), EngineError> {
        let whole = 0..batch.reports.len();
        let mut parts: Vec<Range<usize>> = std::iter::once(whole).collect();
        while let Some(part) = parts.pop() {
            match self.apply(&batch.reports[part.clone()]).await {
                Ok(ingested) => self.refuse_foreign(batch, part.start, &ingested),
                Err(why) if why.kind() != ErrorKind::Invalid => return Err(why.into()),
                Err(why) if part.len() < 2 => batch.refuse(part.start, why.to_string()),
                Err(_) => {
                    let middle = part.start + part.len() / 2;
                    // The earlier half comes first.
                    parts.extend([middle..part.end, part.start..middle]);
                }
            }
        }
        Ok(())
    }

    fn refuse_foreign(&self, batch: &mut Batch, begin: usize, ingested: &IngestSummary) {
        for position in &ingested.foreign {
            let position = begin + position;
            if let Some(why) = batch.reports.get(position).map(foreign) {
                self.forged.note(ForgedKind::ForeignReport, &why);
                batch.refuse(position, format!("failed to ingest the report: {why}"));
            }
        }
    }

    async fn apply(&self, reports: &[AttemptReport]) -> Result<IngestSummary, StoreError> {
        let ingested = self.store.ingest_reports(reports).await?;
        self.counters.note_ended(&ingested);
        let started = reports.iter();
        let started = started.filter(|report| matches!(report.event, AttemptEvent::Started { .. }));
        self.counters.note_started(started.count());
        let now = self.clock.now();
        self.counters.times.note_ends(reports, &ingested, now);
        let ended = || {
            reports
                .iter()
                .filter(|report| matches!(report.event, AttemptEvent::Ended { .. }))
        };
        self.registry
            .note_ended(ended().filter_map(|report| report.executor.as_ref()));
        self.outstanding.end(ended().map(|report| report.attempt));
        self.claims.wake_lanes(&ingested.ended_jobs, now);
        self.claims.wake_limits(&ingested.ended_jobs, now);
        self.claims.wake_room();
        // A retry or a child run may be due before the claim stage polls the store again.
        let next_poll = now.plus_ms(self.poll_ms);
        if ingested.next_due_at.is_some_and(|due| due <= next_poll) {
            self.claim.wake();
        }
        Ok(ingested)
    }
}

fn foreign(report: &AttemptReport) -> String {
    let (run, attempt) = (report.attempt.run, report.attempt.attempt);
    match &report.executor {
        Some(executor) => {
            format!("attempt {attempt} of run {run} was not given to executor {executor}")
        }
        None => format!("attempt {attempt} of run {run} was not given to its sender"),
    }
}
