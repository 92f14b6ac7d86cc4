//! How a server is reached, and every limit with its default and what happens there.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use cueline_broker::{BrokerError, ErrorKind};

/// What a [`NatsDriver`](crate::NatsDriver) is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatsOptions {
    /// What all subjects, and in capitals all streams, start with; `cueline` by default. Tokens of letters, digits, `-` and
    /// `_`, separated by dots. Different prefixes are different brokers on one server.
    pub prefix: String,
    /// Which executor this is, if it is one: what it publishes then names it, so that the server can check that nobody
    /// else does. `None` for schedulers and by default.
    pub identity: Option<Identity>,
    /// Who this is to the server; nobody by default. What the address says about it comes first.
    pub login: Login,
    /// How connections are encrypted.
    pub tls: Tls,
    /// Name of the connection, as the server's monitoring shows it; `cueline` by default.
    pub name: String,
    /// `connect` returns without a connection when no server answers, and calls fail with a transient error until one does;
    /// false by default.
    pub retry_on_initial_connect: bool,
    /// How long one attempt to connect may take; 5 s by default. Then the next server is tried.
    pub connect_timeout: Duration,
    /// The longest wait between two attempts to connect again, of which there is no end; 2 s by default. The first is made
    /// at once, and the wait doubles from 50 ms on.
    pub longest_reconnect_wait: Duration,
    /// How often an idle connection is tested; 5 s by default. After two tests without an answer it counts as lost.
    pub ping_interval: Duration,
    /// How long a call waits without any answer, or for a connection; 5 s by default. After that it fails with a
    /// transient error.
    pub request_timeout: Duration,
    /// A message that was handed out and not settled for this long is handed out again; 30 s by default.
    pub ack_wait: Duration,
    /// Within this time, a message published twice under one id is kept once; 10 s by default. 0 turns it off. It has to be
    /// shorter than any wait after which somebody means to publish a lost message again. A trigger that reaches its stream later than this
    /// after it was sent, or than twice the `request_timeout` if that is longer, counts for nothing: so none comes late that has not
    /// come before.
    pub duplicate_window: Duration,
    /// Messages and acks that this process has sent and the server has not answered; 4,000 by default. Further ones wait.
    /// A server refuses publishes above some 10,000 for one stream from all its clients.
    pub window: usize,
    /// The most messages in one `publish`; 5,000 by default.
    pub max_batch: usize,
    /// The largest payload, in bytes; 8 MiB by default. What the server takes (1 MiB unless configured), less 4 KiB for headers, is
    /// the limit if it is smaller. A larger one is refused.
    pub max_payload_bytes: usize,
    /// The most announcements that wait for one listener; 1,024 by default. Past it the oldest are lost.
    pub listener_buffer: usize,
    /// Limits of the streams.
    pub limits: StreamLimits,
}

/// Which executor a process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its group.
    pub group: String,
    /// Its name.
    pub executor: String,
}

/// Limits of the streams. What is `None` is left as it is on streams that are there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamLimits {
    /// The most messages of one job in one executor's or group's queue, and the most in each other queue; a new stream has
    /// 1,000,000. Past it, publishing is refused as full.
    pub queue_limit: Option<u64>,
    /// The most bytes in each stream, which the server sets aside; a new stream has no such limit, and the server's own is
    /// the limit. Past it, publishing is refused as full.
    pub max_bytes: Option<u64>,
    /// How many servers of a cluster keep each message, 1 to 5; a new stream has 1.
    pub replicas: Option<usize>,
}

/// Who somebody is to the server.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Login {
    /// Nobody.
    #[default]
    None,
    /// A user with a password.
    Password {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
    /// A token.
    Token(String),
    /// The seed of an NKEY (`SU…`).
    NKey(String),
    /// A file with the seed of an NKEY.
    NKeyFile(PathBuf),
    /// A credentials file (`.creds`).
    CredentialsFile(PathBuf),
}

/// Secrets are not for logs.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Password { user, .. } => write!(f, "Password {{ user: {user:?}, .. }}"),
            Self::Token(_) => f.write_str("Token(..)"),
            Self::NKey(_) => f.write_str("NKey(..)"),
            Self::NKeyFile(path) => f.debug_tuple("NKeyFile").field(path).finish(),
            Self::CredentialsFile(path) => f.debug_tuple("CredentialsFile").field(path).finish(),
        }
    }
}

