//! Consumes one queue and buffers messages that the server sends ahead of the fetches.
//!
//! A prefetch applies only to consumers that start after it was set, so a larger prefetch needs a new consumer. The
//! driver cancels the old one only while it has no credit, so that no message is in flight to it. Such a message would
//! reach neither consumer until the channel closes, and the order would break. `docs/rabbitmq.md` shows the states.

mod deadlines;
mod prefetch;
mod session;
mod subscribe;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cueline_broker::{BrokerError, Delivery, QueueId};
use lapin::types::ShortString;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

pub(crate) use self::session::Session;
use crate::context::DriverContext;
use crate::error::{closed, no_queue, timed_out};

/// The most unsettled deliveries of one queue. Further fetches wait.
const MAX_UNSETTLED: usize = 50_000;

/// The consumer of one queue.
pub(crate) struct Consumer {
    pub(crate) queue: QueueId,
    pub(crate) name: ShortString,
    context: Arc<DriverContext>,
    state: Mutex<State>,
    /// Messages have arrived, or no more will arrive.
    changed: Notify,
    /// The earliest deadline has changed.
    deadline_moved: Notify,
    /// Held while a subscription starts, is replaced or ends.
    subscribing: tokio::sync::Mutex<()>,
    /// Set when this driver deletes the queue.
    deleted: CancellationToken,
}

struct State {
    session: Option<Session>,
    /// The number of sessions so far.
    sessions: u64,
    /// How often the server ended a subscription because the queue was deleted.
    queue_deletions: u64,
    active_fetches: usize,
    last_fetch: Instant,
}

enum Found {
    Messages(Vec<Delivery>),
    Nothing,
    NoCredit,
}

impl Consumer {
    pub(crate) fn start(
        queue: QueueId,
        context: Arc<DriverContext>,
    ) -> Result<Arc<Self>, BrokerError> {
        let consumer = Arc::new(Self {
            name: context.names.queue(&queue)?,
            queue,
            context,
            state: Mutex::new(State {
                session: None,
                sessions: 0,
                queue_deletions: 0,
                active_fetches: 0,
                last_fetch: Instant::now(),
            }),
            changed: Notify::new(),
            deadline_moved: Notify::new(),
            subscribing: tokio::sync::Mutex::default(),
            deleted: CancellationToken::new(),
        });
        let tasks = &consumer.context.tasks;
        tasks.spawn(deadlines::watch(Arc::clone(&consumer)));
        Ok(consumer)
    }

    /// Counts the messages that are buffered here, and the unsettled deliveries.
    pub(crate) fn counts(&self) -> (u64, u64) {
        self.with_session(|s| (s.buffered() as u64, s.unsettled() as u64))
            .unwrap_or_default()
    }

    /// Identifies the open subscription.
    pub(crate) fn subscription(&self) -> Option<(u64, u64)> {
        let state = self.lock();
        let session = state.session.as_ref().filter(|s| s.channel.is_open())?;
        Some((session.number, session.subscription.as_ref()?.number))
    }

    /// See [`cueline_broker::Driver::fetch`].
    pub(crate) async fn fetch(
        self: &Arc<Self>,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, BrokerError> {
        let give_up = Instant::now() + wait.min(Duration::from_hours(24));
        let active = ActiveFetch::start(self);
        let mut subscribed = false;
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            match self.find(max, active.queue_deletions)? {
                Found::Messages(messages) => return Ok(messages),
                Found::NoCredit if subscribed && Instant::now() >= give_up => {
                    // Either other fetches took the messages, or the subscription keeps ending at once.
                    return match self.subscription() {
                        Some(_) => Ok(Vec::new()),
                        None => Err(timed_out("fetch", wait)),
                    };
                }
                Found::NoCredit => {
                    subscribed = true;
                    // Runs in a task: a fetch may be dropped at any point, but starting a subscription must complete.
                    let subscribe = self
                        .context
                        .tasks
                        .spawn(Arc::clone(self).ensure_credit(max));
                    let within = self.context.options.request_timeout;
                    match timeout(within, subscribe).await {
                        Ok(Ok(done)) => done?,
                        Ok(Err(_)) => return Err(closed()),
                        Err(_) => return Err(timed_out("fetch", within)),
                    }
                }
                Found::Nothing => {
                    if timeout_at(give_up, changed).await.is_err() {
                        return Ok(Vec::new());
                    }
                }
            }
        }
    }

    fn find(self: &Arc<Self>, max: usize, queue_deletions: u64) -> Result<Found, BrokerError> {
        self.context.ensure_open()?;
        let mut state = self.lock();
        if state.queue_deletions != queue_deletions || self.deleted.is_cancelled() {
            return Err(no_queue(&self.queue));
        }
        let Some(session) = state.session.as_mut().filter(|s| s.channel.is_open()) else {
            return Ok(Found::NoCredit);
        };
        let room = MAX_UNSETTLED.saturating_sub(session.unsettled());
        if session.buffered() == 0 || room == 0 {
            return Ok(if room == 0 || session.has_credit() {
                Found::Nothing
            } else {
                Found::NoCredit
            });
        }
        let before = session.next_deadline();
        let deadline = Instant::now() + self.context.options.ack_wait;
        let messages = session.hand_out(max.min(room), deadline, || self.context.next_receipt());
        self.notify_if_sooner(session, before);
        let prefetch = session.subscription.as_ref().map_or(0, |s| s.prefetch);
        if session.sizer.note_fetch(max, messages.len(), prefetch) && !session.has_credit() {
            // Runs in the background, because only the next fetch benefits.
            self.context
                .tasks
                .spawn(Arc::clone(self).ensure_credit(max));
        }
        Ok(Found::Messages(messages))
    }

    /// Ends the consumer of a deleted queue.
    pub(crate) fn end(&self) {
        self.deleted.cancel();
        let ended = self.lock().session.take();
        self.close_in_background(ended);
        self.changed.notify_waiters();
    }

    fn close_in_background(&self, session: Option<Session>) {
        if let Some(session) = session {
            // The end of the channel returns all messages, whatever ends it.
            self.context
                .tasks
                .spawn(async { drop(session.close().await) });
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on the present session.
    pub(crate) fn with_session<T>(&self, work: impl FnOnce(&mut Session) -> T) -> Option<T> {
        let mut state = self.lock();
        let session = state.session.as_mut()?;
        let before = session.next_deadline();
        let done = work(session);
        self.notify_if_sooner(session, before);
        Some(done)
    }

    fn notify_if_sooner(&self, session: &Session, before: Option<Instant>) {
        let next = session.next_deadline();
        if next.is_some_and(|next| before.is_none_or(|before| next < before)) {
            self.deadline_moved.notify_one();
        }
    }
}

/// A fetch in progress. Until it ends, the queue does not count as idle.
struct ActiveFetch<'a> {
    consumer: &'a Consumer,
    /// The number of deletions when the fetch began.
    queue_deletions: u64,
}

impl<'a> ActiveFetch<'a> {
    fn start(consumer: &'a Consumer) -> Self {
        let mut state = consumer.lock();
        state.active_fetches += 1;
        Self {
            consumer,
            queue_deletions: state.queue_deletions,
        }
    }
}

impl Drop for ActiveFetch<'_> {
    fn drop(&mut self) {
        let mut state = self.consumer.lock();
        state.active_fetches -= 1;
        state.last_fetch = Instant::now();
    }
}
