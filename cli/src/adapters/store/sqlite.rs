//! The store in an SQLite file.

use std::path::Path;
use std::sync::Arc;

use cueline_model::StoreId;
use cueline_store::{ErrorKind, StoreError};
use cueline_store_sqlite::{SqliteOptions, SqliteStore};

use super::{OpenStore, StoreSettings};
use crate::adapters::private_file::keep_private;

pub(super) async fn open(path: &str, settings: &StoreSettings) -> Result<OpenStore, StoreError> {
    let store = Arc::new(open_file(Path::new(path), settings).await?);
    let closed = store.clone();
    let close = move || {
        let store = closed.clone();
        Box::pin(async move { store.close().await }) as _
    };
    Ok(OpenStore::new(store, Box::new(close)))
}

async fn open_file(path: &Path, settings: &StoreSettings) -> Result<SqliteStore, StoreError> {
    if !settings.migrate && !path.exists() {
        return Err(StoreError::new(
            ErrorKind::Broken,
            format!(
                "failed to open the store: {} does not exist; create it with `cueline migrate`",
                path.display()
            ),
        ));
    }
    let private = keep_private(path);
    private.map_err(|message| StoreError::new(ErrorKind::Broken, message))?;
    let options = SqliteOptions {
        migrate: settings.migrate,
        executor_dead_after_ms: settings.executor_dead_after_ms,
        ..SqliteOptions::default()
    };
    SqliteStore::open(path, options).await
}

pub(super) async fn migrate(path: &str) -> Result<(), StoreError> {
    open(path, &StoreSettings::default()).await?.close().await;
    Ok(())
}

pub(super) async fn renew_identity(path: &str) -> Result<StoreId, StoreError> {
    let store = open_file(Path::new(path), &StoreSettings::default()).await?;
    let renewed = store.renew_store_id().await;
    store.close().await;
    renewed
}