/// How connections are encrypted. A server that wants TLS gets it in any case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// A server without TLS is refused; false by default, and with an address that starts with `tls://`.
    pub required: bool,
    /// The handshake comes first, before the server says anything (`handshake_first` there); false by default.
    pub first: bool,
    /// A file with the certificates of the authorities to trust, instead of the system's.
    pub authorities: Option<PathBuf>,
    /// Files with this side's certificate and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

impl Default for NatsOptions {
    fn default() -> Self {
        Self {
            prefix: "cueline".into(),
            identity: None,
            login: Login::None,
            tls: Tls::default(),
            name: "cueline".into(),
            retry_on_initial_connect: false,
            connect_timeout: Duration::from_secs(5),
            longest_reconnect_wait: Duration::from_secs(2),
            ping_interval: Duration::from_secs(5),
            request_timeout: Duration::from_secs(5),
            ack_wait: Duration::from_secs(30),
            duplicate_window: Duration::from_secs(10),
            window: 4_000,
            max_batch: 5_000,
            max_payload_bytes: 8 << 20,
            listener_buffer: 1_024,
            limits: StreamLimits::default(),
        }
    }
}

/// The shortest window that servers take.
const SHORTEST_WINDOW: Duration = Duration::from_millis(100);

impl NatsOptions {
    /// How long after it was sent a trigger may reach its stream and count.
    pub(crate) fn counts_within(&self) -> Duration {
        self.duplicate_window.max(self.request_timeout * 2)
    }

    /// Refuses what no queue can work with.
    pub(crate) fn validate(&self) -> Result<(), BrokerError> {
        let wrong = |what: &str| {
            let message = format!("failed to connect to NATS: {what}");
            Err(BrokerError::new(ErrorKind::Permanent, message))
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if !self
            .prefix
            .split('.')
            .all(|token| !token.is_empty() && token.chars().all(plain))
        {
            return wrong(
                "`prefix` must be tokens of letters, digits, '-' and '_', separated by dots",
            );
        }
        if self.prefix.len() > 64 {
            return wrong("`prefix` must have at most 64 bytes");
        }
        if self.ack_wait.is_zero() || self.request_timeout.is_zero() || self.ping_interval.is_zero()
        {
            return wrong(
                "`ack_wait`, `request_timeout` and `ping_interval` must be longer than 0",
            );
        }
        if self.window == 0 || self.max_batch == 0 || self.listener_buffer == 0 {
            return wrong("`window`, `max_batch` and `listener_buffer` must be at least 1");
        }
        if self.window > MOST_IN_FLIGHT {
            return wrong("`window` must be at most 32,768");
        }
        if !self.duplicate_window.is_zero() && self.duplicate_window < SHORTEST_WINDOW {
            return wrong("`duplicate_window` must be 0 or at least 100 ms");
        }
        Ok(())
    }
}

/// Answers to so many fit in the client's buffer; past that it would drop them.
const MOST_IN_FLIGHT: usize = 32_768;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_cannot_work_are_refused_by_name() {
        let good = NatsOptions::default;
        good().validate().unwrap();
        let (a_moment, zero) = (Duration::from_millis(1), Duration::ZERO);
        for (name, wrong) in [
            (
                "prefix",
                NatsOptions {
                    prefix: "a b".into(),
                    ..good()
                },
            ),
            (
                "prefix",
                NatsOptions {
                    prefix: "a..b".into(),
                    ..good()
                },
            ),
            (
                "prefix",
                NatsOptions {
                    prefix: "p".repeat(65),
                    ..good()
                },
            ),
            (
                "window",
                NatsOptions {
                    window: 0,
                    ..good()
                },
            ),
            (
                "window",
                NatsOptions {
                    window: 100_000,
                    ..good()
                },
            ),
            (
                "ack_wait",
                NatsOptions {
                    ack_wait: zero,
                    ..good()
                },
            ),
            (
                "duplicate_window",
                NatsOptions {
                    duplicate_window: a_moment,
                    ..good()
                },
            ),
        ] {
            let told = wrong.validate().unwrap_err().to_string();
            assert!(told.contains(name), "{told}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        for login in [
            Login::Password {
                user: "u".into(),
                password: "secret".into(),
            },
            Login::Token("secret".into()),
            Login::NKey("secret".into()),
        ] {
            assert!(!format!("{login:?}").contains("secret"));
        }
    }
}
