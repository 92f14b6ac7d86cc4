//! Stores.

use std::sync::Arc;

use cueline_engine::EngineOptions;
use cueline_model::StoreId;
use cueline_store::{ErrorKind, Store, StoreError};

use super::{Close, Product, Unusable, forms, path_of, product_of};
use crate::failure::with_causes;
use crate::redacted::Redacted;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Postgres,
    Sqlite,
}

const PRODUCTS: [Product<Kind>; 2] = [
    Product {
        kind: Kind::Postgres,
        schemes: &["postgres", "postgresql"],
        feature: "postgres",
        built_in: cfg!(feature = "postgres"),
        form: "postgres://user:password@host:5432/database",
    },
    Product {
        kind: Kind::Sqlite,
        schemes: &["sqlite"],
        feature: "sqlite",
        built_in: cfg!(feature = "sqlite"),
        form: "sqlite:PATH",
    },
];

/// Where a store is. It is shown without its password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreUrl {
    kind: Kind,
    address: Redacted,
}

impl std::fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.address.fmt(f)
    }
}

/// A store, and how it is ended.
pub(crate) struct OpenStore {
    /// The store.
    pub(crate) store: Arc<dyn Store>,
    close: Close,
}

impl std::fmt::Debug for OpenStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenStore").finish_non_exhaustive()
    }
}

impl OpenStore {
    #[cfg_attr(
        not(any(feature = "postgres", feature = "sqlite")),
        expect(dead_code, reason = "without a driver nothing is opened")
    )]
    pub(super) fn new(store: Arc<dyn Store>, close: Close) -> Self {
        Self { store, close }
    }

    /// Ends its connections, after the calls in progress.
    pub(crate) async fn close(&self) {
        (self.close)().await;
    }
}

/// How a scheduler uses a store, whichever it is.
#[derive(Debug, Clone)]
pub(crate) struct StoreSettings {
    /// What the server's lists of connections show.
    pub(crate) application: String,
    /// Its schema may be brought up to date.
    pub(crate) migrate: bool,
    /// A node's lease, in milliseconds.
    pub(crate) lease_ms: u64,
    /// An executor counts as live while its last sign of life is younger than this.
    pub(crate) executor_dead_after_ms: u64,
}

impl StoreSettings {
    /// In step with the engine that uses it.
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

/// What a store's schema is, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Schema {
    /// Its version, where the product tells.
    pub(crate) version: Option<i64>,
}

impl StoreUrl {
    /// Reads an address.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let address = Redacted::new(text.trim());
        let kind = product_of("store", &PRODUCTS, &address)?;
        let url = Self { kind, address };
        match kind {
            Kind::Sqlite if url.path().is_empty() => {
                Err(format!("{url} given; sqlite:PATH is expected"))
            }
            Kind::Postgres => {
                server("postgres://user:password@host:5432/database", &url.address)?;
                Ok(url)
            }
            Kind::Sqlite => Ok(url),
        }
    }

    /// What is expected, in words.
    pub(crate) fn expected() -> String {
        forms(&PRODUCTS)
    }

    /// Opens it, bringing its schema up to date if it may.
    #[cfg_attr(
        not(feature = "postgres"),
        expect(unused_variables, reason = "for servers only")
    )]
    pub(crate) async fn open(&self, settings: &StoreSettings) -> Result<OpenStore, Unusable> {
        let opened = match self.kind {
            #[cfg(feature = "postgres")]
            Kind::Postgres => super::postgres::open(self.address.expose(), settings).await,
            #[cfg(feature = "sqlite")]
            Kind::Sqlite => super::sqlite::open(self.path(), settings).await,
            #[cfg(not(feature = "postgres"))]
            Kind::Postgres => Err(not_built_in()),
            #[cfg(not(feature = "sqlite"))]
            Kind::Sqlite => Err(not_built_in()),
        };
        opened.map_err(|error| self.unusable(&error))
    }

    /// Brings its schema up to date, or creates it.
    pub(crate) async fn migrate(&self) -> Result<Schema, Unusable> {
        let migrated = match self.kind {
            #[cfg(feature = "postgres")]
            Kind::Postgres => super::postgres::migrate(self.address.expose()).await,
            #[cfg(feature = "sqlite")]
            Kind::Sqlite => super::sqlite::migrate(self.path()).await,
            #[cfg(not(feature = "postgres"))]
            Kind::Postgres => Err(not_built_in()),
            #[cfg(not(feature = "sqlite"))]
            Kind::Sqlite => Err(not_built_in()),
        };
        migrated.map_err(|error| self.unusable(&error))
    }

    /// Gives it a new id, having brought its schema up to date.
    pub(crate) async fn renew_identity(&self) -> Result<StoreId, Unusable> {
        let renewed = match self.kind {
            #[cfg(feature = "postgres")]
            Kind::Postgres => super::postgres::renew_identity(self.address.expose()).await,
            #[cfg(feature = "sqlite")]
            Kind::Sqlite => super::sqlite::renew_identity(self.path()).await,
            #[cfg(not(feature = "postgres"))]
            Kind::Postgres => Err(not_built_in()),
            #[cfg(not(feature = "sqlite"))]
            Kind::Sqlite => Err(not_built_in()),
        };
        renewed.map_err(|error| self.unusable(&error))
    }

    fn path(&self) -> &str {
        path_of(self.address.expose(), "sqlite")
    }

    fn unusable(&self, error: &StoreError) -> Unusable {
        Unusable {
            message: self.address.scrub(&with_causes(error)),
            may_pass: error.kind() == ErrorKind::Transient,
        }
    }
}

/// [`StoreUrl::parse`] has refused it already.
#[cfg(not(all(feature = "postgres", feature = "sqlite")))]
fn not_built_in() -> StoreError {
    StoreError::new(
        ErrorKind::Invalid,
        "failed to open the store: its driver is not built in",
    )
}

/// Whether an address names a server.
pub(super) fn server(form: &str, address: &Redacted) -> Result<(), String> {
    match reqwest::Url::parse(address.expose()) {
        Ok(url) if url.has_host() || url.query().is_some_and(|q| q.contains("host=")) => Ok(()),
        Ok(_) => Err(format!(
            "{address} given; it names no host; {form} is expected"
        )),
        Err(error) => Err(format!(
            "{address} given: {error}; {form} is expected, with special characters in the password written as %XX"
        )),
    }
}
