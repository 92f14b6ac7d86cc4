//! Which store this is.

use cueline_model::StoreId;
use cueline_store::StoreError;
use cueline_store::adapter::identity::understood;

use crate::SqliteStore;
use crate::database::commit;
use crate::error::failed;

const READ: &str = "SELECT id FROM store_identity";
const RENEW: &str = "UPDATE store_identity SET id = lower(hex(randomblob(16))) RETURNING id";

impl SqliteStore {
    pub(crate) async fn read_identity(&self) -> Result<StoreId, StoreError> {
        let found: Option<String> = sqlx::query_scalar(READ)
            .fetch_optional(&mut *self.db.read().await?)
            .await
            .map_err(failed("read the store's id"))?;
        understood(found)
    }

    /// Gives the store a new id; it. For a file that was restored from a backup, see [`Store::store_id`](cueline_store::Store::store_id).
    pub async fn renew_identity(&self) -> Result<StoreId, StoreError> {
        let mut tx = self.db.write().await?;
        let renewed: Option<String> = sqlx::query_scalar(RENEW)
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed("give the store a new id"))?;
        commit(tx).await?;
        understood(renewed)
    }
}
