//! The identity of the store.

use cueline_model::StoreId;
use cueline_store::adapter::store_id::parse_store_id;
use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};

use crate::error::Result;
use crate::{PgStore, schema};

const READ: &str = "SELECT id FROM store_identity";

const RENEW: &str = "
    UPDATE store_identity SET id = replace(gen_random_uuid()::text, '-', '') RETURNING id";

impl PgStore {
    pub(crate) async fn store_id(&self) -> Result<StoreId> {
        let stored: Option<String> = sqlx::query_scalar(READ)
            .fetch_optional(&mut *self.db.autocommit().await?)
            .await?;
        Ok(parse_store_id(stored)?)
    }
}

/// Gives the store a new id and returns it.
pub(crate) async fn renew(connect: &PgConnectOptions) -> Result<StoreId> {
    schema::migrate(connect).await?;
    let mut conn = PgConnection::connect_with(connect).await?;
    let renewed: Option<String> = sqlx::query_scalar(RENEW).fetch_optional(&mut conn).await?;
    schema::close(conn).await;
    Ok(parse_store_id(renewed)?)
}
