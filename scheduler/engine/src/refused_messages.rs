//! Stores the messages that this scheduler refuses as dead letters.
//!
//! They go straight into the store. The broker's dead-letter queue is for workers alone, so what it holds is verified.

use std::fmt::Write as _;
use std::sync::Arc;

use cueline_broker::{Delivery, QueueId};
use cueline_model::{ExecutorId, GroupName, Namespace};
use cueline_store::{NewDeadLetter, Store, StoreError};
use md5::{Digest as _, Md5};

use crate::counters::{Counters, add};
use crate::database_clock::DatabaseClock;

/// The origin of messages that schedulers took from a queue of their own, or from one that they drained.
pub(crate) const BY_SCHEDULER: &str = "scheduler";
/// The most bytes of messages in one transaction, unless a single message has more.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// The most bytes that are kept of a message whose sender is unknown. Such a message cannot be replayed, and senders decide
/// how many there are.
const MAX_UNVERIFIED_BYTES: usize = 4 * 1024;
/// The most bytes of the reason of such a message, and of its queue and topic.
const MAX_UNVERIFIED_REASON: usize = 2 * 1024;
const MAX_UNVERIFIED_ADDRESS: usize = 512;

/// The origin of messages that this executor has sealed.
fn by_executor(executor: &ExecutorId) -> String {
    format!("executor {executor}")
}

/// The namespace of the messages in an executor's queue. Queues of schedulers have those of all namespaces.
pub(crate) fn namespace_of(queue: &QueueId) -> Option<Namespace> {
    match queue {
        QueueId::Executor { group, .. } => {
            let group = group.parse::<GroupName>().ok()?;
            Some(group.namespace())
        }
        _ => None,
    }
}

/// Who refused or sent a message, as far as that is verified. The default is an unknown sender.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LetterOrigin {
    /// See [`NewDeadLetter::origin`].
    pub(crate) origin: Option<String>,
    /// See [`NewDeadLetter::namespace`].
    pub(crate) namespace: Option<Namespace>,
}

impl LetterOrigin {
    /// This executor has sealed the message, or has refused it. Its group decides the namespace (G18).
    pub(crate) fn executor(executor: &ExecutorId) -> Self {
        Self {
            origin: Some(by_executor(executor)),
            namespace: Some(executor.group.namespace()),
        }
    }

    /// A scheduler took the message from this queue.
    pub(crate) fn scheduler(namespace: Option<Namespace>) -> Self {
        Self {
            origin: Some(BY_SCHEDULER.to_owned()),
            namespace,
        }
    }
}

/// Stores refused messages.
#[derive(Clone)]
pub(crate) struct RefusedMessages {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) counters: Arc<Counters>,
}

impl RefusedMessages {
    /// The dead letter of a message in this queue. Without a known origin it cannot be replayed.
    ///
    /// Its key is that of this delivery: equal messages are different letters, and an operator may replay one while it is
    /// refused again. If the message is delivered again after a crash, there are two letters.
    pub(crate) fn letter(
        &self,
        queue: &QueueId,
        delivery: &Delivery,
        reason: String,
        LetterOrigin { origin, namespace }: LetterOrigin,
    ) -> NewDeadLetter {
        let at = self.clock.now();
        let queue = queue.to_string();
        let receipt = delivery.receipt.0;
        let head = format!(
            "{queue}\n{}\n{}\n{receipt}\n",
            delivery.topic,
            at.as_millis()
        );
        let letter = NewDeadLetter {
            key: key(&[head.as_bytes(), &delivery.payload]),
            queue,
            topic: delivery.topic.clone(),
            reason,
            origin,
            namespace,
            at,
            payload: Vec::new(),
        };
        with_payload(letter, &delivery.payload)
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

/// The letter of this message. Without a known origin only the beginning is kept, and the reason has the size and the hash.
pub(crate) fn with_payload(mut letter: NewDeadLetter, payload: &[u8]) -> NewDeadLetter {
    if letter.origin.is_some() {
        letter.payload = payload.to_vec();
        return letter;
    }
    for (text, max_bytes) in [
        (&mut letter.reason, MAX_UNVERIFIED_REASON),
        (&mut letter.queue, MAX_UNVERIFIED_ADDRESS),
        (&mut letter.topic, MAX_UNVERIFIED_ADDRESS),
    ] {
        let end = text.floor_char_boundary(max_bytes);
        text.truncate(end);
    }
    // A text stays one.
    let end = std::str::from_utf8(payload)
        .map_or(payload.len().min(MAX_UNVERIFIED_BYTES), |text| {
            text.floor_char_boundary(MAX_UNVERIFIED_BYTES)
        });
    if end < payload.len() {
        let (bytes, hash) = (payload.len(), key(&[payload]));
        // Writing to a String cannot fail.
        let _ = write!(
            letter.reason,
            " [cut: only the first {end} of {bytes} bytes are kept, MD5 {hash}]"
        );
    }
    letter.payload = payload[..end].to_vec();
    letter
}

fn log(letter: &NewDeadLetter) {
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
            namespace: None,
            at: Timestamp::from_millis(0),
            payload: vec![0; bytes],
        }
    }

    #[test]
    fn the_messages_of_an_executor_belong_to_the_namespace_of_its_group() {
        let of_group = |group: &str| {
            let queue = QueueId::Executor {
                group: group.to_owned(),
                executor: "one".to_owned(),
            };
            namespace_of(&queue).map(|namespace| namespace.to_string())
        };
        assert_eq!(of_group("team-a/x"), Some("team-a".to_owned()));
        assert_eq!(of_group("x"), Some("default".to_owned()));
        assert_eq!(of_group("a/b/c"), None);
        assert_eq!(namespace_of(&QueueId::Results), None);
    }

    #[test]
    fn of_a_message_without_a_known_origin_only_the_beginning_is_kept() {
        let limit = MAX_UNVERIFIED_BYTES;
        let with_reason = |origin: Option<&str>, reason: &str| NewDeadLetter {
            reason: reason.to_owned(),
            origin: origin.map(str::to_owned),
            ..letter(0)
        };
        let small = with_payload(with_reason(None, "why"), &vec![b'x'; limit]);
        assert_eq!((small.reason.as_str(), small.payload.len()), ("why", limit));
        let large = with_payload(with_reason(None, "why"), &vec![b'x'; limit + 1]);
        assert_eq!(large.payload, vec![b'x'; limit]);
        let hash = key(&[&vec![b'x'; limit + 1]]);
        assert_eq!(
            large.reason,
            format!("why [cut: only the first 4096 of 4097 bytes are kept, MD5 {hash}]")
        );
        let text = "报".repeat(limit);
        let cut = with_payload(with_reason(None, &text), text.as_bytes());
        assert!(text.as_bytes().starts_with(&cut.payload));
        assert!(std::str::from_utf8(&cut.payload).is_ok(), "a cut character");
        assert!(cut.reason.len() < MAX_UNVERIFIED_REASON + 200);
        let binary = with_payload(with_reason(None, "why"), &vec![0xff; 2 * limit]);
        assert_eq!(binary.payload.len(), limit);
        let known = with_payload(with_reason(Some(BY_SCHEDULER), "why"), text.as_bytes());
        assert_eq!(
            (known.reason.as_str(), known.payload),
            ("why", text.into_bytes())
        );
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
