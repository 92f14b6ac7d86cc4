//! Moves dead letters from the broker's queue into the store, where operators read and replay them. Ends the attempts
//! of refused triggers.

use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Broker, Delivery, QueueId, Settlement};
use cueline_model::Timestamp;
use cueline_runtime::{Activator, Stop};
use cueline_store::{AttemptReport, ErrorKind, NewDeadLetter, Store, StoreError};

use super::received_letter::{LetterReader, ReceivedLetter};
use super::refused_triggers::RefusedTriggers;
use crate::counters::Counters;
use crate::database_clock::DatabaseClock;
use crate::error::EngineError;
use crate::origin::forged::Forged;
use crate::origin::forged_messages::{ForgedKind, ForgedMessages};
use crate::origin::origins::Origins;
use crate::queue_consumer::QueueConsumer;
use crate::refused_messages::{LetterOrigin, RefusedMessages, key, with_payload};

pub(crate) struct DeadLetters {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) broker: Broker,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) claim: Activator,
    pub(crate) counters: Arc<Counters>,
    pub(crate) origins: Origins,
    pub(crate) forged: Arc<ForgedMessages>,
    pub(crate) letters: RefusedMessages,
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
        let now = self.clock.now();
        let read = self.read(batch, now).await?;
        let decisions = unless_transient(self.refused.decide(&read).await)?;
        let mut letters: Vec<NewDeadLetter> = Vec::new();
        let mut settlements = Vec::with_capacity(batch.len());
        let mut forged: Vec<&Forged> = Vec::new();
        let mut unverified: Vec<String> = Vec::new();
        for (position, (delivery, read)) in batch.iter().zip(&read).enumerate() {
            let settlement = if decisions.undecided.contains(&position) {
                Settlement::Retry(UNDECIDED_WAIT)
            } else {
                let letter = letter(delivery, read, now);
                if letter.origin.is_none() && read.forged.is_none() {
                    unverified.push(letter.reason.clone());
                }
                letters.push(letter);
                forged.extend(read.forged.as_ref());
                Settlement::Ack
            };
            settlements.push((delivery.receipt, settlement));
        }
        // Each step has no effect when it is repeated after a crash.
        self.letters.keep(&letters).await?;
        unless_transient(self.end_refused(&decisions.reports).await)?;
        self.broker.settle(&Self::QUEUE, &settlements).await?;
        for why in forged {
            self.forged.note(ForgedKind::DeadLetter, why);
        }
        for reason in unverified {
            self.forged.note(ForgedKind::UnverifiedLetter, &reason);
        }
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
    /// Verifies the seal of each letter, once.
    async fn read(
        &self,
        batch: &[Delivery],
        now: Timestamp,
    ) -> Result<Vec<ReceivedLetter>, StoreError> {
        let payloads = batch.iter().map(|delivery| &delivery.payload[..]);
        if self.origins.names_unknown_key(payloads, now) {
            self.origins.learn_keys().await?;
        }
        let reader = LetterReader {
            origins: &self.origins,
            signer: &self.refused.signer,
            store_id: self.refused.store_id,
            now,
        };
        let letters = batch.iter().map(|delivery| reader.read(delivery));
        Ok(letters.collect())
    }

    async fn end_refused(&self, reports: &[AttemptReport]) -> Result<(), StoreError> {
        if reports.is_empty() {
            return Ok(());
        }
        let ingested = self.store.ingest_reports(reports).await?;
        self.counters.note_ended(&ingested);
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

fn letter(delivery: &Delivery, received: &ReceivedLetter, now: Timestamp) -> NewDeadLetter {
    // The payload has the time, so different letters differ.
    let key = key(&[&delivery.payload]);
    let LetterOrigin { origin, namespace } = received
        .origin
        .as_ref()
        .map(LetterOrigin::executor)
        .unwrap_or_default();
    match &received.letter {
        Ok(dead) => {
            let letter = NewDeadLetter {
                key,
                queue: dead.queue.clone(),
                topic: dead.topic.clone(),
                reason: dead.reason.clone(),
                origin,
                namespace,
                at: Timestamp::from_millis(dead.at_ms),
                payload: Vec::new(),
            };
            with_payload(letter, &dead.payload)
        }
        Err(e) => {
            let letter = NewDeadLetter {
                key,
                queue: QueueId::Dead.to_string(),
                topic: delivery.topic.clone(),
                reason: format!("published to the dead-letter queue by another program: {e}"),
                origin: None,
                namespace: None,
                at: now,
                payload: Vec::new(),
            };
            with_payload(letter, &delivery.payload)
        }
    }
}
