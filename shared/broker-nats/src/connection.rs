//! The state of the connection: whether it is up, how often it was lost, and which subjects the server denied.
//!
//! async-nats reconnects by itself, without a limit. It does not tell the caller of a request that the connection was
//! lost or that the server denied the subject; a [`FailureWatch`] does.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{
    Client, ConnectErrorKind, ConnectOptions, Event, ReconnectToServer, Server, ServerAddr,
    ServerError,
};
use cueline_broker::{BrokerError, ErrorKind};
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, sleep, timeout_at};

use crate::error::{permanent, transient};

/// Denied subjects that are kept for waiting calls. A call that misses its own denial waits for its timeout.
const MAX_DENIALS: usize = 256;
/// async-nats drops events that it has no room for, so the driver also polls the state.
const STATE_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    losses: watch::Receiver<u64>,
    denied: Arc<broadcast::Sender<String>>,
    /// Whether more than one address was given.
    has_addresses: bool,
    rotation: Arc<Rotation>,
}

impl Connection {
    pub(crate) async fn open(
        servers: Vec<ServerAddr>,
        options: ConnectOptions,
    ) -> Result<Self, BrokerError> {
        let (lost, losses) = watch::channel(0);
        let denied = Arc::new(broadcast::channel(MAX_DENIALS).0);
        let denials = Arc::clone(&denied);
        let rotation = Arc::<Rotation>::default();
        let (connected, reconnecting) = (Arc::clone(&rotation), Arc::clone(&rotation));
        let options = options.reconnect_to_server_callback(move |servers, _| {
            std::future::ready(reconnecting.next(&servers))
        });
        let options = options.event_callback(move |event| {
            match event {
                Event::Connected => connected.end(),
                Event::Disconnected => lost.send_modify(|count| *count += 1),
                Event::ServerError(ServerError::Other(error)) => {
                    if let Some(subject) = denied_subject(&error) {
                        // An error here means that no call is waiting.
                        let _ = denials.send(subject.to_owned());
                    }
                }
                _ => {}
            }
            std::future::ready(())
        });
        let has_addresses = servers.len() > 1;
        let client = options.connect(servers).await.map_err(|e| {
            let kind = match e.kind() {
                ConnectErrorKind::AuthorizationViolation
                | ConnectErrorKind::Authentication
                | ConnectErrorKind::ServerParse => ErrorKind::Permanent,
                _ => ErrorKind::Transient,
            };
            BrokerError::new(kind, format!("failed to connect to NATS: {e}")).caused_by(e)
        })?;
        Ok(Self {
            client,
            losses,
            denied,
            has_addresses,
            rotation,
        })
    }

    pub(crate) async fn wait_until_connected(&self, deadline: Instant) -> Result<(), BrokerError> {
        while self.client.connection_state() != State::Connected {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(transient("failed to reach NATS: there is no connection"));
            }
            sleep(STATE_POLL_INTERVAL.min(left)).await;
        }
        Ok(())
    }

    /// The number of connections so far. It changes with each reconnect.
    pub(crate) fn connects(&self) -> u64 {
        self.client.statistics().connects.load(Ordering::Relaxed)
    }

    /// Whether the connection with this number is up.
    pub(crate) fn is_still(&self, connects: u64) -> bool {
        self.client.connection_state() == State::Connected && self.connects() == connects
    }

    /// Whether there is another server to connect to.
    pub(crate) fn has_other_servers(&self) -> bool {
        self.has_addresses || !self.client.server_info().connect_urls.is_empty()
    }

    /// Gives up the connection with this number, and connects to the next server.
    pub(crate) async fn leave(&self, connects: u64) {
        if self.is_still(connects) {
            self.rotation.begin();
            // An error means that the connection is closed.
            let _ = self.client.force_reconnect().await;
        }
    }

    /// Starts to watch for failures.
    pub(crate) fn watch(&self) -> FailureWatch {
        let mut losses = self.losses.clone();
        losses.mark_unchanged();
        FailureWatch {
            losses,
            denied: self.denied.subscribe(),
        }
    }

    /// Waits until `deadline` for room in the client's command queue, which fills up while the connection stalls.
    pub(crate) async fn enqueue<T, E: std::error::Error + Send + Sync + 'static>(
        &self,
        command: impl Future<Output = Result<T, E>>,
        deadline: Instant,
    ) -> Result<T, BrokerError> {
        match timeout_at(deadline, command).await {
            Ok(Ok(enqueued)) => Ok(enqueued),
            Ok(Err(e)) => Err(transient("failed to send to NATS").caused_by(e)),
            Err(_) => Err(transient(
                "failed to send to NATS: the connection is stalled",
            )),
        }
    }
}

