//! The connection: how it is made, whether it is there, and what the server forbade. The client makes it again by itself, for
//! ever; what was on its way then is lost without a word, so whoever waits for an answer listens here too.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, ServerAddr, ServerError};
use cueline_broker::{BrokerError, ErrorKind};
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, sleep, timeout_at};

use crate::error::{permanent, transient};
use crate::names::unescaped;
use crate::options::{Login, NatsOptions};

/// Messages that one subscription may hold for its reader.
const SUBSCRIPTION_CAPACITY: usize = 65_536;
/// Commands that may wait for the client's connection; further callers wait for a place. Few: what waits here when the connection is lost
/// goes out over the next one, after its callers were told that it failed.
const CLIENT_CAPACITY: usize = 256;
/// Refusals that a call may lag behind; one that missed its own waits for its timeout instead.
const DENIALS: usize = 256;
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// Events can get lost, the state cannot: look at it so often.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A connection and what happens to it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) client: Client,
    /// How often it was lost.
    breaks: watch::Receiver<u64>,
    denied: Arc<broadcast::Sender<String>>,
}

impl Link {
    pub(crate) async fn open(address: &str, options: &NatsOptions) -> Result<Self, BrokerError> {
        let servers = servers(address)?;
        let login = login(&servers, &options.login);
        let (broke, breaks) = watch::channel(0);
        let denied = Arc::new(broadcast::channel(DENIALS).0);
        let tell = Arc::clone(&denied);
        let connect = configured(options, login)
            .await?
            .event_callback(move |event| {
                match event {
                    Event::Disconnected => broke.send_modify(|count| *count += 1),
                    Event::ServerError(ServerError::Other(error)) => {
                        if let Some(subject) = forbidden(&error) {
                            // Nobody may be waiting.
                            let _ = tell.send(subject.to_owned());
                        }
                    }
                    _ => {}
                }
                std::future::ready(())
            });
        let client = connect.connect(servers).await.map_err(|e| {
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
            breaks,
            denied,
        })
    }

    /// Waits until there is a connection, as long as `until`.
    pub(crate) async fn connected(&self, until: Instant) -> Result<(), BrokerError> {
        while self.client.connection_state() != State::Connected {
            if Instant::now() >= until {
                return Err(transient("failed to reach NATS: there is no connection"));
            }
            sleep(LOOK_EVERY.min(until.saturating_duration_since(Instant::now()))).await;
        }
        Ok(())
    }

    /// Which connection this is, counted from the first.
    pub(crate) fn connection(&self) -> u64 {
        self.client.statistics().connects.load(Ordering::Relaxed)
    }

    /// Watches over what is about to be sent.
    pub(crate) fn watch(&self) -> Watch {
        let mut breaks = self.breaks.clone();
        breaks.mark_unchanged();
        Watch {
            breaks,
            denied: self.denied.subscribe(),
        }
    }

    /// Does something that waits for a place in the client's queue, as long as `until`.
    pub(crate) async fn hand_over<T, E: std::error::Error + Send + Sync + 'static>(
        &self,
        sending: impl Future<Output = Result<T, E>>,
        until: Instant,
    ) -> Result<T, BrokerError> {
        match timeout_at(until, sending).await {
            Ok(Ok(sent)) => Ok(sent),
            Ok(Err(e)) => Err(transient("failed to send to NATS").caused_by(e)),
            Err(_) => Err(transient("failed to send to NATS: nothing goes out")),
        }
    }
}

/// Tells why an answer will not come.
pub(crate) struct Watch {
    breaks: watch::Receiver<u64>,
    denied: broadcast::Receiver<String>,
}

impl Watch {
    /// Ends when the connection is lost, or when the server forbade one of the subjects.
    pub(crate) async fn failed(&mut self, concerns: impl Fn(&str) -> bool) -> BrokerError {
        loop {
            tokio::select! {
                changed = self.breaks.changed() => {
                    if changed.is_err() {
                        return BrokerError::new(ErrorKind::Closed, "failed to use NATS: the connection is closed");
                    }
                    return transient("failed to get an answer from NATS: the connection was lost");
                }
                denied = self.denied.recv() => match denied {
                    Ok(subject) if concerns(&subject) => return denied_error(&subject),
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
                }
            }
        }
    }

    /// The connection was lost since the last look.
    pub(crate) fn broke(&self) -> bool {
        self.breaks.has_changed().unwrap_or(true)
    }
}

fn denied_error(subject: &str) -> BrokerError {
    permanent(format!(
        "failed to use {subject}: the NATS server does not permit it to this user"
    ))
}

/// The subject in the server's words, which are `Permissions Violation for Publish to "…"` or `Subscription`.
fn forbidden(error: &str) -> Option<&str> {
    let rest = error.strip_prefix("Permissions Violation for ")?;
    let (_, quoted) = rest.split_once('"')?;
    quoted.split('"').next()
}

