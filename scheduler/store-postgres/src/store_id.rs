//! The identity of the store.

use cueline_model::{StoreId, Timestamp};
use cueline_store::adapter::audit::store_restored;
use cueline_store::adapter::store_id::parse_store_id;
use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};

use crate::database::NOW;
use crate::error::{Error, Result};
use crate::{PgStore, audit, schema};

const READ: &str = "SELECT id FROM store_identity";

const RENEW: &str = "
    UPDATE store_identity SET id = replace(gen_random_uuid()::text, '-', '') RETURNING id";

/// Those that were ended after the backup are back, and their secrets may be known.
const END_SESSIONS: &str = "DELETE FROM session";

impl PgStore {
    pub(crate) async fn store_id(&self) -> Result<StoreId> {
        let mut conn = self.db.autocommit().await?;
        let stored: Option<String> = sqlx::query_scalar(READ).fetch_optional(&mut *conn).await?;
        conn.keep();
        Ok(parse_store_id(stored)?)
    }
}

/// Gives the store a new id and returns it. Ends all sessions.
pub(crate) async fn renew(connect: &PgConnectOptions) -> Result<StoreId> {
    schema::migrate(connect).await?;
    let mut conn = PgConnection::connect_with(connect).await?;
    let mut tx = conn.begin().await?;
    let renewed: Option<String> = sqlx::query_scalar(RENEW).fetch_optional(&mut *tx).await?;
    let id = parse_store_id(renewed)?;
    let ended = sqlx::query(END_SESSIONS).execute(&mut *tx).await?;
    let now: i64 = sqlx::query_scalar(NOW).fetch_one(&mut *tx).await?;
    let entry = store_restored(id, ended.rows_affected());
    audit::write(&mut tx, &[entry], Timestamp::from_millis(now)).await?;
    tx.commit().await.map_err(Error::Commit)?;
    schema::close(conn).await;
    Ok(id)
}
