//! Settings of the driver with their defaults.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use cueline_broker::{BrokerError, DeadLetterSeal};

use crate::error::permanent;

/// Settings of a [`NatsDriver`](crate::NatsDriver).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatsOptions {
    /// The first tokens of all subjects; in capitals, the first part of all stream names. `cueline` by default. Tokens
    /// consist of letters, digits, `-` and `_`, and dots separate them; at most 64 bytes. Each prefix is a separate
    /// broker.
    pub prefix: String,
    /// The executor that this process is; `None` by default, for schedulers. An executor's subjects contain its group
    /// and name, so the server can reject other users.
    pub identity: Option<Identity>,
    /// How the process authenticates; not at all by default. Credentials in the address take precedence.
    pub login: Login,
    /// How connections are encrypted.
    pub tls: Tls,
    /// Name of the connection in the server's monitoring; `cueline` by default.
    pub connection_name: String,
    /// If `true`, `connect` succeeds even when no server answers. Calls then fail with a transient error until one
    /// does. `false` by default.
    pub retry_on_initial_connect: bool,
    /// The longest duration of one attempt to connect; 5 s by default. Then the next server is tried.
    pub connect_timeout: Duration,
    /// The longest delay between two attempts to reconnect; 2 s by default. Attempts never stop. The first one has no
    /// delay and the second 50 ms; then the delay doubles.
    pub max_reconnect_delay: Duration,
    /// The interval of pings on an idle connection; 5 s by default. The connection counts as lost after two pings
    /// without an answer.
    pub ping_interval: Duration,
    /// The longest wait for a connection, and the longest wait without any reply; 5 s by default. Then the call fails
    /// with a transient error.
    pub request_timeout: Duration,
    /// A delivery that is not settled for this long is delivered again; 30 s by default.
    pub ack_wait: Duration,
    /// The stream keeps one of two messages with the same id within this time; 10 s by default. 0 turns this off; the
    /// shortest window is 100 ms. It must be shorter than any delay after which a lost message is published again.
    ///
    /// It also limits how long a trigger may take to its stream: a trigger that is stored later than this is void. The
    /// limit is twice the `request_timeout` if that is longer.
    pub duplicate_window: Duration,
    /// The most messages and acks without an answer from the server, at most 32,768; 4,000 by default. Further ones
    /// wait. A server refuses publishes beyond some 10,000 for one stream from all its clients.
    pub max_in_flight: usize,
    /// The limits of the streams.
    pub limits: StreamLimits,
    /// Seals the dead letters of this process; `None` by default, for schedulers.
    pub seal_dead_letters: Option<DeadLetterSeal>,
}

/// The executor that a process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its group.
    pub group: String,
    /// Its name within the group.
    pub executor: String,
}

/// Limits of the streams. `None` leaves a limit of an existing stream as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamLimits {
    /// The most messages of one job in one executor's queue, and the most messages in each other queue. 1,000,000 in a
    /// new stream. Beyond it the queue refuses messages as full.
    pub queue_limit: Option<u64>,
    /// The most bytes in each stream, which the server reserves. A new stream has only the server's own limit. Beyond
    /// it the stream refuses messages as full.
    pub max_bytes: Option<u64>,
    /// The servers of a cluster that keep each message, 1 to 5; 1 in a new stream.
    pub replicas: Option<usize>,
}

/// How a process authenticates.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Login {
    /// The process does not authenticate.
    #[default]
    None,
    /// As a user with a password.
    Password {
        /// The user's name.
        user: String,
        /// The user's password.
        password: String,
    },
    /// With a token.
    Token(String),
    /// With a credentials file (`.creds`), or a file that holds the seed of an NKEY (`SU…`).
    CredentialsFile(PathBuf),
}

/// Hides secrets.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Password { user, .. } => write!(f, "Password {{ user: {user:?}, .. }}"),
            Self::Token(_) => f.write_str("Token(..)"),
            Self::CredentialsFile(path) => f.debug_tuple("CredentialsFile").field(path).finish(),
        }
    }
}