/// One address or several, separated by commas. Where none is named it is port 4222.
fn servers(address: &str) -> Result<Vec<ServerAddr>, BrokerError> {
    address
        .split(',')
        .map(|one| {
            one.trim().parse().map_err(|_| {
                // The address is not repeated: it may hold a password.
                permanent("failed to connect to NATS: an address is `nats://host:port` or `tls://host:port`, several are separated by commas")
            })
        })
        .collect()
}

/// The client does not look at `user:password@` and `token@` in addresses.
fn login(servers: &[ServerAddr], otherwise: &Login) -> Login {
    let named = servers
        .iter()
        .find_map(|s| s.username().map(|user| (s, user)));
    match named {
        None => otherwise.clone(),
        Some((server, user)) => match server.password() {
            Some(password) => Login::Password {
                user: unescaped(user),
                password: unescaped(password),
            },
            None => Login::Token(unescaped(user)),
        },
    }
}

async fn configured(options: &NatsOptions, login: Login) -> Result<ConnectOptions, BrokerError> {
    let longest = options.longest_reconnect_wait;
    let names = crate::names::Names::new(&options.prefix, options.identity.as_ref());
    let mut connect = ConnectOptions::new()
        .name(&options.name)
        .custom_inbox_prefix(names.inbox())
        .ping_interval(options.ping_interval)
        .connection_timeout(options.connect_timeout)
        .request_timeout(Some(options.request_timeout))
        .subscription_capacity(SUBSCRIPTION_CAPACITY)
        .client_capacity(CLIENT_CAPACITY)
        .require_tls(options.tls.required)
        .reconnect_delay_callback(move |attempts| wait_before(attempts, longest));
    if options.retry_on_initial_connect {
        connect = connect.retry_on_initial_connect();
    }
    if options.tls.first {
        connect = connect.tls_first();
    }
    if let Some(authorities) = &options.tls.authorities {
        connect = connect.add_root_certificates(authorities.clone());
    }
    if let Some((certificate, key)) = &options.tls.certificate {
        connect = connect.add_client_certificate(certificate.clone(), key.clone());
    }
    let unreadable = |what: &str, e: std::io::Error| {
        permanent(format!("failed to read {what} for NATS: {e}")).caused_by(e)
    };
    Ok(match login {
        Login::None => connect,
        Login::Password { user, password } => connect.user_and_password(user, password),
        Login::Token(token) => connect.token(token),
        Login::NKey(seed) => connect.nkey(seed),
        Login::NKeyFile(path) => {
            let read = tokio::fs::read_to_string(&path).await;
            let seed = read.map_err(|e| unreadable(&path.display().to_string(), e))?;
            connect.nkey(seed.trim().to_owned())
        }
        Login::CredentialsFile(path) => {
            let name = path.display().to_string();
            let read = tokio::fs::read_to_string(&path).await;
            let text = read.map_err(|e| unreadable(&name, e))?;
            connect
                .credentials(&text)
                .map_err(|e| unreadable(&name, e))?
        }
    })
}

/// At once, then after 50 ms, and twice as long each time.
fn wait_before(attempts: usize, longest: Duration) -> Duration {
    if attempts <= 1 {
        return Duration::ZERO;
    }
    let doublings = u32::try_from(attempts - 2).unwrap_or(u32::MAX).min(20);
    (FIRST_WAIT * 2_u32.pow(doublings)).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_the_longest() {
        let longest = Duration::from_secs(2);
        let waits: Vec<u128> = [0, 1, 2, 3, 4, 7, 8, 9, usize::MAX]
            .map(|n| wait_before(n, longest).as_millis())
            .to_vec();
        assert_eq!(waits, [0, 0, 50, 100, 200, 1_600, 2_000, 2_000, 2_000]);
    }

    #[test]
    fn what_the_address_says_about_the_user_counts() {
        let said = |address| login(&servers(address).unwrap(), &Login::Token("other".into()));
        let ann = Login::Password {
            user: "ann".into(),
            password: "p@ss".into(),
        };
        assert_eq!(said("nats://ann:p%40ss@127.0.0.1"), ann);
        assert_eq!(said("nats://a:1, nats://ann:p%40ss@b:2"), ann);
        assert_eq!(said("nats://secret@host"), Login::Token("secret".into()));
        assert_eq!(said("host:4222"), Login::Token("other".into()));
    }

    #[test]
    fn an_address_that_is_none_is_refused_without_repeating_it() {
        let told = servers("nats://u:secret@:no").unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Permanent);
        assert!(!told.to_string().contains("secret"));
    }

    #[test]
    fn the_forbidden_subject_is_found_in_what_the_server_says() {
        for (said, subject) in [
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
            assert_eq!(forbidden(said), subject);
        }
    }
}
