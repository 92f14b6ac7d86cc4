//! The state of the connection: whether it is up, how often it was lost, and which subjects the server denied.
//!
//! async-nats reconnects by itself, without a limit. It does not tell the caller of a request that the connection was
//! lost or that the server denied the subject; a [`FailureWatch`] does.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, ServerAddr, ServerError};
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
}

impl Connection {
    pub(crate) async fn open(
        servers: Vec<ServerAddr>,
        options: ConnectOptions,
    ) -> Result<Self, BrokerError> {
        let (lost, losses) = watch::channel(0);
        let denied = Arc::new(broadcast::channel(MAX_DENIALS).0);
        let denials = Arc::clone(&denied);
        let options = options.event_callback(move |event| {
            match event {
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

    /// Whether a reconnect may lead to another server.
    pub(crate) fn has_other_servers(&self) -> bool {
        self.has_addresses || !self.client.server_info().connect_urls.is_empty()
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
    use super::*;

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
