//! Stores the messages that this scheduler refuses as dead letters.
//!
//! They go straight into the store. The broker's dead-letter queue is for workers alone, so what it holds is verified.

use std::fmt::Write as _;
use std::sync::Arc;

use cueline_broker::{Delivery, QueueId};
use cueline_model::ExecutorId;
use cueline_store::{NewDeadLetter, Store, StoreError};
use md5::{Digest as _, Md5};

use crate::counters::{Counters, add};
use crate::database_clock::DatabaseClock;

/// The origin of messages that schedulers took from a queue of their own, or from one that they drained.
pub(crate) const BY_SCHEDULER: &str = "scheduler";
/// The most bytes of messages in one transaction, unless a single message has more.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// The origin of messages that this executor has sealed.
pub(crate) fn by_executor(executor: &ExecutorId) -> String {
    format!("executor {executor}")
}

/// Stores refused messages.
#[derive(Clone)]
pub(crate) struct RefusedMessages {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) counters: Arc<Counters>,
}

impl RefusedMessages {
    /// The dead letter of a message in this queue. Without an `origin` it cannot be replayed.
    ///
    /// Its key is that of this delivery: equal messages are different letters, and an operator may replay one while it is
    /// refused again. If the message is delivered again after a crash, there are two letters.
    pub(crate) fn letter(
        &self,
        queue: &QueueId,
        delivery: &Delivery,
        reason: String,
        origin: Option<String>,
    ) -> NewDeadLetter {
        let at = self.clock.now();
        let queue = queue.to_string();
        let receipt = delivery.receipt.0;
        let head = format!(
            "{queue}\n{}\n{}\n{receipt}\n",
            delivery.topic,
            at.as_millis()
        );
        NewDeadLetter {
            key: key(&[head.as_bytes(), &delivery.payload]),
            queue,
            topic: delivery.topic.clone(),
            reason,
            origin,
            at,
            payload: delivery.payload.to_vec(),
        }
    }

    /// Stores these letters. Logs those with an origin. The others are noted as forged, however many there are.
    pub(crate) async fn keep(&self, letters: &[NewDeadLetter]) -> Result<(), StoreError> {
        for letter in letters.iter().filter(|letter| letter.origin.is_some()) {
            log(letter);
        }
        let mut rest = letters;
        while !rest.is_empty() {
            let (part, later) = rest.split_at(fitting(rest));
            self.store.insert_dead_letters(part).await?;
            add(&self.counters.dead_letters, part.len());
            rest = later;
        }
        Ok(())
    }
}

pub(crate) fn log(letter: &NewDeadLetter) {
    tracing::warn!(
        queue = %letter.queue,
        topic = %letter.topic,
        reason = %letter.reason,
        "message became a dead letter; `cueline dlq` lists, replays and deletes dead letters"
    );
}

/// A hash by which the store ignores a second delivery of the same dead letter. It needs no cryptographic strength.
pub(crate) fn key(parts: &[&[u8]]) -> String {
    let mut hash = Md5::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize()
        .iter()
        .fold(String::with_capacity(32), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// The number of letters in the next transaction.
fn fitting(letters: &[NewDeadLetter]) -> usize {
    let mut bytes = 0_usize;
    let fits = letters.iter().take_while(|letter| {
        bytes = bytes.saturating_add(letter.payload.len());
        bytes <= MAX_BYTES
    });
    fits.count().max(1)
}

#[cfg(test)]
mod tests {
    use cueline_model::Timestamp;

    use super::*;

    fn letter(bytes: usize) -> NewDeadLetter {
        NewDeadLetter {
            key: String::new(),
            queue: String::new(),
            topic: String::new(),
            reason: String::new(),
            origin: None,
            at: Timestamp::from_millis(0),
            payload: vec![0; bytes],
        }
    }

    #[test]
    fn large_letters_are_stored_in_parts() {
        let sizes =
            |sizes: &[usize]| fitting(&sizes.iter().map(|n| letter(*n)).collect::<Vec<_>>());
        assert_eq!(sizes(&[1, 2, 3]), 3);
        assert_eq!(sizes(&[MAX_BYTES / 2, MAX_BYTES / 2, 1]), 2);
        assert_eq!(sizes(&[MAX_BYTES + 1, 1]), 1);
        assert_eq!(sizes(&[1, MAX_BYTES]), 1);
    }
}
