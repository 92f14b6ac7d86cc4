//! State that all queues share: the numbering of messages, and the memory limit for ready messages.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

/// Message ids are `key << SEQUENCE_BITS | sequence`. The messages of a queue therefore lie side by side in the file,
/// without a further index. 2⁴³ messages last 14 years at 20,000 per second. The sequence of a queue that is empty at
/// opening starts again.
pub(crate) const SEQUENCE_BITS: u32 = 43;

/// The most queues: the rest of the 63 bits.
pub(crate) const MOST_QUEUES: i64 = (1 << (63 - SEQUENCE_BITS)) - 1;

/// The range of ids of the queue `key`: above the first number, up to and including the second.
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
        // The struct and the allocator's overhead are about as large as a small payload.
        128 + self.topic.len() + self.payload.len()
    }
}

/// State that all queues share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) ack_wait: Duration,
    pub(crate) queue_limit: u64,
    pub(crate) window_messages: usize,
    pub(crate) memory_bytes: usize,
    /// Bytes of ready messages in memory, over all queues.
    pub(crate) held_bytes: AtomicUsize,
    /// Starts at a different number for each opening of the file, so that earlier receipts are unknown.
    pub(crate) next_receipt: AtomicU64,
}

/// The least and the most bytes of one load. Even when memory is short, each queue may load the least, so that every
/// queue makes progress.
const LOAD_BYTES: (usize, usize) = (1 << 20, 16 << 20);

impl Shared {
    /// The bytes that a load may read from the file.
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

/// `now + wait`, or an instant in the far future if the sum exceeds the clock's range.
pub(crate) fn later(now: Instant, wait: Duration) -> Instant {
    const FAR: Duration = Duration::from_hours(24 * 365 * 30);
    now.checked_add(wait.min(FAR)).unwrap_or(now)
}
