//! The port: what a driver for one broker product has to do.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::address::{Channel, QueueId};
use crate::error::BrokerError;

/// What a driver can do. The conformance suite prints a case as ignored where the driver lacks its capability.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one yes or no about a product"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// The product's name, for logs.
    pub name: &'static str,
    /// Messages that were confirmed survive a SIGKILL of the broker.
    pub durable: bool,
    /// Two publishes with the same id within a short time leave one message.
    pub deduplicates: bool,
    /// A message can be returned to its queue and is delivered again after a delay.
    pub delayed_retry: bool,
    /// `redelivered` and `deliveries` count across a restart of the broker.
    pub counts_across_restart: bool,
    /// More than one process can use the same broker.
    pub shared_by_processes: bool,
    /// A queue refuses exactly the messages past its limit, and unsettled messages count. Without it, a queue refuses some time after
    /// it reached its limit, and may not count unsettled messages.
    pub exact_limit: bool,
    /// The most messages that one publish takes.
    pub max_batch: usize,
    /// The largest payload, in bytes.
    pub max_payload_bytes: usize,
}

/// A message to publish.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The queue it is for.
    pub queue: QueueId,
    /// The last part of its topic (a job's name), so that an operator can watch the messages of one job.
    pub topic: String,
    /// Identity for deduplication, where the product has it.
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
    /// The queue holds as many messages as it may.
    #[error("queue {queue} is full at {limit} messages")]
    Full {
        /// The queue.
        queue: String,
        /// Its limit.
        limit: u64,
    },
    /// The payload is larger than the broker takes.
    #[error("the payload has {bytes} bytes, more than the {limit} that the broker takes")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The broker did not confirm or refuse it. The message may be in the queue, or reach it later. The caller publishes it again until
    /// it is confirmed; the queue may then hold it twice.
    #[error("whether queue {queue} took the message is not known: {why}")]
    Unknown {
        /// The queue.
        queue: String,
        /// What came instead of an answer.
        why: String,
    },
}

/// Identity of one delivery, used to settle it. Valid until the delivery is settled or delivered again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Receipt(pub u64);

/// A message that was delivered.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Names this delivery.
    pub receipt: Receipt,
    /// The last part of its topic.
    pub topic: String,
    /// The message.
    pub payload: Bytes,
    /// It may have been delivered before. A broker that does not
    /// [count across a restart](Capabilities::counts_across_restart) may have lost this mark in one.
    pub redelivered: bool,
    /// How many times it was delivered, this delivery included, as far as the broker knows.
    pub deliveries: u32,
}

/// How a delivery is settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// Done: never deliver it again.
    Ack,
    /// Deliver it again, after at least this long.
    Retry(Duration),
    /// Move it to the dead-letter queue with this reason.
    Dead(String),
}

/// How full a queue is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueStats {
    /// The queue.
    pub queue: QueueId,
    /// Messages waiting to be delivered.
    pub ready: u64,
    /// Messages delivered and not settled. Returned messages may count here until they are delivered again.
    pub unsettled: u64,
}

/// A message on a [`Channel`].
#[derive(Debug, Clone)]
pub struct Announcement {
    /// The message.
    pub payload: Bytes,
    /// Where an answer is expected, if one is.
    pub reply_to: Option<Channel>,
}

/// Receives the announcements on a channel, from the moment of `listen` on. A listener that falls behind by more than its buffer loses the
/// oldest announcements.
pub type Listener = mpsc::Receiver<Announcement>;

/// One broker product. Methods never retry; they say whether retrying can help ([`BrokerError::kind`]).
///
/// Order: within one queue, messages are delivered in the order of publication, redelivered ones aside. Publication order is the order within
/// one `publish` call and of calls made one after the other.
///
/// # Errors
///
/// Each method fails with [`ErrorKind::Transient`](crate::ErrorKind::Transient) where the same call may succeed later (connection lost, timeout,
/// busy, disk full), [`Permanent`](crate::ErrorKind::Permanent) where it will not (malformed, forbidden, not supported), and
/// [`Closed`](crate::ErrorKind::Closed) after the driver was closed.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Makes sure that the queue exists. Repeating it changes nothing.
    async fn declare(&self, queue: &QueueId) -> Result<(), BrokerError>;

    /// Deletes a queue; with `only_if_empty` only one without messages. Returns whether the queue is gone; one that does not exist counts as
    /// deleted.
    async fn delete(&self, queue: &QueueId, only_if_empty: bool) -> Result<bool, BrokerError>;

    /// Publishes a batch of at most `max_batch` messages. When it returns, each message is on disk, refused, or
    /// [unknown](Refusal::Unknown), in the order given. A queue that does not answer makes only its own messages unknown. After an error all
    /// messages are unknown. An unknown message may reach its queue later; consumers recognise the duplicate by its identity.
    async fn publish(&self, batch: &[Outgoing]) -> Result<Vec<Result<(), Refusal>>, BrokerError>;

    /// Delivers up to `max` messages, waiting up to `wait` for the first. Empty when none came.
    async fn fetch(
        &self,
        queue: &QueueId,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, BrokerError>;

    /// Settles deliveries of one queue. An unknown receipt (settled, redelivered, from before a restart) is ignored. When it returns, acks and
    /// dead letters are on disk, as far as the product confirms it.
    async fn settle(
        &self,
        queue: &QueueId,
        settlements: &[(Receipt, Settlement)],
    ) -> Result<(), BrokerError>;

    /// The depth of those of `queues` that exist, and of all others that the product lists. Where the product does not count what other
    /// processes hold, `unsettled` counts this driver's own deliveries.
    async fn stats(&self, queues: &[QueueId]) -> Result<Vec<QueueStats>, BrokerError>;

    /// Sends to all present listeners of `channel`. Having no listener is no error.
    async fn announce(&self, channel: &Channel, message: Announcement) -> Result<(), BrokerError>;

    /// Starts to listen on `channel`.
    async fn listen(&self, channel: &Channel) -> Result<Listener, BrokerError>;
}
