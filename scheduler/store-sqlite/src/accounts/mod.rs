//! Users, sessions and API tokens. Connects the methods of their port with the inherent methods of the same names.
//!
//! Only one transaction writes at a time, so that a check and the write that follows it are one step. Each change writes
//! its entry of the audit log.

pub(crate) mod api_tokens;
pub(crate) mod sessions;
mod users;

use std::sync::Arc;

use async_trait::async_trait;
use cueline_model::{Actor, Timestamp};
use cueline_store::adapter::accounts::{PendingUse, UseNotes, Used, noted_until};
use cueline_store::adapter::convert::to_i64;
use cueline_store::{
    Accounts, ChangedUser, Login, NewApiToken, NewUser, Precondition, Principal, SecretHash,
    StoreError, StoredApiToken, StoredUser, UserChange, UserId,
};
use sqlx::SqliteConnection;

use crate::SqliteStore;
use crate::database::Database;
use crate::error::Result;

const PRUNE_SESSIONS: &str = "
    DELETE FROM session WHERE hash IN (SELECT hash FROM session WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)";

const PRUNE_TOKENS: &str = "
    DELETE FROM api_token WHERE id IN (SELECT id FROM api_token WHERE coalesce(revoked_at, expires_at) < ?1
        ORDER BY coalesce(revoked_at, expires_at) LIMIT ?2)";

macro_rules! implement_accounts {
    ($($kind:ident $method:ident($($arg:ident: $type:ty),*) -> $answer:ty: $what:literal;)*) => {
        #[async_trait]
        impl Accounts for SqliteStore {
            $(async fn $method(&self, $($arg: $type),*) -> std::result::Result<$answer, StoreError> {
                self.$method($($arg),*).await.map_err(|error| error.failed_to($what))
            })*
        }
    };
}

cueline_store::with_accounts_methods!(implement_accounts);

impl SqliteStore {
    pub(crate) async fn prune_accounts(&self, older_than_ms: u64, limit: usize) -> Result<u64> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let sessions = prune(&mut tx, PRUNE_SESSIONS, now, to_i64(limit)).await?;
        let before = now.minus_ms(older_than_ms);
        let left = to_i64(limit).saturating_sub(to_i64(sessions));
        let tokens = prune(&mut tx, PRUNE_TOKENS, before, left).await?;
        tx.commit().await?;
        Ok(sessions.saturating_add(tokens))
    }
}

/// Starts to note uses over the connections that write.
pub(crate) fn note_uses(db: &Arc<Database>) -> UseNotes {
    let db = Arc::clone(db);
    UseNotes::start(move |pending| {
        let db = Arc::clone(&db);
        async move {
            let noted = note_use(&db, pending).await;
            noted.map_err(|error| error.failed_to("note a use"))
        }
    })
}

/// Notes a use of a session or a token, unless one less than a minute before was noted.
async fn note_use(db: &Database, pending: PendingUse) -> Result<()> {
    let statement = match pending.used {
        Used::Session => sessions::NOTE_USE,
        Used::ApiToken => api_tokens::NOTE_USE,
    };
    let mut tx = db.write().await?;
    sqlx::query(statement)
        .bind(pending.hash.0.as_slice())
        .bind(pending.at.as_millis())
        .bind(noted_until(pending.at).as_millis())
        .execute(&mut *tx)
        .await?;
    tx.commit().await
}

async fn prune(
    conn: &mut SqliteConnection,
    statement: &'static str,
    before: Timestamp,
    limit: i64,
) -> Result<u64> {
    let deleted = sqlx::query(statement)
        .bind(before.as_millis())
        .bind(limit)
        .execute(conn)
        .await?;
    Ok(deleted.rows_affected())
}
