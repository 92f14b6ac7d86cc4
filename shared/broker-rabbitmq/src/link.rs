//! A connection that is opened again for ever.
//!
//! lapin's own recovery is off: it gives up after some tries, and does not see errors of a single channel. Whoever uses a link asks
//! for the connection of the moment, and for a new one when that has failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cueline_broker::{BrokerError, ErrorKind};
use futures_util::StreamExt as _;
use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties, Event};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::{ACCESS_REFUSED, closed, code, failed, late};
use crate::options::RabbitOptions;

const FIRST_WAIT: Duration = Duration::from_millis(100);

/// A connection that ended sooner counts as a try that failed: one after the other would be a burden to the server.
const LASTED: Duration = Duration::from_secs(10);

/// The server tells of an end at once; this finds what it could not tell.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A connection, from when it was opened until it ended.
pub(crate) struct Up {
    connection: Connection,
    /// The exchanges have been declared on it.
    pub(crate) exchanges: AtomicBool,
    request_timeout: Duration,
}

impl Up {
    /// Opens a channel. It closes when all its clones are dropped.
    pub(crate) async fn channel(&self) -> Result<Channel, BrokerError> {
        self.within("open a channel", self.connection.create_channel())
            .await
    }

    /// Waits for an answer of the server, but not for ever.
    pub(crate) async fn within<T>(
        &self,
        what: &str,
        call: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, BrokerError> {
        match timeout(self.request_timeout, call).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(e)) => Err(failed(what, e)),
            Err(_) => Err(late(what, self.request_timeout)),
        }
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// The server does not read what is published: it is short of memory or disk.
    pub(crate) fn is_blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.connection.status().connected()
    }

    /// Resolves when the connection has ended.
    pub(crate) async fn ended(&self) {
        let mut events = Box::pin(self.connection.events_listener());
        while self.is_open() {
            tokio::select! {
                event = events.next() => match event {
                    Some(Event::ConnectionBlocked(reason)) => {
                        tracing::warn!(reason, "RabbitMQ takes no messages for now");
                    }
                    Some(Event::ConnectionUnblocked) => tracing::info!("RabbitMQ takes messages again"),
                    Some(Event::Error(e)) => tracing::debug!(error = %e, "an error on a connection"),
                    Some(_) => {}
                    None => return,
                },
                () = sleep(LOOK_EVERY) => {}
            }
        }
    }
}

#[derive(Clone)]
enum State {
    /// Why there is no connection, once that is known.
    Down(Option<Arc<BrokerError>>),
    Up(Arc<Up>),
    Closed,
}

/// See the module.
pub(crate) struct Link {
    state: watch::Receiver<State>,
    request_timeout: Duration,
}

/// What is needed to connect.
#[derive(Clone)]
pub(crate) struct Connector {
    uri: AMQPUri,
    tls: OwnedTLSConfig,
    properties: ConnectionProperties,
    request_timeout: Duration,
    longest_wait: Duration,
}

impl Connector {
    /// Reads the address and the files that the options name.
    pub(crate) async fn new(url: &str, options: &RabbitOptions) -> Result<Self, BrokerError> {
        let wrong = |what: String| {
            BrokerError::new(
                ErrorKind::Permanent,
                format!("failed to open the broker: {what}"),
            )
        };
        // The address may hold a password: it is not repeated.
        let mut uri: AMQPUri = url
            .parse()
            .map_err(|e| wrong(format!("the address of RabbitMQ is malformed: {e}")))?;
        uri.query.heartbeat = u16::try_from(options.heartbeat.as_secs()).ok();
        let read = async |path: &std::path::Path| {
            let read = tokio::fs::read(path).await;
            read.map_err(|e| wrong(format!("{} cannot be read: {e}", path.display())))
        };
        let cert_chain = match &options.ca_file {
            None => None,
            Some(path) => Some(
                String::from_utf8(read(path).await?)
                    .map_err(|_| wrong(format!("{} is no PEM file", path.display())))?,
            ),
        };
        let identity = match &options.client_certificate {
            None => None,
            Some(client) => Some(OwnedIdentity::PKCS8 {
                pem: read(&client.certificate).await?,
                key: read(&client.key).await?,
            }),
        };
        Ok(Self {
            uri,
            tls: OwnedTLSConfig {
                identity,
                cert_chain,
            },
            properties: ConnectionProperties::default()
                .with_connection_name(options.connection_name.as_str().into()),
            request_timeout: options.request_timeout,
            longest_wait: options.reconnect_wait.max(FIRST_WAIT),
        })
    }

    /// The user that connects; listeners' queues are named after it.
    pub(crate) fn user(&self) -> &str {
        &self.uri.authority.userinfo.username
    }

