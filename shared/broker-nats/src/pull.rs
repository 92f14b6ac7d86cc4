//! Pull subscriptions. The server answers the pull requests for one consumer on a private subject, one request at a
//! time.
//!
//! async-nats makes a subscription for each pull request and drops it with the request. Messages in flight then come
//! again only after `ack_wait`. Here the next fetch takes over the subscription and the messages that arrive on it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{Message, Subject, Subscriber};
use cueline_broker::{BrokerError, QueueId};
use serde_json::json;
use tokio::time::Instant;

use crate::connection::{Connection, FailureWatch};
use crate::names::Location;

/// The most messages of one request. They must fit in the client's buffer, beside those of an abandoned request.
const MAX_BATCH: usize = 16_384;
/// The most bytes that one request asks for, unless the largest message is larger. It bounds the memory that messages of
/// other clients can take.
const MAX_BYTES: usize = 16 << 20;
/// The server also counts the subjects of a message. Protocol lines have at most 4 KiB each.
const MAX_SUBJECT_BYTES: usize = 8 << 10;
/// The longest wait of one request at the server; then the next one is sent.
const MAX_EXPIRES: Duration = Duration::from_secs(5);
/// Idle subscriptions that are kept for each queue.
const MAX_IDLE: usize = 16;

pub(crate) struct PullSubscription {
    /// The subject of requests.
    next: Subject,
    /// The first tokens of the subjects of answers; the number of the request follows.
    inbox: String,
    pub(crate) messages: Subscriber,
    requests: u64,
    /// The next message is larger than a request may ask for, such as after the server's `max_payload` was lowered. It is
    /// then requested alone, without a limit of bytes.
    next_is_oversized: bool,
    pub(crate) pending: Option<PendingPull>,
    /// Messages that have arrived and were not returned by a fetch.
    pub(crate) ready: VecDeque<Message>,
}

/// A request that the server has not answered in full.
pub(crate) struct PendingPull {
    next: Subject,
    answers: Subject,
    /// The messages that were requested.
    asked: usize,
    /// Messages that may still arrive.
    left: usize,
    /// The bytes that they may have. At 0, the server ends the request without a word.
    left_bytes: usize,
    /// The request counts as lost if no message comes by then.
    pub(crate) deadline: Instant,
    /// The longest wait for messages that are on their way.
    timeout: Duration,
    watch: FailureWatch,
}

/// Why the server ended a request early, before its messages or its time ran out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PullError {
    ConsumerDeleted,
    /// The consumer does not exist, or no server leads it.
    NoResponders,
    Refused(String),
}

impl PendingPull {
    /// Returns when the answer can no longer come.
    pub(crate) async fn failed(&mut self) -> BrokerError {
        let (next, answers) = (self.next.as_str(), self.answers.as_str());
        let is_own = |denied: &str| {
            let prefix = denied.strip_suffix('*');
            denied == next || prefix.is_some_and(|prefix| answers.starts_with(prefix))
        };
        self.watch.failed(is_own).await
    }
}

