//! Sessions of users who are logged in.

use cueline_model::Actor;
use cueline_store::adapter::accounts::{
    PendingUse, SessionUseRow, Used, login_columns, no_enabled_user, session_ended, session_exists,
    session_started, session_use,
};
use cueline_store::adapter::convert::to_i64;
use cueline_store::{Login, MAX_SESSIONS, Principal, SecretHash, UserId};

use crate::error::Result;
use crate::{SqliteStore, audit};

/// The login was verified before this transaction, so it is compared here: none survives a new password.
const NOTE_LOGIN: &str = "
    UPDATE account_user SET last_login_at = ?2
    WHERE id = ?1 AND enabled = 1 AND password_hash IS ?3 AND issuer IS ?4 AND subject IS ?5
    RETURNING name";

const DELETE_EXPIRED: &str = "DELETE FROM session WHERE user_id = ?1 AND expires_at <= ?2";

/// Deletes all but the ?2 sessions that were used last.
const EVICT: &str = "
    DELETE FROM session WHERE hash IN (SELECT hash FROM session WHERE user_id = ?1
        ORDER BY last_used_at DESC, created_at DESC, hash LIMIT -1 OFFSET ?2)";

const INSERT: &str = "
    INSERT INTO session (hash, user_id, created_at, expires_at, last_used_at) VALUES (?1, ?2, ?3, ?4, ?3)
    ON CONFLICT DO NOTHING";

/// The columns of [`SessionUseRow`].
pub(crate) const FIND: &str = "
    SELECT u.id, u.name, u.grants, u.enabled, s.expires_at, s.last_used_at, ?2
    FROM session s JOIN account_user u ON u.id = s.user_id WHERE s.hash = ?1";

pub(super) const NOTE_USE: &str =
    "UPDATE session SET last_used_at = ?2 WHERE hash = ?1 AND last_used_at <= ?3";

const USER_OF: &str =
    "SELECT u.name FROM session s JOIN account_user u ON u.id = s.user_id WHERE s.hash = ?1";

const DELETE: &str = "DELETE FROM session WHERE hash = ?1";

impl SqliteStore {
    pub(crate) async fn create_session(
        &self,
        user: UserId,
        login: &Login,
        hash: SecretHash,
        valid_ms: u64,
        by: &Actor,
    ) -> Result<()> {
        let (password, issuer, subject) = login_columns(login);
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let name: Option<String> = sqlx::query_scalar(NOTE_LOGIN)
            .bind(user.0)
            .bind(now.as_millis())
            .bind(password)
            .bind(issuer)
            .bind(subject)
            .fetch_optional(&mut *tx)
            .await?;
        let name = name.ok_or_else(|| no_enabled_user(user))?;
        sqlx::query(DELETE_EXPIRED)
            .bind(user.0)
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await?;
        let evicted = sqlx::query(EVICT)
            .bind(user.0)
            .bind(to_i64(MAX_SESSIONS - 1))
            .execute(&mut *tx)
            .await?
            .rows_affected();
        let inserted = sqlx::query(INSERT)
            .bind(hash.0.as_slice())
            .bind(user.0)
            .bind(now.as_millis())
            .bind(now.plus_ms(valid_ms).as_millis())
            .execute(&mut *tx)
            .await?
            .rows_affected();
        if inserted == 0 {
            return Err(session_exists().into());
        }
        audit::write(&mut tx, &[session_started(&name, evicted, by)], now).await?;
        tx.commit().await
    }

    pub(crate) async fn session(
        &self,
        hash: SecretHash,
        idle_ms: u64,
    ) -> Result<Option<Principal>> {
        let row: Option<SessionUseRow> = sqlx::query_as(FIND)
            .bind(hash.0.as_slice())
            .bind(self.db.now().as_millis())
            .fetch_optional(&mut *self.db.authenticate().await?)
            .await?;
        let used = row.map(|row| session_use(row, idle_ms)).transpose()?;
        let Some(used) = used.flatten() else {
            return Ok(None);
        };
        if let Some(at) = used.note_at {
            let used = Used::Session;
            self.uses.note(PendingUse { used, hash, at });
        }
        Ok(Some(used.principal))
    }

    pub(crate) async fn end_session(&self, hash: SecretHash, by: &Actor) -> Result<()> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let user: Option<String> = sqlx::query_scalar(USER_OF)
            .bind(hash.0.as_slice())
            .fetch_optional(&mut *tx)
            .await?;
        let Some(user) = user else {
            return Ok(());
        };
        sqlx::query(DELETE)
            .bind(hash.0.as_slice())
            .execute(&mut *tx)
            .await?;
        audit::write(&mut tx, &[session_ended(&user, by)], now).await?;
        tx.commit().await
    }
}
