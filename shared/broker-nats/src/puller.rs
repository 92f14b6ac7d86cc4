//! A place where the server delivers what one fetch at a time asked for.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{Message, Subject, Subscriber};
use cueline_broker::{BrokerError, QueueId};
use serde_json::json;
use tokio::time::Instant;

use crate::link::{Link, Watch};

/// The most messages that one request asks for: they have to fit in the client's buffer together with those that an
/// abandoned request still brings.
const MAX_PULL: usize = 16_384;
/// The longest that one request waits at the server; then the next is made.
const LONGEST_PULL: Duration = Duration::from_secs(5);
/// Places that are kept for the next fetches, for each queue. Further ones are given up when their fetch ends.
const MAX_IDLE: usize = 16;

/// A subscription on which the server delivers.
pub(crate) struct Puller {
    /// Where requests go.
    next: Subject,
    inbox: String,
    pub(crate) messages: Subscriber,
    /// Numbers its requests.
    requests: u64,
    /// The request that the server has not answered in full.
    pub(crate) open: Option<Open>,
    /// Came, and was not handed on.
    pub(crate) ready: VecDeque<Message>,
}

/// A request that is under way.
pub(crate) struct Open {
    next: Subject,
    inbox: Subject,
    left: usize,
    /// It is lost if nothing has come by then.
    pub(crate) until: Instant,
    watch: Watch,
}

/// What the server sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// A message, the end of a request, or nothing of interest.
    Fine,
    /// The consumer was deleted.
    Deleted,
    /// There is no consumer, or no server leads it.
    Nobody,
    /// The request, for this reason.
    Refused(String),
}

impl Open {
    /// Ends when there will be no answer.
    pub(crate) async fn failed(&mut self) -> BrokerError {
        let (next, inbox) = (&self.next, &self.inbox);
        let own = |denied: &str| {
            denied == next.as_str()
                || denied
                    .strip_suffix('*')
                    .is_some_and(|start| inbox.as_str().starts_with(start))
        };
        self.watch.failed(own).await
    }
}

impl Puller {
    async fn open(
        link: &Link,
        stream: &str,
        consumer: &str,
        until: Instant,
    ) -> Result<Self, BrokerError> {
        let inbox = link.client.new_inbox();
        let subscribing = link.client.subscribe(format!("{inbox}.*"));
        let messages = link.hand_over(subscribing, until).await?;
        Ok(Self {
            next: format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}").into(),
            inbox,
            messages,
            requests: 0,
            open: None,
            ready: VecDeque::new(),
        })
    }

    /// A request is under way that may still be answered.
    pub(crate) fn is_asking(&mut self) -> bool {
        if self.open.as_ref().is_some_and(|open| open.watch.broke()) {
            self.open = None;
        }
        self.open.is_some()
    }

    /// Asks for up to `max` messages that are there, or that come within `wait`: then for the first and what is there with it.
    pub(crate) async fn request(
        &mut self,
        link: &Link,
        max: usize,
        wait: Duration,
        patience: Duration,
    ) -> Result<(), BrokerError> {
        let batch = max.min(MAX_PULL);
        let expires = wait.min(LONGEST_PULL);
        let mut request = json!({ "batch": batch, "no_wait": true });
        if !expires.is_zero() {
            request["expires"] = json!(u64::try_from(expires.as_nanos()).unwrap_or(u64::MAX));
        }
        self.requests += 1;
        let inbox = Subject::from(format!("{}.{}", self.inbox, self.requests));
        let (next, watch) = (self.next.clone(), link.watch());
        let until = Instant::now() + patience;
        let payload = request.to_string().into();
        let sending = link
            .client
            .publish_with_reply(next.clone(), inbox.clone(), payload);
        // Before it is sent: what is given up half-way may have been.
        self.open = Some(Open {
            next,
            inbox,
            left: batch,
            until: until + expires,
            watch,
        });
        link.hand_over(sending, until).await
    }

    /// Takes in what came on the subscription.
    pub(crate) fn take_in(&mut self, message: Message) -> Came {
        let Some(status) = message.status else {
            self.ready.push_back(message);
            if let Some(open) = &mut self.open {
                open.left = open.left.saturating_sub(1);
                if open.left == 0 {
                    self.open = None;
                }
            }
            return Came::Fine;
        };
        let about_open = |open: &mut Open| open.inbox == message.subject;
        // What is said of an earlier request is old news, and 100 is a sign of life.
        if status.as_u16() == 100 || self.open.take_if(about_open).is_none() {
            return Came::Fine;
        }
        let description = message.description.unwrap_or_default();
        match status.as_u16() {
            // Nothing is there (any more), or the time is up: the difference is one between versions of the server.
            404 | 408 => Came::Fine,
            503 => Came::Nobody,
            409 if description.contains("Consumer Deleted") => Came::Deleted,
            number => Came::Refused(format!("{description} ({number})")),
        }
    }
}

/// Places where nobody fetches at the moment.
pub(crate) struct Idle {
    ack_wait: Duration,
    pullers: Mutex<HashMap<QueueId, Vec<(Instant, Puller)>>>,
}

impl Idle {
    pub(crate) fn new(ack_wait: Duration) -> Self {
        Self {
            ack_wait,
            pullers: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueId, Vec<(Instant, Puller)>>> {
        self.pullers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A turn to fetch from the queue.
    pub(crate) fn turn(&self, queue: &QueueId) -> Turn<'_> {
        let mut puller = None;
        if let Some(pullers) = self.lock().get_mut(queue) {
            // What came and lay there for so long the server hands out to others.
            pullers.retain(|(since, left)| {
                since.elapsed() < self.ack_wait || (left.open.is_none() && left.ready.is_empty())
            });
            puller = pullers.pop().map(|(_, puller)| puller);
        }
        Turn {
            idle: self,
            queue: queue.clone(),
            puller,
        }
    }

    /// The queue is gone, and what was on its way from it.
    pub(crate) fn forget(&self, queue: &QueueId) {
        self.lock().remove(queue);
    }
}

/// The use of a puller for one fetch; it goes back when this is dropped.
pub(crate) struct Turn<'a> {
    idle: &'a Idle,
    queue: QueueId,
    puller: Option<Puller>,
}

impl Turn<'_> {
    /// The puller of this turn; a new one may wait until `until` for its place in the client's queue.
    pub(crate) async fn puller(
        &mut self,
        link: &Link,
        stream: &str,
        consumer: &str,
        until: Instant,
    ) -> Result<&mut Puller, BrokerError> {
        let puller = match self.puller.take() {
            Some(puller) => puller,
            None => Puller::open(link, stream, consumer, until).await?,
        };
        Ok(self.puller.insert(puller))
    }

    /// Up to `max` of what came.
    pub(crate) fn ready(&mut self, max: usize) -> Vec<Message> {
        let Some(puller) = &mut self.puller else {
            return Vec::new();
        };
        let count = puller.ready.len().min(max);
        puller.ready.drain(..count).collect()
    }

    /// It is not to be used again.
    pub(crate) fn spoiled(&mut self) {
        self.puller = None;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(puller) = self.puller.take() else {
            return;
        };
        let mut pullers = self.idle.lock();
        let idle = pullers.entry(self.queue.clone()).or_default();
        if idle.len() < MAX_IDLE {
            idle.push((Instant::now(), puller));
        }
    }
}
