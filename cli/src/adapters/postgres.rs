//! The store on PostgreSQL.

use std::sync::Arc;

use cueline_store::StoreError;
use cueline_store_postgres::{PgOptions, PgStore};

use super::{OpenStore, Schema};

pub(super) async fn open(
    url: &str,
    application: &str,
    migrate: bool,
) -> Result<OpenStore, StoreError> {
    let options = PgOptions {
        application_name: application.to_owned(),
        migrate,
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
