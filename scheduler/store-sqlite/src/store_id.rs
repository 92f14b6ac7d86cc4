//! The identity of the store.

use cueline_model::StoreId;
use cueline_store::StoreError;
use cueline_store::adapter::audit::store_restored;
use cueline_store::adapter::store_id::parse_store_id;

use crate::error::Result;
use crate::{Boxed, SqliteStore, audit};

const READ: &str = "SELECT id FROM store_identity";
const RENEW: &str = "UPDATE store_identity SET id = lower(hex(randomblob(16))) RETURNING id";

/// Those that were ended after the backup are back, and their secrets may be known.
const END_SESSIONS: &str = "DELETE FROM session";

impl SqliteStore {
    pub(crate) async fn store_id(&self) -> Result<StoreId> {
        let stored: Option<String> = sqlx::query_scalar(READ)
            .fetch_optional(&mut *self.db.read().await?)
            .await?;
        Ok(parse_store_id(stored)?)
    }

    /// Gives the store a new id and returns it, and ends all sessions of users. Needed after a restore from a backup; see
    /// [`Store::store_id`](cueline_store::Store::store_id).
    ///
    /// # Errors
    ///
    /// As all methods of the [`Store`](cueline_store::Store).
    pub fn renew_store_id(&self) -> Boxed<'_, std::result::Result<StoreId, StoreError>> {
        Box::pin(async {
            let renewed = self.write_store_id().await;
            renewed.map_err(|error| error.failed_to("give the store a new id"))
        })
    }

    async fn write_store_id(&self) -> Result<StoreId> {
        let mut tx = self.db.write().await?;
        let renewed: Option<String> = sqlx::query_scalar(RENEW).fetch_optional(&mut *tx).await?;
        let id = parse_store_id(renewed)?;
        let ended = sqlx::query(END_SESSIONS).execute(&mut *tx).await?;
        let entry = store_restored(id, ended.rows_affected());
        audit::write(&mut tx, &[entry], self.db.now()).await?;
        tx.commit().await?;
        Ok(id)
    }
}
