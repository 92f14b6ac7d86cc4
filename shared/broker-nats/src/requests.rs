//! Sends requests to the server in batches and matches the replies: publishes, acks and `JetStream` API requests.
//!
//! All requests share one inbox subscription and one window of requests in flight. A batch has one timer, which each
//! reply resets. A batch fails as a whole when replies stop, the connection is lost, or the server denies one of its
//! subjects.
//!
//! The request multiplexer of async-nats is not used. It keeps an entry for every unanswered request, so each outage
//! under load would leak memory. It notices neither a lost connection nor a denied subject, and needs a channel and a
//! timer for every message.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::client::traits::Publisher as _;
use async_nats::message::OutboundMessage;
use async_nats::{HeaderMap, Message, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use cueline_broker::BrokerError;
use futures_util::StreamExt as _;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until};

use crate::connection::{Connection, FailureWatch};
use crate::error::{permanent, transient};
use crate::publish_ack::PublishAck;
use crate::silence::{Asks, Place, Silence};

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) subject: Subject,
    pub(crate) headers: Option<HeaderMap>,
    pub(crate) payload: Bytes,
    /// `false` if the reply to a later request of the batch confirms this one as well.
    pub(crate) expects_reply: bool,
}

impl Request {
    pub(crate) fn new(subject: impl Into<Subject>, payload: Bytes) -> Self {
        Self {
            subject: subject.into(),
            headers: None,
            payload,
            expects_reply: true,
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Reply {
    /// `None` if no server answers for the subject.
    pub(crate) payload: Option<Bytes>,
    pub(crate) received_at: Instant,
}

/// Slots of the window that a sender reserves at once.
const MAX_CHUNK: usize = 64;
/// Replies that are matched under one lock.
const MAX_REPLIES_AT_ONCE: usize = 1_024;
/// The last token of the subject of a request that this process answers itself.
const ECHO: &str = ".echo";

pub(crate) struct Requester {
    pub(crate) connection: Connection,
    inbox: String,
    batches: Arc<Mutex<Batches>>,
    window: Arc<Semaphore>,
    chunk: usize,
    timeout: Duration,
    silence: Arc<Mutex<Silence>>,
    /// The number of the connection to give up.
    leave: watch::Sender<u64>,
}

#[derive(Default)]
struct Batches {
    next: u64,
    /// Keyed by the number of their first request.
    in_flight: BTreeMap<u64, Arc<Batch>>,
}

/// Requests that are awaited together. Request `first + n` is at index `n` of the lists.
struct Batch {
    first: u64,
    state: Mutex<BatchState>,
    progress: Notify,
}

struct BatchState {
    subjects: Vec<Subject>,
    replies: Vec<Option<Reply>>,
    answered: usize,
    heard: Heard,
    /// Slots in the window of unanswered requests. Dropping them frees the slots.
    slots: Option<OwnedSemaphorePermit>,
}

/// What the replies to a batch say about `JetStream` at this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    Nothing,
    /// The connection was lost, or the server denied a subject.
    Failure,
    /// No server leads what was asked.
    Unavailable,
    Answer,
}

impl Requester {
    /// Subscribes to the inbox. `timeout` is the longest time without any reply. The future matches replies until it is
    /// dropped, and connects to another server when `JetStream` is silent at this one.
    pub(crate) async fn open(
        connection: Connection,
        max_in_flight: usize,
        timeout: Duration,
    ) -> Result<(Self, impl Future<Output = ()> + Send), BrokerError> {
        let inbox = connection.client.new_inbox();
        let subscribing = connection.client.subscribe(format!("{inbox}.*"));
        let replies = connection
            .enqueue(subscribing, Instant::now() + timeout)
            .await?;
        let batches = Arc::<Mutex<Batches>>::default();
        let silence = Arc::<Mutex<Silence>>::default();
        let (leave, left) = watch::channel(0);
        let matching = match_replies(replies, Arc::clone(&batches), Arc::clone(&silence));
        let leaving = leave_servers(connection.clone(), left);
        let running = async {
            tokio::join!(matching, leaving);
        };
        let requester = Self {
            connection,
            inbox,
            batches,
            window: Arc::new(Semaphore::new(max_in_flight)),
            chunk: MAX_CHUNK.min(max_in_flight),
            timeout,
            silence,
            leave,
        };
        Ok((requester, running))
    }

    pub(crate) async fn send(
        &self,
        subject: impl Into<Subject>,
        payload: Bytes,
    ) -> Result<Reply, BrokerError> {
        let request = [Request::new(subject, payload)].into_iter();
        let reply = self.send_all(request).await?.pop();
        reply.ok_or_else(|| permanent("failed to get a reply"))
    }

    /// Sends requests in the order given and returns the replies in the same order. A request is taken from the
    /// iterator once the window has room. After an error the server may have processed any of them.
    pub(crate) async fn send_all(
        &self,
        requests: impl ExactSizeIterator<Item = Request> + Send,
    ) -> Result<Vec<Reply>, BrokerError> {
        if requests.len() == 0 {
            return Ok(Vec::new());
        }
        let deadline = Instant::now() + self.timeout;
        self.connection.wait_until_connected(deadline).await?;
        let watch = self.connection.watch();
        let registered = self.register(requests.len());
        let (batch, connects) = (&registered.batch, registered.connects);
        // Sending ends only with an error. Otherwise the `select` below waits for the replies.
        let sending = async {
            self.write(batch, requests).await?;
            std::future::pending::<Result<(), BrokerError>>().await
        };
        tokio::select! {
            failed = sending => failed?,
            completed = batch.completed(watch, self.timeout) => completed?,
        }
        if self.connection.connects() != connects {
            // A reply over the new connection cannot confirm requests from the old one.
            return Err(transient(
                "failed to get replies from NATS: the connection was lost",
            ));
        }
        let mut state = lock(&batch.state);
        Ok(state.replies.drain(..).flatten().collect())
    }

    /// Returns after the server has processed everything that this process sent before.
    pub(crate) async fn round_trip(&self) -> Result<(), BrokerError> {
        let echo = self.send(format!("{}{ECHO}", self.inbox), Bytes::new());
        echo.await.map(drop)
    }

    fn register(&self, count: usize) -> Registered<'_> {
        let mut batches = lock(&self.batches);
        let first = batches.next;
        batches.next += count as u64;
        let batch = Arc::new(Batch {
            first,
            state: Mutex::new(BatchState {
                subjects: Vec::with_capacity(count),
                replies: vec![None; count],
                answered: 0,
                heard: Heard::Nothing,
                slots: None,
            }),
            progress: Notify::new(),
        });
        batches.in_flight.insert(first, Arc::clone(&batch));
        drop(batches);
        Registered {
            batch,
            requester: self,
            connects: self.connection.connects(),
            sent_at: Instant::now(),
        }
    }

    async fn write(
        &self,
        batch: &Batch,
        requests: impl ExactSizeIterator<Item = Request>,
    ) -> Result<(), BrokerError> {
        let mut numbered = requests.enumerate();
        while numbered.len() > 0 {
            let count = numbered.len().min(self.chunk);
            self.reserve(batch, count).await?;
            for (place, request) in numbered.by_ref().take(count) {
                self.write_one(batch, place, request).await?;
            }
        }
        Ok(())
    }

    async fn reserve(&self, batch: &Batch, count: usize) -> Result<(), BrokerError> {
        let window = Arc::clone(&self.window);
        let slots = window
            .acquire_many_owned(u32::try_from(count).unwrap_or(u32::MAX))
            .await
            .map_err(|e| transient("failed to send to NATS").caused_by(e))?;
        let mut state = lock(&batch.state);
        match &mut state.slots {
            Some(reserved) => reserved.merge(slots),
            none => *none = Some(slots),
        }
        Ok(())
    }

    async fn write_one(
        &self,
        batch: &Batch,
        place: usize,
        request: Request,
    ) -> Result<(), BrokerError> {
        let reply_to = || format!("{}.{}", self.inbox, batch.first + place as u64).into();
        let message = OutboundMessage {
            subject: request.subject.clone(),
            reply: request.expects_reply.then(reply_to),
            payload: request.payload,
            headers: request.headers,
        };
        lock(&batch.state).subjects.push(request.subject);
        let written = self.connection.client.publish_message(message).await;
        written.map_err(|e| transient(format!("failed to send to NATS: {e}")).caused_by(e))?;
        if !request.expects_reply {
            let reply = Reply {
                payload: Some(Bytes::new()),
                received_at: Instant::now(),
            };
            batch.answer(lock(&batch.state), place, reply);
        }
        Ok(())
    }
}

/// When its call ends, even if the call is dropped, removes the batch from the list and records whether `JetStream`
/// answered.
struct Registered<'a> {
    batch: Arc<Batch>,
    requester: &'a Requester,
    connects: u64,
    sent_at: Instant,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        lock(&self.requester.batches)
            .in_flight
            .remove(&self.batch.first);
        let state = lock(&self.batch.state);
        let Some(asks) = state.subjects.first().and_then(asks) else {
            return;
        };
        let is_unanswered = match state.heard {
            Heard::Answer => {
                lock(&self.requester.silence).answered(asks);
                return;
            }
            Heard::Failure => return,
            Heard::Unavailable => true,
            Heard::Nothing => state.answered < state.subjects.len(),
        };
        drop(state);
        let connection = &self.requester.connection;
        // After a lost connection, nothing is known about the server.
        if !is_unanswered || !connection.is_still(self.connects) {
            return;
        }
        let at = Place {
            connects: self.connects,
            server_id: connection.client.server_info().server_id,
        };
        let mut silence = lock(&self.requester.silence);
        if let Some(silent) = silence.unanswered(asks, self.sent_at, Instant::now(), at)
            && connection.has_other_servers()
        {
            tracing::warn!(
                silent_seconds = silent.as_secs(),
                "JetStream does not answer at this NATS server, or has no leader there; connecting to another server"
            );
            self.requester.leave.send_replace(self.connects);
        }
    }
}

