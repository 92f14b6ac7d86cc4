//! Settings of the embedded broker, with their defaults and the effect of each limit.

use std::time::Duration;

use cueline_broker::{BrokerError, ErrorKind};

/// Settings of an [`EmbeddedDriver`](crate::EmbeddedDriver).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddedOptions {
    /// A delivery that is not settled for this long is delivered again; 30 s by default.
    pub ack_wait: Duration,
    /// The most messages in one queue; 1,000,000 by default. Beyond it the queue refuses messages as full.
    pub queue_limit: u64,
    /// The largest payload, in bytes; 8 MiB by default. A larger one is refused.
    pub max_payload_bytes: usize,
    /// The most messages in one `publish`; 5,000 by default.
    pub max_batch: usize,
    /// The most ready messages of one queue in memory; 16,384 by default. Further ones are read from the file when they
    /// are due for delivery.
    pub window_messages: usize,
    /// The most bytes of ready messages in memory, over all queues; 128 MiB by default. Beyond it messages are read
    /// from the file when they are due for delivery, about 1 MiB per queue at a time.
    pub memory_bytes: usize,
    /// The largest size of the file, in bytes; 1 TiB by default. Beyond it, as on a full disk, publishing fails with a
    /// transient error until acks have made room. The `-wal` file is not counted; it stays below about 80 MiB.
    pub file_bytes: u64,
    /// The most announcements that wait for one listener; 1,024 by default. Beyond it the oldest are lost.
    pub listener_buffer: usize,
    /// How long `open` waits for another process to unlock the file; 2 s by default. Then it fails.
    pub lock_wait: Duration,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self {
            ack_wait: Duration::from_secs(30),
            queue_limit: 1_000_000,
            max_payload_bytes: 8 << 20,
            max_batch: 5_000,
            window_messages: 16_384,
            memory_bytes: 128 << 20,
            file_bytes: 1 << 40,
            listener_buffer: 10_000,
            lock_wait: Duration::from_secs(2),
        }
    }
}

/// `SQLite` stores no value over 10⁹ bytes, and JSON makes the payload of a dead letter up to six times as long.
const LARGEST_PAYLOAD: usize = 128 << 20;

impl EmbeddedOptions {
    /// Rejects settings with which no queue can work.
    pub(crate) fn validate(&self) -> Result<(), BrokerError> {
        let wrong = |what: &str| Err(BrokerError::new(ErrorKind::Permanent, what));
        if self.ack_wait.is_zero() {
            return wrong("failed to open the broker: `ack_wait` must be longer than 0");
        }
        if self.max_batch == 0 || self.window_messages == 0 || self.listener_buffer == 0 {
            return wrong(
                "failed to open the broker: `max_batch`, `window_messages` and `listener_buffer` must be at least 1",
            );
        }
        if self.max_payload_bytes > LARGEST_PAYLOAD {
            return wrong("failed to open the broker: `max_payload_bytes` must be at most 128 MiB");
        }
        Ok(())
    }
}
