//! Dead letters: from the broker's queue into the store, where people look at them.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{DeadLetter, Delivery, QueueId, Receipt, Settlement};
use cueline_model::Timestamp;
use cueline_runtime::{Backoff, Stop};
use cueline_store::NewDeadLetter;
use md5::{Digest as _, Md5};

use crate::error::StageError;
use crate::shared::Shared;

/// Taken at once.
const BATCH: usize = 100;

/// Keeps dead letters until the stop.
pub(crate) async fn run(shared: Arc<Shared>, stop: Stop) {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
    while !stop.is_soft() {
        let turn = tokio::select! {
            turn = once(&shared, Duration::from_secs(5)) => turn,
            () = stop.soft() => return,
        };
        match turn {
            Ok(_) => backoff.reset(),
            Err(e) => {
                let wait = backoff.next_wait();
                tracing::error!(error = %e, wait_ms = wait.as_millis(), "failed to keep dead letters; trying again");
                tokio::time::sleep(wait).await;
            }
        }
    }
}

/// Keeps what has arrived, waiting up to `wait` for it; how many messages there were.
pub(crate) async fn once(shared: &Shared, wait: Duration) -> Result<usize, StageError> {
    let batch = shared.broker.fetch(&QueueId::Dead, BATCH, wait).await?;
    if batch.is_empty() {
        return Ok(0);
    }
    let now = shared.now();
    let letters: Vec<NewDeadLetter> = batch.iter().map(|d| letter(d, now)).collect();
    for letter in &letters {
        tracing::warn!(queue = %letter.queue, topic = %letter.topic, reason = %letter.reason, "a message went to the dead letters");
    }
    shared.store.insert_dead_letters(&letters).await?;
    let acks: Vec<(Receipt, Settlement)> =
        batch.iter().map(|d| (d.receipt, Settlement::Ack)).collect();
    shared.broker.settle(&QueueId::Dead, &acks).await?;
    Ok(batch.len())
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
            reason: format!("put into the dead letters by somebody else: {e}"),
            at: now,
            payload: delivery.payload.to_vec(),
        },
    }
}

/// The same for the same bytes, which hold the time: a second delivery is recognised by it. Nothing hangs on its strength.
fn key(payload: &[u8]) -> String {
    Md5::digest(payload)
        .iter()
        .fold(String::with_capacity(32), |mut text, byte| {
            // Writing to a text cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}