impl Batch {
    /// Returns when all requests are answered, or when the answers can no longer come.
    async fn completed(
        &self,
        mut watch: FailureWatch,
        timeout: Duration,
    ) -> Result<(), BrokerError> {
        let failed = watch.failed(|denied| {
            let state = lock(&self.state);
            state.subjects.iter().any(|s| s.as_str() == denied)
        });
        tokio::pin!(failed);
        let (mut seen, mut deadline) = (0, Instant::now() + timeout);
        loop {
            let progress = self.progress.notified();
            let (answered, all) = {
                let state = lock(&self.state);
                (state.answered, state.replies.len())
            };
            if answered == all {
                return Ok(());
            }
            if answered > seen {
                (seen, deadline) = (answered, Instant::now() + timeout);
            }
            tokio::select! {
                () = progress => {}
                failed = &mut failed => {
                    lock(&self.state).heard = Heard::Failure;
                    return Err(failed);
                }
                () = sleep_until(deadline) => {
                    return Err(transient(format!(
                        "failed to get replies from NATS: {answered} of {all} arrived, and none for {timeout:?}"
                    )));
                }
            }
        }
    }

    /// Records a reply that the server sent. Returns it if no request of the batch has this place.
    fn hear(&self, place: usize, reply: Reply) -> Option<Reply> {
        let mut state = lock(&self.state);
        if place >= state.replies.len() {
            return Some(reply);
        }
        if state.heard != Heard::Answer {
            state.heard = match &reply.payload {
                Some(payload) if !PublishAck::is_unavailable(payload) => Heard::Answer,
                // No server leads the stream, or `JetStream` as a whole.
                _ => Heard::Unavailable,
            };
        }
        self.answer(state, place, reply);
        None
    }