/// How connections are encrypted. They are always encrypted if the server requires it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// Refuses a server without TLS; `false` by default. An address that starts with `tls://` does the same.
    pub required: bool,
    /// Starts with the TLS handshake, for servers with `handshake_first`; `false` by default.
    pub handshake_first: bool,
    /// A file with the certificates of trusted authorities; the system's by default.
    pub ca_file: Option<PathBuf>,
    /// The certificate that this process presents.
    pub client_certificate: Option<ClientCertificate>,
}

/// Files with a certificate and its private key, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl Default for NatsOptions {
    fn default() -> Self {
        Self {
            prefix: "cueline".into(),
            identity: None,
            login: Login::None,
            tls: Tls::default(),
            connection_name: "cueline".into(),
            retry_on_initial_connect: false,
            connect_timeout: Duration::from_secs(5),
            max_reconnect_delay: Duration::from_secs(2),
            ping_interval: Duration::from_secs(5),
            request_timeout: Duration::from_secs(5),
            ack_wait: Duration::from_secs(30),
            duplicate_window: Duration::from_secs(10),
            max_in_flight: 4_000,
            limits: StreamLimits::default(),
            seal_dead_letters: None,
        }
    }
}

/// The shortest window that servers accept.
pub(crate) const MIN_DUPLICATE_WINDOW: Duration = Duration::from_millis(100);
/// The client's buffer would drop replies beyond this number.
const MAX_IN_FLIGHT: usize = 32_768;
const MAX_PREFIX_BYTES: usize = 64;

impl NatsOptions {
    /// The time from sending a trigger to its [deadline](crate::deadline).
    pub(crate) fn trigger_valid_for(&self) -> Duration {
        self.duplicate_window.max(self.request_timeout * 2)
    }

    pub(crate) fn validate(&self) -> Result<(), BrokerError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let is_token = |token: &str| !token.is_empty() && token.chars().all(is_plain);
        let no_prefix =
            !self.prefix.split('.').all(is_token) || self.prefix.len() > MAX_PREFIX_BYTES;
        let shortest_wait = self.ack_wait.min(self.request_timeout);
        let window = self.duplicate_window;
        for (is_wrong, rule) in [
            (
                no_prefix,
                "`prefix` must be tokens of letters, digits, '-' and '_', separated by dots, \
                 and have at most 64 bytes",
            ),
            (
                shortest_wait.min(self.ping_interval).is_zero(),
                "`ack_wait`, `request_timeout` and `ping_interval` must be longer than 0",
            ),
            (
                !(1..=MAX_IN_FLIGHT).contains(&self.max_in_flight),
                "`max_in_flight` must be between 1 and 32,768",
            ),
            (
                !window.is_zero() && window < MIN_DUPLICATE_WINDOW,
                "`duplicate_window` must be 0 or at least 100 ms",
            ),
        ] {
            if is_wrong {
                return Err(permanent(format!("failed to connect to NATS: {rule}")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_options_are_refused_by_name() {
        type Change = fn(&mut NatsOptions);
        let changes: [(&str, Change); 7] = [
            ("prefix", |o| o.prefix = "a b".into()),
            ("prefix", |o| o.prefix = "a..b".into()),
            ("prefix", |o| o.prefix = "p".repeat(65)),
            ("max_in_flight", |o| o.max_in_flight = 0),
            ("max_in_flight", |o| o.max_in_flight = 100_000),
            ("ack_wait", |o| o.ack_wait = Duration::ZERO),
            ("duplicate_window", |o| {
                o.duplicate_window = Duration::from_millis(1);
            }),
        ];
        NatsOptions::default().validate().unwrap();
        for (name, change) in changes {
            let mut options = NatsOptions::default();
            change(&mut options);
            let error = options.validate().unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn debug_output_contains_no_secret() {
        for login in [
            Login::Password {
                user: "u".into(),
                password: "secret".into(),
            },
            Login::Token("secret".into()),
        ] {
            assert!(!format!("{login:?}").contains("secret"));
        }
    }
}
