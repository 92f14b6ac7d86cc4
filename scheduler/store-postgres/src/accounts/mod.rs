//! Users, sessions and API tokens. Connects the methods of their port with the inherent methods of the same names.
//!
//! Changes of users and tokens are rare. They are made one after the other, so that a check and the write that follows it
//! are one step. Sessions of a user are started one after the other. Each change writes its entry of the audit log.

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
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::database::{Database, WriteTx};
use crate::error::Result;

/// Other changes of users and tokens wait for the end of the transaction.
const LOCK: &str = "SELECT only_row FROM account_lock FOR UPDATE";

const PRUNE_SESSIONS: &str = "
    DELETE FROM session WHERE hash IN (SELECT hash FROM session WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2)";

const PRUNE_TOKENS: &str = "
    DELETE FROM api_token WHERE id IN (SELECT id FROM api_token WHERE coalesce(revoked_at, expires_at) < $1
        ORDER BY coalesce(revoked_at, expires_at) LIMIT $2)";

macro_rules! implement_accounts {
    ($($kind:ident $method:ident($($arg:ident: $type:ty),*) -> $answer:ty: $what:literal;)*) => {
        #[async_trait]
        impl Accounts for PgStore {
            $(async fn $method(&self, $($arg: $type),*) -> std::result::Result<$answer, StoreError> {
                self.$kind($what, || self.$method($($arg),*)).await
            })*
        }
    };
}

cueline_store::with_accounts_methods!(implement_accounts);

impl PgStore {
    pub(crate) async fn prune_accounts(&self, older_than_ms: u64, limit: usize) -> Result<u64> {
        let mut tx = self.db.write().await?;
        let now = tx.now;
        let sessions = prune(&mut tx, PRUNE_SESSIONS, now, to_i64(limit)).await?;
        let before = now.minus_ms(older_than_ms);
        let left = to_i64(limit).saturating_sub(to_i64(sessions));
        let tokens = prune(&mut tx, PRUNE_TOKENS, before, left).await?;
        tx.commit().await?;
        Ok(sessions.saturating_add(tokens))
    }

    /// Begins a transaction that changes users or tokens.
    async fn change_accounts(&self) -> Result<WriteTx> {
        let mut tx = self.db.write().await?;
        sqlx::query(LOCK).execute(&mut *tx).await?;
        Ok(tx)
    }
}

/// Starts to note uses over the connections that write.
pub(crate) fn note_uses(db: &Arc<Database>) -> UseNotes {
    let db = Arc::clone(db);
    UseNotes::start(move |pending| {
        let db = Arc::clone(&db);
        async move {
            let noted = db.bounded(note_use(&db, pending)).await;
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
    let mut conn = db.autocommit().await?;
    sqlx::query(statement)
        .bind(pending.hash.0.as_slice())
        .bind(pending.at.as_millis())
        .bind(noted_until(pending.at).as_millis())
        .execute(&mut *conn)
        .await?;
    conn.keep();
    Ok(())
}

async fn prune(
    conn: &mut PgConnection,
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
