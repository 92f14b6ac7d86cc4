//! The port that each broker product is fitted to.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::address::{Channel, QueueId};
use crate::error::BrokerError;

/// What a driver can do. What it cannot is left out of the conformance suite and printed as such.
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
    /// A message can be given back to be delivered again after a delay.
    pub delayed_retry: bool,
    /// `redelivered` and `deliveries` count across a restart of the broker.
    pub counts_across_restart: bool,
    /// More than one process can use the same broker.
    pub shared_by_processes: bool,
    /// A queue takes as many messages as its limit says, unsettled ones included, and no more. Otherwise it refuses some time after
    /// it has reached its limit, and may not count what is handed out.
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
    /// The last part of its topic (a job's name), so that people can watch one job's messages.
    pub topic: String,
    /// Identity for deduplication, where the product has it.
    pub id: String,
    /// The message.
    pub payload: Bytes,
}

/// Why one message of a batch was not taken, while others may have been.
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
    /// No answer came for it, or none that tells what became of it. It may be in the queue, or come there later: only publishing it
    /// again until it is taken ends the doubt, and then it may be there twice.
    #[error("whether queue {queue} took the message is not known: {why}")]
    Unknown {
        /// The queue.
        queue: String,
        /// What came instead of an answer.
        why: String,
    },
}

/// What names one delivery when it is settled. Valid until settled or redelivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Receipt(pub u64);

/// A message handed out.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Names this delivery.
    pub receipt: Receipt,
    /// The last part of its topic.
    pub topic: String,
    /// The message.
    pub payload: Bytes,
    /// It may have been handed out before. A broker that does not
    /// [count across a restart](Capabilities::counts_across_restart) may have forgotten it in one.
    pub redelivered: bool,
    /// How many times it has been handed out, this one included, as far as the broker knows.
    pub deliveries: u32,
}

/// What becomes of a delivery.
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
    /// Messages waiting to be handed out.
    pub ready: u64,
    /// Messages handed out and not settled. Those that were given back may count here until they are handed out again.
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

/// Receives what is announced on a channel from the moment of `listen` on. A listener that lags behind by more than
/// its buffer loses the oldest announcements.
pub type Listener = mpsc::Receiver<Announcement>;

/// One broker product. Methods never retry; they say whether retrying can help ([`BrokerError::kind`]).
///
/// Order: within one queue, messages published by one `publish` call, and by calls one after the other, are handed
/// out in that order, redelivered ones aside.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Makes sure that the queue exists. Repeating it changes nothing.
    async fn declare(&self, queue: &QueueId) -> Result<(), BrokerError>;

    /// Deletes a queue that has nothing in it (`only_if_empty`) or whatever it holds. Whether it was deleted;
    /// a queue that does not exist counts as deleted.
    async fn delete(&self, queue: &QueueId, only_if_empty: bool) -> Result<bool, BrokerError>;

    /// Publishes a batch of at most `max_batch`. When it returns, each message is on disk, refused, or [unknown](Refusal::Unknown), in
    /// the order given; a queue that does not answer makes its own messages unknown and no others. An error says nothing about any
    /// of them: all are unknown. What became unknown may still take effect, or take effect later; once a message is taken, its own
    /// earlier tries are harmless to whoever knows its identity.
    async fn publish(&self, batch: &[Outgoing]) -> Result<Vec<Result<(), Refusal>>, BrokerError>;

    /// Hands out up to `max` messages, waiting up to `wait` for the first. Empty when none came.
    async fn fetch(
        &self,
        queue: &QueueId,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, BrokerError>;

    /// Settles deliveries of one queue. A receipt that is not known (settled, redelivered, from before a restart) is
    /// ignored. When it returns, acks and dead letters are on disk as far as the product can tell.
    async fn settle(
        &self,
        queue: &QueueId,
        settlements: &[(Receipt, Settlement)],
    ) -> Result<(), BrokerError>;

    /// How full queues are: those of `queues` that exist, and all others that the product lists. Where it does not tell what other
    /// processes hold, `unsettled` is what this driver has handed out itself.
    async fn stats(&self, queues: &[QueueId]) -> Result<Vec<QueueStats>, BrokerError>;

    /// Sends to whoever listens on `channel` now. Nobody listening is no error.
    async fn announce(&self, channel: &Channel, message: Announcement) -> Result<(), BrokerError>;

    /// Starts to listen on `channel`.
    async fn listen(&self, channel: &Channel) -> Result<Listener, BrokerError>;
}
