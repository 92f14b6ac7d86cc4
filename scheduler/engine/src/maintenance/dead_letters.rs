//! Moves dead letters from the broker's queue into the store, where operators read and replay them.

use std::fmt::Write as _;
use std::sync::Arc;

use cueline_broker::{Broker, DeadLetter, Delivery, QueueId, Settlement};
use cueline_model::Timestamp;
use cueline_runtime::Stop;
use cueline_store::{NewDeadLetter, Store};
use md5::{Digest as _, Md5};

use crate::database_clock::DatabaseClock;
use crate::error::EngineError;
use crate::queue_consumer::{QueueConsumer, settle_all};

pub(crate) struct DeadLetters {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) broker: Broker,
    pub(crate) clock: Arc<DatabaseClock>,
}

/// Messages fetched at once.
const BATCH: usize = 100;

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
        let letters: Vec<NewDeadLetter> = batch.iter().map(|d| letter(d, now)).collect();
        for letter in &letters {
            tracing::warn!(
                queue = %letter.queue,
                topic = %letter.topic,
                reason = %letter.reason,
                "message became a dead letter; `cueline dlq` lists, replays and deletes dead letters"
            );
        }
        self.store.insert_dead_letters(&letters).await?;
        settle_all(&self.broker, &Self::QUEUE, batch, Settlement::Ack).await?;
        Ok(batch.len())
    }
}

fn letter(delivery: &Delivery, now: Timestamp) -> NewDeadLetter {
    let key = key(&delivery.payload);
    match DeadLetter::decode(&delivery.payload) {
        Ok(dead) => NewDeadLetter {
            key,
            queue: dead.queue,
            topic: dead.topic,
            reason: dead.reason,
            at: Timestamp::from_millis(dead.at_ms),
            payload: dead.payload.to_vec(),
        },
        Err(e) => NewDeadLetter {
            key,
            queue: QueueId::Dead.to_string(),
            topic: delivery.topic.clone(),
            reason: format!("published to the dead-letter queue by another program: {e}"),
            at: now,
            payload: delivery.payload.to_vec(),
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
