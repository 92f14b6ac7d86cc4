//! What all queues share: how messages are numbered, and how much memory the ready ones may take.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

/// Message ids are `key << SEQUENCE_BITS | sequence`, so that a queue's messages lie side by side in the file without an
/// index of their own. 2⁴³ messages last 14 years at 20,000 a second; a queue that was empty at open starts again.
pub(crate) const SEQUENCE_BITS: u32 = 43;

/// The most queues: what is left of 63 bits.
pub(crate) const MOST_QUEUES: i64 = (1 << (63 - SEQUENCE_BITS)) - 1;

/// Ids of the queue `key` are above the first and up to the second.
pub(crate) const fn id_range(key: i64) -> (i64, i64) {
    let first = key << SEQUENCE_BITS;
    (first, first | ((1 << SEQUENCE_BITS) - 1))
}

/// A ready message in memory.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) id: i64,
    pub(crate) topic: String,
    pub(crate) payload: Bytes,
}

impl Message {
    pub(crate) fn bytes(&self) -> usize {
        // The struct itself and the allocator's share are about as large as a small payload.
        128 + self.topic.len() + self.payload.len()
    }
}

/// What all queues share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) ack_wait: Duration,
    pub(crate) queue_limit: u64,
    pub(crate) window_messages: usize,
    pub(crate) memory_bytes: usize,
    /// Bytes of ready messages in memory, over all queues.
    pub(crate) held_bytes: AtomicUsize,
    /// Starts at another place for each opening of the file, so that receipts from before mean nothing.
    pub(crate) next_receipt: AtomicU64,
}

/// One load takes no more, and no less when memory is short, so that every queue gets on.
const LOAD_BYTES: (usize, usize) = (1 << 20, 16 << 20);

impl Shared {
    /// How many bytes a load may take from the file.
    pub(crate) fn load_bytes(&self) -> usize {
        let held = self.held_bytes.load(Ordering::Relaxed);
        let (least, most) = LOAD_BYTES;
        self.memory_bytes.saturating_sub(held).clamp(least, most)
    }

    pub(crate) fn has_room(&self, message: &Message) -> bool {
        self.held_bytes.load(Ordering::Relaxed) + message.bytes() <= self.memory_bytes
    }

    pub(crate) fn hold(&self, message: &Message) {
        self.held_bytes
            .fetch_add(message.bytes(), Ordering::Relaxed);
    }

    pub(crate) fn let_go(&self, message: &Message) {
        self.held_bytes
            .fetch_sub(message.bytes(), Ordering::Relaxed);
    }
}

/// `now + wait`, or far in the future if that is more than an instant can hold.
pub(crate) fn later(now: Instant, wait: Duration) -> Instant {
    const FAR: Duration = Duration::from_hours(24 * 365 * 30);
    now.checked_add(wait.min(FAR)).unwrap_or(now)
}
