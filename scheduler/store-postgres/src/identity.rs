//! Which store this is.

use cueline_model::StoreId;
use cueline_store::StoreError;
use cueline_store::adapter::identity::understood;
use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};

use crate::error::failed;
use crate::{PgStore, schema};

pub(crate) const READ: &str = "SELECT id FROM store_identity";

const RENEW: &str = "
    UPDATE store_identity SET id = replace(gen_random_uuid()::text, '-', '') RETURNING id";

impl PgStore {
    pub(crate) async fn read_identity(&self) -> Result<StoreId, StoreError> {
        let found: Option<String> = sqlx::query_scalar(READ)
            .fetch_optional(&mut *self.db.glance().await?)
            .await
            .map_err(failed("read the store's id"))?;
        understood(found)
    }
}

/// Gives the store a new id; it.
pub(crate) async fn renew(connect: &PgConnectOptions) -> Result<StoreId, StoreError> {
    schema::migrate(connect).await?;
    let fail = failed("give the store a new id");
    let mut conn = PgConnection::connect_with(connect).await.map_err(&fail)?;
    let renewed: Option<String> = sqlx::query_scalar(RENEW)
        .fetch_optional(&mut conn)
        .await
        .map_err(&fail)?;
    // It has done its work; how its end goes changes nothing.
    conn.close().await.ok();
    understood(renewed)
}