/// The order in which servers are tried after one was left. async-nats prefers the server that failed least often to
/// connect to, so it would always take the one that was left.
#[derive(Default)]
struct Rotation(Mutex<RotationState>);

#[derive(Default)]
struct RotationState {
    is_leaving: bool,
    tried: Vec<ServerAddr>,
}

impl Rotation {
    fn begin(&self) {
        self.state().is_leaving = true;
    }

    /// A server is connected.
    fn end(&self) {
        self.state().is_leaving = false;
    }

    /// The server to connect to now; `None` lets async-nats choose. Each server has its turn. One of them is the server
    /// that was left, because async-nats does not tell which one it is connected to.
    fn next(&self, servers: &[Server]) -> Option<ReconnectToServer> {
        let mut state = self.state();
        if !state.is_leaving {
            return None;
        }
        if servers.iter().all(|s| state.tried.contains(&s.addr)) {
            state.tried.clear();
        }
        let order = RandomState::new();
        let untried = servers.iter().filter(|s| !state.tried.contains(&s.addr));
        let next = untried.min_by_key(|s| order.hash_one(s.addr.as_url_str()))?;
        let addr = next.addr.clone();
        state.tried.push(addr.clone());
        // The delay after failed attempts is that of any reconnect.
        Some(ReconnectToServer { addr, delay: None })
    }

    fn state(&self) -> MutexGuard<'_, RotationState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct FailureWatch {
    losses: watch::Receiver<u64>,
    denied: broadcast::Receiver<String>,
}

impl FailureWatch {
    /// Returns when the connection is lost, or when the server denies a subject that `is_own` accepts.
    pub(crate) async fn failed(&mut self, is_own: impl Fn(&str) -> bool) -> BrokerError {
        loop {
            tokio::select! {
                changed = self.losses.changed() => {
                    if changed.is_err() {
                        return BrokerError::new(ErrorKind::Closed, "failed to use NATS: the connection is closed");
                    }
                    return transient("failed to get a reply from NATS: the connection was lost");
                }
                denied = self.denied.recv() => match denied {
                    Ok(subject) if is_own(&subject) => {
                        return permanent(format!(
                            "failed to use {subject}: the NATS server does not permit it to this user"
                        ));
                    }
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
                }
            }
        }
    }

    /// Whether the connection was lost since the watch began.
    pub(crate) fn connection_lost(&self) -> bool {
        self.losses.has_changed().unwrap_or(true)
    }
}

/// Extracts the subject from `Permissions Violation for Publish to "…"` or `… for Subscription to "…"`.
fn denied_subject(error: &str) -> Option<&str> {
    let rest = error.strip_prefix("Permissions Violation for ")?;
    let (_, quoted) = rest.split_once('"')?;
    quoted.split('"').next()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_server_has_its_turn_whatever_failed_before() {
        let servers = ["a:1", "b:2", "c:3"].map(|addr| Server {
            addr: addr.parse().unwrap(),
            failed_attempts: usize::from(addr != "a:1"),
            did_connect: true,
            is_discovered: false,
            last_error: None,
        });
        let rotation = Rotation::default();
        assert!(rotation.next(&servers).is_none(), "async-nats chooses");
        for _ in 0..2 {
            let mut turns = BTreeSet::new();
            for _ in 0..servers.len() {
                rotation.begin();
                turns.insert(rotation.next(&servers).unwrap().addr.port());
                rotation.end();
            }
            assert_eq!(turns, BTreeSet::from([1, 2, 3]));
        }
        assert!(rotation.next(&servers).is_none());
    }

    #[test]
    fn the_denied_subject_is_found_in_the_servers_message() {
        for (error, subject) in [
            (
                "Permissions Violation for Publish to \"a.b.>\"",
                Some("a.b.>"),
            ),
            (
                "Permissions Violation for Subscription to \"x\" using queue \"q\"",
                Some("x"),
            ),
            ("Slow Consumer", None),
        ] {
            assert_eq!(denied_subject(error), subject);
        }
    }
}
