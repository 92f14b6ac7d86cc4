//! Brokers: parses their addresses and opens them.

#[cfg(feature = "embedded")]
mod embedded;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Broker, BrokerError, BrokerOptions, DeadLetterSeal, Driver, ErrorKind};
use cueline_interface::with_causes;
use cueline_model::ExecutorId;

use crate::adapters::product::{Product, check_server, forms, path_of, product_of};
use crate::adapters::{Close, OpenError};
use crate::redacted::Redacted;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Nats,
    Rabbitmq,
    Embedded,
}

const NATS: Product<Kind> = Product {
    kind: Kind::Nats,
    built_in: cfg!(feature = "nats"),
    schemes: &["nats", "tls"],
    feature: "nats",
    form: "nats://user:password@host:4222 (or tls://)",
};

const RABBITMQ: Product<Kind> = Product {
    kind: Kind::Rabbitmq,
    built_in: cfg!(feature = "rabbitmq"),
    schemes: &["amqp", "amqps"],
    feature: "rabbitmq",
    form: "amqp://user:password@host:5672/vhost (or amqps://)",
};

const EMBEDDED: Product<Kind> = Product {
    kind: Kind::Embedded,
    built_in: cfg!(feature = "embedded"),
    schemes: &["embedded"],
    feature: "embedded",
    form: "embedded:PATH (within standalone)",
};

/// A broker's address. It is shown without its password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BrokerUrl {
    kind: Kind,
    address: Redacted,
}

impl fmt::Display for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

/// Settings for any broker.
#[derive(Debug, Clone, Default)]
#[cfg_attr(
    not(all(feature = "nats", feature = "rabbitmq")),
    expect(dead_code, reason = "each broker uses some of them")
)]
pub(crate) struct BrokerSettings {
    /// Prefix of all names on the broker.
    pub(crate) prefix: String,
    /// Certificates of authorities, instead of the system's.
    pub(crate) ca: Option<PathBuf>,
    /// This process's certificate and key.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    /// A NATS credentials file.
    pub(crate) credentials: Option<PathBuf>,
    /// How many servers keep each message.
    pub(crate) replicas: Option<u16>,
    /// The longest wait between two attempts to connect; the driver's default if `None`.
    pub(crate) longest_wait: Option<Duration>,
    /// The connection's heartbeat interval, if the broker has one; the driver's default if `None`. The broker
    /// redelivers the messages of a client that is silent for twice this time.
    pub(crate) heartbeat: Option<Duration>,
    /// Seals the dead letters of a worker.
    pub(crate) seal_dead_letters: Option<DeadLetterSeal>,
}

/// How this process presents itself to a broker.
#[derive(Debug, Clone)]
#[cfg_attr(
    not(feature = "nats"),
    expect(dead_code, reason = "each broker uses some of them")
)]
pub(crate) struct ClientIdentity {
    /// Shown in the broker's lists of connections.
    pub(crate) connection_name: String,
    /// The executor that uses the connection, if only one does.
    pub(crate) executor: Option<ExecutorId>,
}

/// An open broker with its close function.
pub(crate) struct OpenBroker {
    pub(crate) broker: Broker,
    close: Close,
}

impl OpenBroker {
    #[cfg_attr(
        not(any(feature = "nats", feature = "rabbitmq", feature = "embedded")),
        expect(dead_code, reason = "without a driver nothing is opened")
    )]
    pub(super) fn new<D: Driver>(driver: Arc<D>, close: Close) -> Self {
        Self {
            broker: Broker::from_arc(driver, BrokerOptions::default()),
            close,
        }
    }

    /// Ends its connections.
    pub(crate) async fn close(&self) {
        (self.close)().await;
    }
}

impl BrokerUrl {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let address = Redacted::new(text.trim());
        let kind = product_of("broker", &[NATS, RABBITMQ, EMBEDDED], &address)?;
        match kind {
            // Commas separate the servers of a cluster.
            Kind::Nats => {
                for server in address.expose().split(',') {
                    check_server(NATS.form, &Redacted::new(server))?;
                }
            }
            Kind::Rabbitmq => check_server(RABBITMQ.form, &address)?,
            Kind::Embedded if path_of(&address).is_empty() => {
                return Err(format!("{address} given; embedded:PATH is expected"));
            }
            Kind::Embedded => {}
        }
        Ok(Self { kind, address })
    }

    /// The forms of addresses of brokers that several processes share.
    pub(crate) fn expected() -> String {
        forms(&[NATS, RABBITMQ], " or ")
    }

    /// Whether only one process can use it.
    pub(crate) fn is_embedded(&self) -> bool {
        self.kind == Kind::Embedded
    }

    pub(crate) fn is_nats(&self) -> bool {
        self.kind == Kind::Nats
    }

    /// Connects.
    #[cfg_attr(
        not(any(feature = "nats", feature = "rabbitmq")),
        expect(unused_variables, reason = "for servers only")
    )]
    pub(crate) async fn open(
        &self,
        identity: &ClientIdentity,
        settings: &BrokerSettings,
    ) -> Result<OpenBroker, OpenError> {
        let opened = match self.kind {
            #[cfg(feature = "nats")]
            Kind::Nats => nats::open(self.address.expose(), identity, settings).await,
            #[cfg(feature = "rabbitmq")]
            Kind::Rabbitmq => rabbitmq::open(self.address.expose(), identity, settings).await,
            #[cfg(feature = "embedded")]
            Kind::Embedded => embedded::open(path_of(&self.address)).await,
            #[cfg(not(all(feature = "nats", feature = "rabbitmq", feature = "embedded")))]
            _ => Err(not_built_in()),
        };
        opened.map_err(|error| self.error(&error))
    }

    fn error(&self, error: &BrokerError) -> OpenError {
        OpenError {
            message: self.address.scrub(&with_causes(error)),
            is_transient: error.kind() == ErrorKind::Transient,
        }
    }
}

/// [`BrokerUrl::parse`] refuses these addresses.
#[cfg(not(all(feature = "nats", feature = "rabbitmq", feature = "embedded")))]
fn not_built_in() -> BrokerError {
    let message = "failed to open the broker: its driver is not built in";
    BrokerError::new(ErrorKind::Permanent, message)
}
