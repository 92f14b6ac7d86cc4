//! The store on PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use cueline_model::StoreId;
use cueline_store::StoreError;
use cueline_store_postgres::{PgOptions, PgStore};

use super::{OpenStore, Schema, StoreSettings};

pub(super) async fn open(url: &str, settings: &StoreSettings) -> Result<OpenStore, StoreError> {
    let options = PgOptions {
        application_name: settings.application.clone(),
        migrate: settings.migrate,
        executor_dead_after_ms: settings.executor_dead_after_ms,
        // What a node that vanished had locked is free when its lease is over.
        idle_in_transaction_timeout: Duration::from_millis(settings.lease_ms),
        ..PgOptions::default()
    };
    let store = Arc::new(PgStore::connect(url, options).await?);
    let held = store.clone();
    let close = move || -> super::Closing {
        let held = held.clone();
        Box::pin(async move { held.close().await })
    };
    Ok(OpenStore::new(store, Box::new(close)))
}

pub(super) async fn migrate(url: &str) -> Result<Schema, StoreError> {
    let found = cueline_store_postgres::migrate(url).await?;
    Ok(Schema {
        version: Some(found.version.into()),
    })
}

pub(super) async fn renew_identity(url: &str) -> Result<StoreId, StoreError> {
    cueline_store_postgres::renew_identity(url).await
}
