//! Moves dead letters from the broker's queue into the store, where operators read and replay them. Ends the attempts
//! of refused triggers.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Broker, BrokerError, DeadLetter, Delivery, QueueId, Settlement};
use cueline_model::Timestamp;
use cueline_runtime::{Activator, Stop};
use cueline_store::{AttemptReport, ErrorKind, NewDeadLetter, Store, StoreError};
use md5::{Digest as _, Md5};

use super::refused_triggers::RefusedTriggers;
use crate::database_clock::DatabaseClock;
use crate::error::EngineError;
use crate::queue_consumer::QueueConsumer;

pub(crate) struct DeadLetters {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) broker: Broker,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) claim: Activator,
    pub(crate) refused: RefusedTriggers,
}

/// Messages fetched at once.
const BATCH: usize = 100;
/// A letter that cannot be decided yet is delivered again after this time. Until then it is not stored, and cannot be
/// replayed.
const UNDECIDED_WAIT: Duration = Duration::from_secs(1);

impl QueueConsumer for DeadLetters {
    const QUEUE: QueueId = QueueId::Dead;

    fn broker(&self) -> &Broker {
        &self.broker
    }

    fn max_messages(&self) -> usize {
        BATCH
    }

    async fn process(&self, batch: &[Delivery], _stop: &Stop) -> Result<usize, EngineError> {
        let read = batch.iter().map(|d| DeadLetter::decode(&d.payload));
        let read: Vec<Result<DeadLetter, BrokerError>> = read.collect();
        let decisions = unless_transient(self.refused.decide(&read).await)?;
        let now = self.clock.now();
        let mut letters: Vec<NewDeadLetter> = Vec::new();
        let mut settlements = Vec::with_capacity(batch.len());
        for (position, (delivery, read)) in batch.iter().zip(&read).enumerate() {
            let settlement = if decisions.undecided.contains(&position) {
                Settlement::Retry(UNDECIDED_WAIT)
            } else {
                letters.push(letter(delivery, read, now));
                Settlement::Ack
            };
            settlements.push((delivery.receipt, settlement));
        }
        for letter in &letters {
            tracing::warn!(
                queue = %letter.queue,
                topic = %letter.topic,
                reason = %letter.reason,
                "message became a dead letter; `cueline dlq` lists, replays and deletes dead letters"
            );
        }
        // Each step has no effect when it is repeated after a crash.
        if !letters.is_empty() {
            self.store.insert_dead_letters(&letters).await?;
        }
        unless_transient(self.end_refused(&decisions.reports).await)?;
        self.broker.settle(&Self::QUEUE, &settlements).await?;
        Ok(letters.len())
    }
}

/// One run that this node cannot read must not stop the queue.
fn unless_transient<T: Default>(result: Result<T, StoreError>) -> Result<T, StoreError> {
    match result {
        Err(error) if error.kind() != ErrorKind::Transient => {
            tracing::error!(
                %error,
                "failed to end attempts whose triggers were refused; they are published again. Check the database and the version of this scheduler"
            );
            Ok(T::default())
        }
        result => result,
    }
}

impl DeadLetters {
    async fn end_refused(&self, reports: &[AttemptReport]) -> Result<(), StoreError> {
        if reports.is_empty() {
            return Ok(());
        }
        let ingested = self.store.ingest_reports(reports).await?;
        tracing::warn!(
            count = ingested.ended + ingested.rescheduled,
            "ended attempts whose triggers were refused; check the trusted keys, the clock and the version of their executors"
        );
        if ingested.next_due_at.is_some() {
            self.claim.wake();
        }
        Ok(())
    }
}

fn letter(
    delivery: &Delivery,
    read: &Result<DeadLetter, BrokerError>,
    now: Timestamp,
) -> NewDeadLetter {
    let key = key(&delivery.payload);
    match read {
        Ok(dead) => NewDeadLetter {
            key,
            queue: dead.queue.clone(),
            topic: dead.topic.clone(),
            reason: dead.reason.clone(),
            at: Timestamp::from_millis(dead.at_ms),
            payload: dead.payload.to_vec(),
            origin: None,
        },
        Err(e) => NewDeadLetter {
            key,
            queue: QueueId::Dead.to_string(),
            topic: delivery.topic.clone(),
            reason: format!("published to the dead-letter queue by another program: {e}"),
            at: now,
            payload: delivery.payload.to_vec(),
            origin: None,
        },
    }
}

/// A hash of the payload, by which the store ignores a second delivery of the same dead letter. The payload includes
/// the time, so different dead letters differ. The hash needs no cryptographic strength.
fn key(payload: &[u8]) -> String {
    Md5::digest(payload)
        .iter()
        .fold(String::with_capacity(32), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}
