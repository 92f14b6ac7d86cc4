//! Stores: parses their addresses and opens them.

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::fmt;
use std::sync::Arc;

use cueline_api::StorePorts;
use cueline_engine::EngineOptions;
use cueline_interface::with_causes;
use cueline_model::StoreId;
use cueline_store::{ErrorKind, Store, StoreError};

use crate::adapters::product::{Product, check_server, forms, path_of, product_of};
use crate::adapters::{Close, OpenError};
use crate::redacted::Redacted;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Postgres,
    Sqlite,
}

const POSTGRES: Product<Kind> = Product {
    kind: Kind::Postgres,
    built_in: cfg!(feature = "postgres"),
    schemes: &["postgres", "postgresql"],
    feature: "postgres",
    form: "postgres://user:password@host:5432/database",
};

const SQLITE: Product<Kind> = Product {
    kind: Kind::Sqlite,
    built_in: cfg!(feature = "sqlite"),
    schemes: &["sqlite"],
    feature: "sqlite",
    form: "sqlite:PATH",
};

/// A store's address. It is shown without its password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreUrl {
    kind: Kind,
    address: Redacted,
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

/// An open store with its close function.
pub(crate) struct OpenStore {
    pub(crate) store: Arc<dyn Store>,
    /// The same store as each of its ports, for the API.
    pub(crate) ports: StorePorts,
    close: Close,
}

impl OpenStore {
    #[cfg_attr(
        not(any(feature = "postgres", feature = "sqlite")),
        expect(dead_code, reason = "without a driver nothing is opened")
    )]
    pub(super) fn new(ports: impl Into<StorePorts>, close: Close) -> Self {
        let ports = ports.into();
        Self {
            store: ports.store.clone(),
            ports,
            close,
        }
    }

    /// Ends its connections, after the calls in progress.
    pub(crate) async fn close(&self) {
        (self.close)().await;
    }
}

/// A scheduler's settings for any store.
#[derive(Debug, Clone)]
#[cfg_attr(
    not(feature = "postgres"),
    expect(dead_code, reason = "each store uses some of them")
)]
pub(crate) struct StoreSettings {
    /// Shown in the server's lists of connections.
    pub(crate) application: String,
    /// Whether opening brings the schema up to date.
    pub(crate) migrate: bool,
    /// A node's lease, in milliseconds.
    pub(crate) lease_ms: u64,
    /// An executor is alive while its last heartbeat is younger than this, in milliseconds.
    pub(crate) executor_dead_after_ms: u64,
}

impl StoreSettings {
    /// Derives the settings from those of the engine that uses the store.
    pub(crate) fn of(engine: &EngineOptions, application: &str, migrate: bool) -> Self {
        Self {
            application: application.to_owned(),
            migrate,
            lease_ms: engine.lease_ms,
            executor_dead_after_ms: engine.executor_dead_after_ms,
        }
    }
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self::of(&EngineOptions::default(), "cueline", true)
    }
}

impl StoreUrl {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let address = Redacted::new(text.trim());
        let kind = product_of("store", &[POSTGRES, SQLITE], &address)?;
        match kind {
            Kind::Postgres => check_server(POSTGRES.form, &address)?,
            Kind::Sqlite if path_of(&address).is_empty() => {
                return Err(format!("{address} given; {} is expected", SQLITE.form));
            }
            Kind::Sqlite => {}
        }
        Ok(Self { kind, address })
    }

    /// The accepted forms of addresses.
    pub(crate) fn expected() -> String {
        forms(&[POSTGRES, SQLITE], " or ")
    }

    /// Opens the store, and brings its schema up to date if `settings` say so.
    #[cfg_attr(
        not(any(feature = "postgres", feature = "sqlite")),
        expect(unused_variables, reason = "without a driver nothing is opened")
    )]
    pub(crate) async fn open(&self, settings: &StoreSettings) -> Result<OpenStore, OpenError> {
        let opened = match self.kind {
            #[cfg(feature = "postgres")]
            Kind::Postgres => postgres::open(self.address.expose(), settings).await,
            #[cfg(feature = "sqlite")]
            Kind::Sqlite => sqlite::open(path_of(&self.address), settings).await,
            #[cfg(not(all(feature = "postgres", feature = "sqlite")))]
            _ => Err(not_built_in()),
        };
        opened.map_err(|error| self.error(&error))
    }

    /// Creates the schema or brings it up to date. Returns its version, if the product has one.
    pub(crate) async fn migrate(&self) -> Result<Option<i64>, OpenError> {
        let migrated = match self.kind {
            #[cfg(feature = "postgres")]
            Kind::Postgres => postgres::migrate(self.address.expose()).await.map(Some),
            #[cfg(feature = "sqlite")]
            Kind::Sqlite => sqlite::migrate(path_of(&self.address)).await.map(|()| None),
            #[cfg(not(all(feature = "postgres", feature = "sqlite")))]
            _ => Err(not_built_in()),
        };
        migrated.map_err(|error| self.error(&error))
    }

    /// Brings the schema up to date, and gives the store a new id.
    pub(crate) async fn renew_identity(&self) -> Result<StoreId, OpenError> {
        let renewed = match self.kind {
            #[cfg(feature = "postgres")]
            Kind::Postgres => postgres::renew_identity(self.address.expose()).await,
            #[cfg(feature = "sqlite")]
            Kind::Sqlite => sqlite::renew_identity(path_of(&self.address)).await,
            #[cfg(not(all(feature = "postgres", feature = "sqlite")))]
            _ => Err(not_built_in()),
        };
        renewed.map_err(|error| self.error(&error))
    }

    fn error(&self, error: &StoreError) -> OpenError {
        OpenError {
            message: self.address.scrub(&with_causes(error)),
            is_transient: error.kind() == ErrorKind::Transient,
        }
    }
}

/// [`StoreUrl::parse`] refuses these addresses.
#[cfg(not(all(feature = "postgres", feature = "sqlite")))]
fn not_built_in() -> StoreError {
    let message = "failed to open the store: its driver is not built in";
    StoreError::new(ErrorKind::Invalid, message)
}
