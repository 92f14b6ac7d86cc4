//! The store on PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use cueline_model::StoreId;
use cueline_store::StoreError;
use cueline_store_postgres::{PgOptions, PgStore};

use super::{OpenStore, StoreSettings};

pub(super) async fn open(url: &str, settings: &StoreSettings) -> Result<OpenStore, StoreError> {
    let options = PgOptions {
        application_name: settings.application.clone(),
        migrate: settings.migrate,
        executor_dead_after_ms: settings.executor_dead_after_ms,
        // If a node vanishes, its locks are released by the time its lease expires.
        idle_in_transaction_timeout: Duration::from_millis(settings.lease_ms),
        ..PgOptions::default()
    };
    let store = Arc::new(PgStore::connect(url, options).await?);
    let closed = store.clone();
    let close = move || {
        let store = closed.clone();
        Box::pin(async move { store.close().await }) as _
    };
    Ok(OpenStore::new(store, Box::new(close)))
}

/// Returns the schema's version.
pub(super) async fn migrate(url: &str) -> Result<i64, StoreError> {
    let schema = cueline_store_postgres::migrate(url).await?;
    Ok(schema.version.into())
}

pub(super) async fn renew_identity(url: &str) -> Result<StoreId, StoreError> {
    cueline_store_postgres::renew_store_id(url).await
}
