//! A connection that the driver opens again whenever it ends.
//!
//! lapin's own recovery is off. It gives up after a number of attempts and ignores errors of a single channel. It also
//! restores channels under the same handle: an ack from before the cut could then settle a message from after it.

mod connect;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cueline_broker::{BrokerError, ErrorKind};
use futures_util::future::{BoxFuture, ready};
use futures_util::{FutureExt as _, StreamExt as _};
use lapin::Event;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use self::connect::Connector;
use crate::error::{CallError, answered, closed, timed_out};

const FIRST_WAIT: Duration = Duration::from_millis(100);

/// A connection that ends sooner counts as a failed attempt. Reconnecting at once to such a server would put load on
/// it.
pub(crate) const STABLE_AFTER: Duration = Duration::from_secs(10);

/// lapin sends no event for some ends, such as a close without an error code. This poll detects them.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// One connection, from its opening to its end.
pub(crate) struct Connection {
    inner: lapin::Connection,
    /// The driver declares the exchanges once for each connection.
    exchanges_declared: AtomicBool,
    /// The longest wait for an answer of the server.
    pub(crate) request_timeout: Duration,
}

impl Connection {
    pub(crate) async fn open_channel(self: &Arc<Self>) -> Result<OpenChannel, BrokerError> {
        let open = self.inner.create_channel();
        Ok(OpenChannel {
            amqp: answered("open a channel", self.request_timeout, open).await?,
            connection: Arc::clone(self),
        })
    }

    /// Whether the server is short of memory or disk and does not read what is published on this connection.
    pub(crate) fn is_blocked(&self) -> bool {
        self.inner.status().blocked()
    }

    pub(crate) fn are_exchanges_declared(&self) -> bool {
        self.exchanges_declared.load(Ordering::Acquire)
    }

    /// `false` makes the driver declare the exchanges again before their next use.
    pub(crate) fn set_exchanges_declared(&self, declared: bool) {
        self.exchanges_declared.store(declared, Ordering::Release);
    }

    fn is_open(&self) -> bool {
        self.inner.status().connected()
    }

    async fn ended(&self) {
        let mut events = Box::pin(self.inner.events_listener());
        while self.is_open() {
            tokio::select! {
                event = events.next() => match event {
                    Some(Event::ConnectionBlocked(reason)) => {
                        tracing::warn!(reason, "RabbitMQ blocked publishing; free memory or disk on its host");
                    }
                    Some(Event::ConnectionUnblocked) => tracing::info!("RabbitMQ unblocked publishing"),
                    Some(Event::Error(error)) => tracing::debug!(%error, "connection failed"),
                    Some(_) => {}
                    None => return,
                },
                () = sleep(POLL_EVERY) => {}
            }
        }
    }
}

/// A channel and the connection that carries it. The channel closes when its last clone is dropped.
#[derive(Clone)]
pub(crate) struct OpenChannel {
    pub(crate) connection: Arc<Connection>,
    pub(crate) amqp: lapin::Channel,
}

impl OpenChannel {
    pub(crate) fn is_open(&self) -> bool {
        self.connection.is_open() && self.amqp.status().connected()
    }

    /// Waits for the answer to `call`, for at most the request timeout. `what` completes "failed to …".
    pub(crate) async fn answer<T>(
        &self,
        what: &str,
        call: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, CallError> {
        answered(what, self.connection.request_timeout, call).await
    }
}

/// Queues the frames of a lapin call for the socket now. The returned future completes the call.
///
/// lapin queues frames on the first poll. The driver relies on their order without waiting for the socket, even while
/// it holds a lock.
pub(crate) fn enqueue<'a, T: Send + 'a>(
    call: impl Future<Output = lapin::Result<T>> + Send + 'a,
) -> BoxFuture<'a, lapin::Result<T>> {
    let mut call = Box::pin(call);
    match (&mut call).now_or_never() {
        Some(done) => Box::pin(ready(done)),
        None => call,
    }
}

#[derive(Clone)]
enum State {
    /// With the last error, after a failed attempt.
    Disconnected(Option<Arc<BrokerError>>),
    Connected(Arc<Connection>),
    Closed,
}

/// A connection with a task that opens it again whenever it ends.
pub(crate) struct SupervisedConnection {
    state: watch::Receiver<State>,
    pub(crate) request_timeout: Duration,
}

impl SupervisedConnection {
    /// Connects in the background, and again after each end, until `stop`.
    pub(crate) fn start(
        connector: Connector,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let (sender, state) = watch::channel(State::Disconnected(None));
        let request_timeout = connector.request_timeout;
        tasks.spawn(async move {
            stop.run_until_cancelled(keep_connected(&connector, &sender))
                .await;
            if let State::Connected(connection) = sender.send_replace(State::Closed) {
                let close = connection.inner.close(200, "closed".into());
                // If the server does not answer, it still notices that the stream ends.
                let _ = timeout(request_timeout, close).await;
            }
        });
        Self {
            state,
            request_timeout,
        }
    }

    /// Returns the present connection. Waits for one, for at most the request timeout.
    pub(crate) async fn current(&self) -> Result<Arc<Connection>, BrokerError> {
        let mut state = self.state.clone();
        let usable = state.wait_for(|state| match state {
            State::Connected(connection) => connection.is_open(),
            State::Disconnected(Some(error)) => error.kind() == ErrorKind::Permanent,
            State::Disconnected(None) => false,
            State::Closed => true,
        });
        let state = match timeout(self.request_timeout, usable).await {
            Ok(Ok(state)) => state.clone(),
            Ok(Err(_)) => State::Closed,
            Err(_) => self.state.borrow().clone(),
        };
        match state {
            State::Connected(connection) if connection.is_open() => Ok(connection),
            State::Disconnected(Some(error)) => {
                Err(BrokerError::new(error.kind(), error.to_string()))
            }
            State::Connected(_) | State::Disconnected(None) => {
                Err(timed_out("connect to RabbitMQ", self.request_timeout))
            }
            State::Closed => Err(closed()),
        }
    }
}

async fn keep_connected(connector: &Connector, state: &watch::Sender<State>) {
    let mut wait = FIRST_WAIT;
    loop {
        match connector.connect().await {
            Ok(connection) => {
                let start = Instant::now();
                let connection = Arc::new(connection);
                state.send_replace(State::Connected(Arc::clone(&connection)));
                connection.ended().await;
                if start.elapsed() > STABLE_AFTER {
                    wait = FIRST_WAIT;
                }
                tracing::warn!("connection to RabbitMQ ended; the driver reconnects");
                state.send_replace(State::Disconnected(None));
            }
            Err(error) => {
                let wait_ms = wait.as_millis();
                tracing::warn!(%error, wait_ms, "failed to connect to RabbitMQ; the driver tries again");
                state.send_replace(State::Disconnected(Some(Arc::new(error))));
            }
        }
        sleep(wait).await;
        wait = (wait * 2).min(connector.longest_wait.max(FIRST_WAIT));
    }
}
