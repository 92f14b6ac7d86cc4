//! The port that a driver for a broker product implements.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::address::{Channel, QueueId};
use crate::error::BrokerError;
use crate::listener::{Announcement, Listener};

/// The capabilities of a driver. The conformance suite ignores the cases that need a missing capability.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one yes or no about a product"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// The product's name, for logs.
    pub name: &'static str,
    /// Confirmed messages survive a SIGKILL of the broker.
    pub durable: bool,
    /// Two publishes with the same id within a short time store one message.
    pub deduplicates: bool,
    /// A message can return to its queue and is delivered again after a delay.
    pub delayed_retry: bool,
    /// `redelivered` and `deliveries` still count after a restart of the broker.
    pub counts_across_restart: bool,
    /// Several processes can use the same broker.
    pub shared_by_processes: bool,
    /// A queue refuses exactly the messages beyond its limit, and unsettled messages count. Without this, a queue may
    /// refuse some time after it reached its limit, and may not count unsettled messages.
    pub exact_limit: bool,
    /// The most messages in one publish.
    pub max_batch: usize,
    /// The largest payload, in bytes.
    pub max_payload_bytes: usize,
}

/// A message to publish.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The destination queue.
    pub queue: QueueId,
    /// The last part of the topic, which is the name of a job. It lets an operator watch the messages of one job.
    pub topic: String,
    /// The id for deduplication, where the product supports it.
    pub id: String,
    /// The message.
    pub payload: Bytes,
}

/// Why the broker did not accept one message of a batch. It may have accepted others.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The queue does not exist.
    #[error("there is no queue {0}")]
    NoQueue(String),
    /// The queue has reached its limit.
    #[error("queue {queue} is full at {limit} messages")]
    Full {
        /// The queue.
        queue: String,
        /// Its limit.
        limit: u64,
    },
    /// The payload is larger than the broker allows.
    #[error("the payload has {bytes} bytes, more than the broker's limit of {limit}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The broker neither confirmed nor refused the message. The message may be in the queue, or reach it later. The
    /// caller publishes it again until it is confirmed. The queue may then hold it twice.
    #[error("it is unknown whether queue {queue} accepted the message: {why}")]
    Unknown {
        /// The queue.
        queue: String,
        /// Why there is no answer.
        why: String,
    },
}

/// Identifies one delivery for its settlement. Valid until the delivery is settled or delivered again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Receipt(pub u64);

/// A delivered message.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Identifies this delivery.
    pub receipt: Receipt,
    /// The last part of the topic.
    pub topic: String,
    /// The message.
    pub payload: Bytes,
    /// Whether the message may have been delivered before. A restart may lose this flag, unless the broker [counts
    /// across a restart](Capabilities::counts_across_restart).
    pub redelivered: bool,
    /// The number of deliveries, including this one, as far as the broker knows.
    pub deliveries: u32,
}

/// The settlement of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// The message is done and is never delivered again.
    Ack,
    /// The message is delivered again, after at least this time.
    Retry(Duration),
    /// The message moves to the dead-letter queue with this reason.
    Dead(String),
}

/// The number of messages in a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueStats {
    /// The queue.
    pub queue: QueueId,
    /// Messages waiting to be delivered.
    pub ready: u64,
    /// Messages that are delivered and not settled. Returned messages may count here until they are delivered again.
    pub unsettled: u64,
}

/// A broker product. Methods never retry. Their errors say whether a retry can help ([`BrokerError::kind`]).
///
/// Order: each queue delivers its messages in the order of publication, except for redeliveries. Publication order is
/// the order within one `publish` call, and the order of consecutive calls.
///
/// # Errors
///
/// - [`Transient`](crate::ErrorKind::Transient): the same call may succeed later (connection lost, timeout, busy, disk
///   full).
/// - [`Permanent`](crate::ErrorKind::Permanent): the same call will always fail (malformed, forbidden, not supported).
/// - [`Closed`](crate::ErrorKind::Closed): the driver was closed.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// The capabilities of the product.
    fn capabilities(&self) -> Capabilities;

    /// Declares the queue if it is missing. Repeated calls change nothing.
    async fn declare(&self, queue: &QueueId) -> Result<(), BrokerError>;

    /// Deletes a queue. With `only_if_empty`, a queue with messages stays. Returns whether the queue is gone; a missing
    /// queue counts as deleted.
    async fn delete(&self, queue: &QueueId, only_if_empty: bool) -> Result<bool, BrokerError>;

    /// Publishes a batch of at most `max_batch` messages. On return each message, in the order given, is on disk,
    /// refused, or [unknown](Refusal::Unknown). A queue that does not answer makes only its own messages unknown.
    ///
    /// After an error all messages are unknown. An unknown message may reach its queue later; consumers recognise the
    /// duplicate by its identity.
    async fn publish(&self, batch: &[Outgoing]) -> Result<Vec<Result<(), Refusal>>, BrokerError>;

    /// Delivers up to `max` messages, and waits up to `wait` for the first. Empty if none came.
    async fn fetch(
        &self,
        queue: &QueueId,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, BrokerError>;

    /// Settles deliveries of one queue. An unknown receipt is ignored: it was settled, its message was delivered again,
    /// or it predates a restart. On return, acks and dead letters are on disk, as far as the product confirms that.
    async fn settle(
        &self,
        queue: &QueueId,
        settlements: &[(Receipt, Settlement)],
    ) -> Result<(), BrokerError>;

    /// Counts the messages of those `queues` that exist, and of all other queues that the product lists. If the product
    /// does not count deliveries of other processes, `unsettled` counts those of this driver.
    async fn stats(&self, queues: &[QueueId]) -> Result<Vec<QueueStats>, BrokerError>;

    /// Sends to all present listeners of `channel`. Having no listener is no error.
    async fn announce(&self, channel: &Channel, message: Announcement) -> Result<(), BrokerError>;

    /// Starts to listen on `channel`. A listener that falls behind by more than its buffer loses the oldest
    /// announcements, and counts them.
    async fn listen(&self, channel: &Channel) -> Result<Listener, BrokerError>;
}
