//! The port that a driver for a broker product implements.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::address::{Channel, QueueId};
use crate::error::BrokerError;
use crate::listener::{Announcement, Listener};
use crate::start_log::StartLog;

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
    /// Whether the broker itself has moved the message to [`QueueId::Dead`], so that no receiver has refused it. The driver
    /// knows it from what the product adds to a message. The payload never says so.
    pub moved_by_broker: bool,
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
    /// What these numbers cover.
    pub coverage: Coverage,
    /// How far the queue is settled. `None` if the product cannot tell.
    pub settled: Option<SettledTo>,
}

/// Up to where the messages of a queue are settled, by the numbers that the product gives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettledTo {
    /// All messages up to this one are settled.
    pub position: u64,
    /// The newest message that was ever in the queue. It never decreases within an incarnation.
    pub newest: u64,
    /// Differs for each creation of the queue. A queue that was created anew has none of the earlier messages.
    pub incarnation: i64,
}

impl QueueStats {
    /// Whether a message is counted, or the product may have counted none because the queue does not answer.
    pub fn may_have_messages(&self) -> bool {
        self.ready + self.unsettled > 0 || self.coverage == Coverage::Unsure
    }
}

/// What the counts of a queue cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coverage {
    /// All messages.
    All,
    /// Not the deliveries of other processes. There may be some.
    OwnDeliveries,
    /// Perhaps nothing: the product counts no messages in an empty queue, and none in a queue that does not answer.
    Unsure,
}

/// The counts of queues. A queue without an answer does not keep the others from being counted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BrokerStats {
    /// The queues that answered.
    pub queues: Vec<QueueStats>,
    /// The queues that did not answer in time. They may hold any number of messages.
    pub unanswered: Vec<QueueId>,
}

impl BrokerStats {
    /// The counts of a queue. `None` if it does not exist, or did not answer.
    pub fn of(&self, queue: &QueueId) -> Option<&QueueStats> {
        self.queues.iter().find(|stats| stats.queue == *queue)
    }

    /// Whether the queue did not answer.
    pub fn is_unanswered(&self, queue: &QueueId) -> bool {
        self.unanswered.contains(queue)
    }
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

    /// Ends deliveries of this queue to this driver until the next fetch. On return, messages that the product has
    /// delivered ahead of a fetch are back in the queue, unless others of the queue are unsettled here. Call it after
    /// the last fetch from a queue that has another consumer. Messages delivered ahead would reach that one late, after
    /// newer ones.
    async fn stop_fetching(&self, queue: &QueueId) -> Result<(), BrokerError>;

    /// Settles deliveries of one queue. An unknown receipt is ignored: it was settled, its message was delivered again,
    /// or it predates a restart. On return, acks and dead letters are on disk, as far as the product confirms that.
    async fn settle(
        &self,
        queue: &QueueId,
        settlements: &[(Receipt, Settlement)],
    ) -> Result<(), BrokerError>;

    /// Counts the messages of those `queues` that exist, and of all other queues that the product lists. If the product
    /// does not count deliveries of other processes, `unsettled` counts those of this driver. The
    /// [coverage](QueueStats::coverage) says so unless there can be none. A queue that this driver consumes is never
    /// [unsure](Coverage::Unsure).
    ///
    /// A queue that does not answer is [listed](BrokerStats::unanswered). The call fails if the product does not answer
    /// at all.
    async fn stats(&self, queues: &[QueueId]) -> Result<BrokerStats, BrokerError>;

    /// Sends to all present listeners of `channel`. Having no listener is no error. One that starts before the broker
    /// has passed the announcement on may receive it too.
    async fn announce(&self, channel: &Channel, message: Announcement) -> Result<(), BrokerError>;

    /// Announces, then stores a *proof*: an empty message that is never read. On return a majority of the servers that
    /// keep proofs has stored it, over the connection that took the announcement. One that keeps them alone is a
    /// majority.
    ///
    /// Behind a server that a network partition has cut off, this fails or does not return, although listeners on that
    /// side receive the announcement. It also fails if the place of the proofs was not
    /// [declared](Self::declare_proofs). A product within one process only announces.
    async fn announce_stored(&self, channel: &Channel, payload: Bytes) -> Result<(), BrokerError>;

    /// Declares the place of the [proofs](Self::announce_stored) if it is missing. It keeps only the last proof. A
    /// restart of the broker may lose it. A worker's own rights need not permit this call.
    async fn declare_proofs(&self) -> Result<(), BrokerError>;

    /// Starts to listen on `channel`. A listener that falls behind by more than its buffer loses the oldest
    /// announcements, and counts them.
    async fn listen(&self, channel: &Channel) -> Result<Listener, BrokerError>;

    /// Declares the log if it is missing. Repeated calls change nothing. A worker's own rights need not permit it.
    async fn declare_log(&self, log: &StartLog) -> Result<(), BrokerError>;

    /// Whether the log has no records. A missing log has none. A product that cannot tell in time says that the log
    /// is empty. No product says of an empty log that it has records.
    async fn is_log_empty(&self, log: &StartLog) -> Result<bool, BrokerError>;

    /// Appends a record of at most [`MAX_START_RECORD_BYTES`](crate::MAX_START_RECORD_BYTES). On return the record
    /// survives a kill of the broker, as a published message does. At the bound of the log, the oldest records are
    /// dropped.
    ///
    /// After an error the record may be in the log, or come into it later. A missing log is a permanent error, as far
    /// as this user can tell it from one that does not answer. A product may keep all logs in one place. There, every
    /// log exists once one was declared.
    async fn append(&self, log: &StartLog, record: Bytes) -> Result<(), BrokerError>;

    /// Reads all records that were appended before the call and are still kept, oldest first. It may also return later
    /// ones. A missing log is empty. Reading removes nothing, and every reader sees all records.
    ///
    /// A log keeps its newest [`START_LOG_RECORDS`](crate::START_LOG_RECORDS) records, or about as many if the product
    /// limits bytes. This bounds the result.
    async fn read_log(&self, log: &StartLog) -> Result<Vec<Bytes>, BrokerError>;

    /// Deletes a log with its records. A missing log counts as deleted.
    async fn delete_log(&self, log: &StartLog) -> Result<(), BrokerError>;
}
