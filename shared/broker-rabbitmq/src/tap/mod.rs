//! Consuming one queue: what the server sends ahead is kept here until it is fetched.
//!
//! A prefetch is set when a consumer starts, so a larger one takes a new consumer. The old one is cancelled only while it has no
//! credit left: then nothing can be on its way to it, which would otherwise be lost to both until the channel closes, and the order
//! of messages is kept. So the prefetch begins with what the first fetch asks for, and grows with what callers take and hold.

mod keep;
mod open;
mod session;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cueline_broker::{BrokerError, Delivery, QueueId, Receipt};
use lapin::types::ShortString;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::{closed, late, no_queue};
use crate::link::Link;
use crate::names::Names;
use crate::options::RabbitOptions;
use crate::topology;
pub(crate) use session::Session;

/// What all taps of a driver use.
pub(crate) struct Surroundings {
    pub(crate) link: Arc<Link>,
    pub(crate) names: Names,
    pub(crate) options: RabbitOptions,
    pub(crate) receipts: AtomicU64,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
}

/// See the module.
pub(crate) struct Tap {
    queue: QueueId,
    name: ShortString,
    around: Arc<Surroundings>,
    state: Mutex<State>,
    /// Something came, or will not come any more.
    changed: Notify,
    /// The next thing to be kept in time is another one.
    timing: Notify,
    /// One at a time opens, renews or ends a consumer.
    opening: tokio::sync::Mutex<()>,
    /// The queue has been deleted here.
    gone: CancellationToken,
}

struct State {
    session: Option<Session>,
    /// Sessions so far; a number names one.
    sessions: u64,
    /// How often the server has ended a consumer because the queue went.
    cancelled: u64,
    fetching: usize,
    last_fetch: Instant,
}

/// What a fetch finds.
enum Found {
    Messages(Vec<Delivery>, Grow),
    Nothing,
    NeedsConsumer,
}

/// Whether a larger prefetch would be of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grow {
    Yes,
    No,
}

impl Tap {
    pub(crate) fn start(
        queue: QueueId,
        around: Arc<Surroundings>,
    ) -> Result<Arc<Self>, BrokerError> {
        let tap = Arc::new(Self {
            name: around.names.queue(&queue)?,
            queue,
            around,
            state: Mutex::new(State {
                session: None,
                sessions: 0,
                cancelled: 0,
                fetching: 0,
                last_fetch: Instant::now(),
            }),
            changed: Notify::new(),
            timing: Notify::new(),
            opening: tokio::sync::Mutex::default(),
            gone: CancellationToken::new(),
        });
        tap.around.tasks.spawn(keep::keep(Arc::clone(&tap)));
        Ok(tap)
    }

    /// Messages that wait here and those that are handed out.
    pub(crate) fn counts(&self) -> (u64, u64) {
        match &self.lock().session {
            Some(session) => (session.waiting() as u64, session.handed_out() as u64),
            None => (0, 0),
        }
    }

    /// Names the consumer that is open now, if one is.
    pub(crate) fn consumer(&self) -> Option<(u64, u64)> {
        let state = self.lock();
        let session = state.session.as_ref().filter(|s| s.is_open())?;
        let consuming = session.consuming.as_ref()?;
        Some((session.number, consuming.number))
    }

    /// See [`cueline_broker::Driver::fetch`].
    pub(crate) async fn fetch(
        self: &Arc<Self>,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, BrokerError> {
        let give_up = Instant::now() + wait.min(Duration::from_hours(24));
        let fetching = Fetching::start(self);
        let cancelled = fetching.cancelled;
        let mut opened_one = false;
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            match self.find(max, cancelled)? {
                Found::Messages(messages, grow) => {
                    if grow == Grow::Yes {
                        // Not waited for: the next fetch has use of it.
                        self.around.tasks.spawn(Arc::clone(self).open(max));
                    }
                    return Ok(messages);
                }
                Found::NeedsConsumer if opened_one && Instant::now() >= give_up => {
                    // Others took what came, or there is no consumer, however often one is opened.
                    return match self.consumer() {
                        Some(_) => Ok(Vec::new()),
                        None => Err(late("fetch", wait)),
                    };
                }
                Found::NeedsConsumer => {
                    opened_one = true;
                    // A task of its own: a fetch may be dropped half-way, a consumer must not.
                    let opened = self.around.tasks.spawn(Arc::clone(self).open(max));
                    let within = self.around.options.request_timeout;
                    match timeout(within, opened).await {
                        Ok(Ok(opened)) => opened?,
                        Ok(Err(_)) => return Err(closed()),
                        Err(_) => return Err(late("fetch", within)),
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

    fn find(&self, max: usize, cancelled: u64) -> Result<Found, BrokerError> {
        if self.around.stop.is_cancelled() {
            return Err(closed());
        }
        let mut state = self.lock();
        if state.cancelled != cancelled || self.gone.is_cancelled() {
            return Err(no_queue(&self.queue));
        }
        let Some(session) = state.session.as_mut().filter(|session| session.is_open()) else {
            return Ok(Found::NeedsConsumer);
        };
        let options = &self.around.options;
        let room = options.unsettled_limit.saturating_sub(session.handed_out());
        if session.waiting() > 0 && room > 0 {
            let due = Instant::now() + options.ack_wait;
            let receipts = &self.around.receipts;
            let (messages, sooner) = session.hand_out(max.min(room), due, || {
                Receipt(receipts.fetch_add(1, Ordering::Relaxed))
            });
            if sooner {
                self.timing.notify_one();
            }
            let grow = session.wants_more(max, messages.len(), options);
            return Ok(Found::Messages(messages, grow));
        }
        if room == 0 || session.has_credit() {
            return Ok(Found::Nothing);
        }
        Ok(Found::NeedsConsumer)
    }

    /// Ends it: the queue is no more.
    pub(crate) fn end(&self) {
        self.gone.cancel();
        let ended = self.lock().session.take();
        self.close_later(ended);
        self.changed.notify_waiters();
    }

    /// Channels are closed explicitly: lapin closes one only when everything that came over it has been dropped.
    fn close_later(&self, session: Option<Session>) {
        let Some(session) = session else {
            return;
        };
        self.around.tasks.spawn(async move {
            // The server has given everything back when the channel or its connection has ended, in whichever way.
            let _ = session.close().await;
        });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `what` on the session of the moment.
    pub(crate) fn with_session<T>(&self, what: impl FnOnce(&mut Session) -> T) -> Option<T> {
        self.lock().session.as_mut().map(what)
    }

    /// A delivery is to be given back at another time than the others.
    pub(crate) fn retime(&self) {
        self.timing.notify_one();
    }

    /// Makes another queue, which settling needs.
    pub(crate) async fn declare(&self, queue: &QueueId) -> Result<(), BrokerError> {
        let up = self.around.link.up().await?;
        topology::declare(&up, &self.around.names, &self.around.options, queue).await
    }

    pub(crate) fn queue(&self) -> &QueueId {
        &self.queue
    }

    pub(crate) fn name(&self) -> ShortString {
        self.name.clone()
    }
}

/// A fetch under way; while there is one, the queue is not idle.
struct Fetching<'a> {
    tap: &'a Tap,
    cancelled: u64,
}

impl<'a> Fetching<'a> {
    fn start(tap: &'a Tap) -> Self {
        let mut state = tap.lock();
        state.fetching += 1;
        let cancelled = state.cancelled;
        drop(state);
        Self { tap, cancelled }
    }
}

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        let mut state = self.tap.lock();
        state.fetching -= 1;
        state.last_fetch = Instant::now();
    }
}