    fn answer(&self, mut state: MutexGuard<'_, BatchState>, place: usize, reply: Reply) {
        // Only the first reply to a request counts.
        let Some(empty @ None) = state.replies.get_mut(place) else {
            return;
        };
        *empty = Some(reply);
        state.answered += 1;
        // Frees the slot of this request.
        drop(state.slots.as_mut().and_then(|slots| slots.split(1)));
        drop(state);
        self.progress.notify_one();
    }
}

async fn match_replies(
    replies: Subscriber,
    batches: Arc<Mutex<Batches>>,
    silence: Arc<Mutex<Silence>>,
) {
    let mut chunks = replies.ready_chunks(MAX_REPLIES_AT_ONCE);
    while let Some(chunk) = chunks.next().await {
        let received_at = Instant::now();
        let batches = lock(&batches);
        for message in chunk {
            let Some(number) = number(&message) else {
                continue;
            };
            let answered = message.status != Some(StatusCode::NO_RESPONDERS);
            let reply = Reply {
                payload: answered.then_some(message.payload),
                received_at,
            };
            // The batch that this number falls into starts at the highest number not above it.
            let late = match batches.in_flight.range(..=number).next_back() {
                Some((first, batch)) => {
                    let place = usize::try_from(number - first).unwrap_or(usize::MAX);
                    batch.hear(place, reply)
                }
                None => Some(reply),
            };
            // Its caller no longer waits. The server is slow, and not silent.
            let payload = late.and_then(|reply| reply.payload);
            if payload.is_some_and(|payload| PublishAck::is_stored(&payload)) {
                lock(&silence).answered(Asks::ToStore);
            }
        }
    }
}

/// Gives up each connection whose number arrives.
async fn leave_servers(connection: Connection, mut left: watch::Receiver<u64>) {
    while left.changed().await.is_ok() {
        let connects = *left.borrow_and_update();
        connection.leave(connects).await;
    }
}

/// `None` for a request that this process answers itself.
fn asks(subject: &Subject) -> Option<Asks> {
    if subject.ends_with(ECHO) {
        return None;
    }
    let is_api = subject.starts_with("$JS.API.");
    Some(if is_api { Asks::Api } else { Asks::ToStore })
}

/// The number of the request that a message on the inbox answers.
fn number(message: &Message) -> Option<u64> {
    let inbox = match &message.reply {
        // The request itself has returned to its sender.
        Some(reply) if message.subject.ends_with(ECHO) => reply,
        _ => &message.subject,
    };
    inbox.rsplit('.').next()?.parse().ok()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
