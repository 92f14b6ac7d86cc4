//! Brokers.

use std::path::PathBuf;
use std::time::Duration;

use cueline_broker::{Broker, BrokerError, BrokerOptions, ErrorKind};

use super::store::server;
use super::{Close, Product, Unusable, forms, path_of, product_of};
use crate::failure::with_causes;
use crate::redacted::Redacted;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Nats,
    Rabbitmq,
    Embedded,
}

const NATS_FORM: &str = "nats://user:password@host:4222 (or tls://)";
const RABBITMQ_FORM: &str = "amqp://user:password@host:5672/vhost (or amqps://)";

const PRODUCTS: [Product<Kind>; 3] = [
    Product {
        kind: Kind::Nats,
        schemes: &["nats", "tls"],
        feature: "nats",
        built_in: cfg!(feature = "nats"),
        form: NATS_FORM,
    },
    Product {
        kind: Kind::Rabbitmq,
        schemes: &["amqp", "amqps"],
        feature: "rabbitmq",
        built_in: cfg!(feature = "rabbitmq"),
        form: RABBITMQ_FORM,
    },
    Product {
        kind: Kind::Embedded,
        schemes: &["embedded"],
        feature: "embedded",
        built_in: cfg!(feature = "embedded"),
        form: "embedded:PATH (within standalone)",
    },
];

/// Where a broker is. It is shown without its password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BrokerUrl {
    kind: Kind,
    address: Redacted,
}

impl std::fmt::Display for BrokerUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.address.fmt(f)
    }
}

/// How a broker is used, whichever it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct BrokerSettings {
    /// Prefix of all names on the broker.
    pub(crate) prefix: String,
    /// Certificates of authorities, instead of the system's.
    pub(crate) ca: Option<PathBuf>,
    /// This side's certificate and key.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    /// A NATS credentials file.
    pub(crate) credentials: Option<PathBuf>,
    /// How many servers keep each message.
    pub(crate) replicas: Option<u16>,
    /// The longest wait between two attempts to connect; the driver's default if `None`.
    pub(crate) longest_wait: Option<Duration>,
    /// The connection's heartbeat interval, where the broker has one; the driver's default if `None`. The broker redelivers the
    /// messages of a client that was silent for twice this time.
    pub(crate) heartbeat: Option<Duration>,
}

/// Who uses a broker.
#[derive(Debug, Clone)]
pub(crate) struct Who {
    /// What the broker's lists of connections show.
    pub(crate) connection: String,
    /// Group and name of an executor that has the connection to itself.
    pub(crate) executor: Option<(String, String)>,
}

/// A broker, and how it is ended.
pub(crate) struct OpenBroker {
    /// The broker.
    pub(crate) broker: Broker,
    close: Close,
}

impl std::fmt::Debug for OpenBroker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenBroker")
            .field("broker", &self.broker)
            .finish_non_exhaustive()
    }
}

impl OpenBroker {
    /// Over a driver that `close` ends.
    #[cfg_attr(
        not(any(feature = "nats", feature = "rabbitmq", feature = "embedded")),
        expect(dead_code, reason = "without a driver nothing is opened")
    )]
    pub(super) fn new<D: cueline_broker::Driver>(
        driver: std::sync::Arc<D>,
        close: impl Fn(std::sync::Arc<D>) -> super::Closing + Send + Sync + 'static,
    ) -> Self {
        let held = driver.clone();
        Self {
            broker: Broker::from_arc(driver, BrokerOptions::default()),
            close: Box::new(move || close(held.clone())),
        }
    }

    /// Ends its connections.
    pub(crate) async fn close(&self) {
        (self.close)().await;
    }
}

impl BrokerUrl {
    /// Reads an address.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let address = Redacted::new(text.trim());
        let kind = product_of("broker", &PRODUCTS, &address)?;
        let url = Self { kind, address };
        match kind {
            Kind::Embedded if url.path().is_empty() => {
                Err(format!("{url} given; embedded:PATH is expected"))
            }
            // Several servers of a cluster are separated by commas.
            Kind::Nats => {
                for one in url.address.expose().split(',') {
                    server(NATS_FORM, &Redacted::new(one))?;
                }
                Ok(url)
            }
            Kind::Rabbitmq => {
                server(RABBITMQ_FORM, &url.address)?;
                Ok(url)
            }
            Kind::Embedded => Ok(url),
        }
    }

    /// What is expected of processes that share one, in words.
    pub(crate) fn expected() -> String {
        forms(&PRODUCTS[..2])
    }

    /// One process has it to itself.
    pub(crate) fn is_embedded(&self) -> bool {
        self.kind == Kind::Embedded
    }

    /// It is NATS.
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
        who: &Who,
        settings: &BrokerSettings,
    ) -> Result<OpenBroker, Unusable> {
        let opened = match self.kind {
            #[cfg(feature = "nats")]
            Kind::Nats => super::nats::open(self.address.expose(), who, settings).await,
            #[cfg(feature = "rabbitmq")]
            Kind::Rabbitmq => super::rabbitmq::open(self.address.expose(), who, settings).await,
            #[cfg(feature = "embedded")]
            Kind::Embedded => super::embedded::open(self.path()).await,
            #[cfg(not(feature = "nats"))]
            Kind::Nats => Err(not_built_in()),
            #[cfg(not(feature = "rabbitmq"))]
            Kind::Rabbitmq => Err(not_built_in()),
            #[cfg(not(feature = "embedded"))]
            Kind::Embedded => Err(not_built_in()),
        };
        opened.map_err(|error| self.unusable(&error))
    }

    /// What one of its calls ended with.
    pub(crate) fn unusable(&self, error: &BrokerError) -> Unusable {
        Unusable {
            message: self.address.scrub(&with_causes(error)),
            may_pass: error.kind() == ErrorKind::Transient,
        }
    }

    fn path(&self) -> &str {
        path_of(self.address.expose(), "embedded")
    }
}

/// [`BrokerUrl::parse`] has refused it already.
#[cfg(not(all(feature = "nats", feature = "rabbitmq", feature = "embedded")))]
fn not_built_in() -> BrokerError {
    BrokerError::new(
        ErrorKind::Permanent,
        "failed to open the broker: its driver is not built in",
    )
}