    async fn connect(&self) -> Result<Up, BrokerError> {
        let what = "connect to RabbitMQ";
        let runtime = lapin::runtime::default_runtime().map_err(|e| failed(what, e))?;
        let connect = Connection::connect_uri_with_config(
            self.uri.clone(),
            self.properties.clone(),
            self.tls.clone(),
            runtime,
        );
        let connection = match timeout(self.request_timeout, connect).await {
            Ok(connected) => connected.map_err(|e| refused(what, e))?,
            Err(_) => return Err(late(what, self.request_timeout)),
        };
        Ok(Up {
            connection,
            exchanges: AtomicBool::new(false),
            request_timeout: self.request_timeout,
        })
    }
}

/// A wrong password or virtual host stays wrong; everything else may be the server that starts.
fn refused(what: &str, error: lapin::Error) -> BrokerError {
    let kind = match code(&error) {
        Some(ACCESS_REFUSED | 530) => ErrorKind::Permanent,
        _ => ErrorKind::Transient,
    };
    BrokerError::new(kind, format!("failed to {what}: {error}")).caused_by(error)
}

impl Link {
    /// Starts to connect, and goes on until `stop`.
    pub(crate) fn start(
        connector: Connector,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let (sender, state) = watch::channel(State::Down(None));
        let request_timeout = connector.request_timeout;
        tasks.spawn(async move {
            stop.run_until_cancelled(keep_up(&connector, &sender)).await;
            if let State::Up(up) = sender.send_replace(State::Closed) {
                // What it cannot say any more, the server finds out by the end of the stream.
                let _ = timeout(
                    connector.request_timeout,
                    up.connection.close(200, "closed".into()),
                )
                .await;
            }
        });
        Self {
            state,
            request_timeout,
        }
    }

    /// The connection of the moment; waits for one up to `request_timeout`.
    pub(crate) async fn up(&self) -> Result<Arc<Up>, BrokerError> {
        let mut state = self.state.clone();
        let usable = state.wait_for(|state| match state {
            State::Up(up) => up.is_open(),
            State::Down(Some(why)) => why.kind() == ErrorKind::Permanent,
            State::Down(None) => false,
            State::Closed => true,
        });
        let found = match timeout(self.request_timeout, usable).await {
            Ok(Ok(state)) => Some(state.clone()),
            Ok(Err(_)) => Some(State::Closed),
            Err(_) => None,
        };
        match found {
            Some(State::Up(up)) => Ok(up),
            Some(State::Closed) => Err(closed()),
            Some(State::Down(_)) | None => Err(self.why()),
        }
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    fn why(&self) -> BrokerError {
        match &*self.state.borrow() {
            State::Down(Some(why)) => BrokerError::new(why.kind(), why.to_string()),
            _ => late("connect to RabbitMQ", self.request_timeout),
        }
    }

    /// Runs `use_it` on each connection, one after the other, until the link is closed.
    pub(crate) async fn on_each<F, Fut>(&self, mut use_it: F)
    where
        F: FnMut(Arc<Up>) -> Fut,
        Fut: Future<Output = ()>,
    {
        let mut state = self.state.clone();
        loop {
            let now = state.borrow_and_update().clone();
            match now {
                State::Up(up) if up.is_open() => {
                    tokio::select! {
                        () = use_it(up) => {}
                        changed = state.changed() => match changed {
                            Ok(()) => continue,
                            Err(_) => return,
                        },
                    }
                }
                State::Closed => return,
                State::Up(_) | State::Down(_) => {}
            }
            if state.changed().await.is_err() {
                return;
            }
        }
    }
}

async fn keep_up(connector: &Connector, state: &watch::Sender<State>) {
    let mut wait = FIRST_WAIT;
    loop {
        match connector.connect().await {
            Ok(up) => {
                let start = Instant::now();
                let up = Arc::new(up);
                state.send_replace(State::Up(Arc::clone(&up)));
                up.ended().await;
                if start.elapsed() > LASTED {
                    wait = FIRST_WAIT;
                }
                tracing::warn!("the connection to RabbitMQ has ended; opening a new one");
                state.send_replace(State::Down(None));
            }
            Err(error) => {
                tracing::warn!(%error, wait_ms = wait.as_millis(), "no connection to RabbitMQ; trying again");
                state.send_replace(State::Down(Some(Arc::new(error))));
            }
        }
        sleep(wait).await;
        wait = (wait * 2).min(connector.longest_wait);
    }
}

/// Says that the exchanges may be gone.
pub(crate) fn forget_exchanges(up: &Up) {
    up.exchanges.store(false, Ordering::Release);
}