impl PullSubscription {
    pub(crate) async fn open(
        connection: &Connection,
        location: &Location,
        deadline: Instant,
    ) -> Result<Self, BrokerError> {
        let inbox = connection.client.new_inbox();
        let subscribing = connection.client.subscribe(format!("{inbox}.*"));
        let messages = connection.enqueue(subscribing, deadline).await?;
        let (stream, consumer) = (&location.stream_name, &location.consumer);
        Ok(Self {
            next: format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}").into(),
            inbox,
            messages,
            requests: 0,
            next_is_oversized: false,
            pending: None,
            ready: VecDeque::new(),
        })
    }

    /// Whether a request is in flight that the server may still answer.
    pub(crate) fn is_pending(&mut self) -> bool {
        self.pending
            .take_if(|pending| pending.watch.connection_lost());
        self.pending.is_some()
    }

    /// Requests up to `max` messages. If the queue is empty, the server waits up to `wait` and answers with the
    /// messages that arrive together next.
    pub(crate) async fn request(
        &mut self,
        connection: &Connection,
        max: usize,
        wait: Duration,
        timeout: Duration,
    ) -> Result<(), BrokerError> {
        let is_oversized = std::mem::take(&mut self.next_is_oversized);
        let asked = if is_oversized { 1 } else { max.min(MAX_BATCH) };
        let expires = wait.min(MAX_EXPIRES);
        let mut request = json!({ "batch": asked, "no_wait": true });
        let mut left_bytes = usize::MAX;
        if !is_oversized {
            left_bytes = max_bytes(connection.client.max_payload());
            request["max_bytes"] = json!(left_bytes);
        }
        if !expires.is_zero() {
            request["expires"] = json!(u64::try_from(expires.as_nanos()).unwrap_or(u64::MAX));
        }
        self.requests += 1;
        let (next, watch) = (self.next.clone(), connection.watch());
        let answers = Subject::from(format!("{}.{}", self.inbox, self.requests));
        let deadline = Instant::now() + timeout;
        // Set before the request is sent: if this fetch is dropped here, the request may already be on its way.
        self.pending = Some(PendingPull {
            next: next.clone(),
            answers: answers.clone(),
            asked,
            left: asked,
            left_bytes,
            deadline: deadline + expires,
            timeout,
            watch,
        });
        let payload = request.to_string().into();
        let sending = connection.client.publish_with_reply(next, answers, payload);
        connection.enqueue(sending, deadline).await
    }

    /// Stores a message, or ends the request that a status belongs to.
    pub(crate) fn accept(&mut self, message: Message) -> Result<(), PullError> {
        let Some(status) = message.status else {
            // The server counts in the same way: the payload, the headers and both subjects.
            let bytes = message.length;
            self.ready.push_back(message);
            self.pending.take_if(|pending| {
                pending.left = pending.left.saturating_sub(1);
                pending.left_bytes = pending.left_bytes.saturating_sub(bytes);
                pending.left == 0 || pending.left_bytes == 0
            });
            return Ok(());
        };
        // 100 is a heartbeat. Other statuses of an earlier request are outdated.
        let is_about = |pending: &mut PendingPull| pending.answers == message.subject;
        if status.as_u16() == 100 {
            return Ok(());
        }
        let description = message.description.unwrap_or_default();
        // All messages of the request were delivered. With several copies, they come once a majority agrees to that.
        if status.as_u16() == 409 && description.contains("Batch Completed") {
            if let Some(pending) = self.pending.as_mut()
                && pending.answers == message.subject
            {
                pending.deadline = Instant::now() + pending.timeout;
            }
            return Ok(());
        }
        let Some(ended) = self.pending.take_if(is_about) else {
            return Ok(());
        };
        match status.as_u16() {
            // No messages, or the time is over. Servers of different versions send either.
            404 | 408 => Ok(()),
            // The next message does not fit into what is left of the request's bytes.
            409 if description.contains("Exceeds MaxBytes") => {
                self.next_is_oversized = ended.left == ended.asked;
                Ok(())
            }
            503 => Err(PullError::NoResponders),
            409 if description.contains("Consumer Deleted") => Err(PullError::ConsumerDeleted),
            number => Err(PullError::Refused(format!("{description} ({number})"))),
        }
    }
}

/// The bytes that a request may ask for, at a server with this limit of one message. The largest one always fits.
fn max_bytes(max_payload: usize) -> usize {
    MAX_BYTES.max(max_payload.saturating_add(MAX_SUBJECT_BYTES))
}

/// Subscriptions that no fetch uses now.
pub(crate) struct PullPool {
    ack_wait: Duration,
    idle: Mutex<HashMap<QueueId, Vec<(Instant, PullSubscription)>>>,
}

impl PullPool {
    pub(crate) fn new(ack_wait: Duration) -> Self {
        Self {
            ack_wait,
            idle: Mutex::default(),
        }
    }

    fn idle(&self) -> MutexGuard<'_, HashMap<QueueId, Vec<(Instant, PullSubscription)>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn check_out(&self, queue: &QueueId) -> PooledPull<'_> {
        let mut subscription = None;
        if let Some(idle) = self.idle().get_mut(queue) {
            // Messages that lie here for longer than `ack_wait` have been delivered again by the server.
            idle.retain(|(since, left)| {
                let is_empty = left.pending.is_none() && left.ready.is_empty();
                is_empty || since.elapsed() < self.ack_wait
            });
            subscription = idle.pop().map(|(_, subscription)| subscription);
        }
        PooledPull {
            pool: self,
            queue: queue.clone(),
            subscription,
        }
    }

    pub(crate) fn remove_queue(&self, queue: &QueueId) {
        self.idle().remove(queue);
    }
}

/// A subscription in use by one fetch. Dropping this returns it to the pool, even if the fetch is dropped.
pub(crate) struct PooledPull<'a> {
    pool: &'a PullPool,
    queue: QueueId,
    pub(crate) subscription: Option<PullSubscription>,
}

impl Drop for PooledPull<'_> {
    fn drop(&mut self) {
        let Some(subscription) = self.subscription.take() else {
            return;
        };
        let mut idle = self.pool.idle();
        let idle = idle.entry(self.queue.clone()).or_default();
        if idle.len() < MAX_IDLE {
            idle.push((Instant::now(), subscription));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_message_fits_into_a_request() {
        assert_eq!(max_bytes(1 << 20), MAX_BYTES);
        assert!(max_bytes(MAX_BYTES) > MAX_BYTES + 4_096);
        assert!(max_bytes(64 << 20) > 64 << 20);
    }
}
