//! Sessions of users who are logged in.

use cueline_model::{Actor, Timestamp};
use cueline_store::adapter::accounts::{
    PendingUse, SessionUseRow, Used, login_columns, no_enabled_user, session_ended, session_exists,
    session_started, session_use,
};
use cueline_store::adapter::convert::to_i64;
use cueline_store::{Login, MAX_SESSIONS, Principal, SecretHash, UserId};

use crate::error::Result;
use crate::{PgStore, audit};

/// Locks the user, so that two logins at the same time exceed no bound, and none survives that the user is disabled. The
/// login was verified before, so it is compared here: none survives a new password either.
const NOTE_LOGIN: &str = "
    UPDATE account_user SET last_login_at = $2
    WHERE id = $1 AND enabled AND password_hash IS NOT DISTINCT FROM $3 AND issuer IS NOT DISTINCT FROM $4
        AND subject IS NOT DISTINCT FROM $5
    RETURNING name";

const DELETE_EXPIRED: &str = "DELETE FROM session WHERE user_id = $1 AND expires_at <= $2";

/// Deletes all but the $2 sessions that were used last.
const EVICT: &str = "
    DELETE FROM session WHERE hash IN (SELECT hash FROM session WHERE user_id = $1
        ORDER BY last_used_at DESC, created_at DESC, hash OFFSET $2)";

const INSERT: &str = "
    INSERT INTO session (hash, user_id, created_at, expires_at, last_used_at) VALUES ($1, $2, $3, $4, $3)
    ON CONFLICT DO NOTHING";

/// The columns of [`SessionUseRow`].
pub(crate) const FIND: &str = "
    SELECT u.id, u.name, u.grants, u.enabled, s.expires_at, s.last_used_at,
        coalesce($2, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    FROM session s JOIN account_user u ON u.id = s.user_id WHERE s.hash = $1";

pub(super) const NOTE_USE: &str =
    "UPDATE session SET last_used_at = $2 WHERE hash = $1 AND last_used_at <= $3";

const DELETE: &str = "
    DELETE FROM session s USING account_user u WHERE s.hash = $1 AND u.id = s.user_id RETURNING u.name";

impl PgStore {
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
        let now = tx.now;
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
            .bind(self.db.test_clock().map(Timestamp::as_millis))
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
        let now = tx.now;
        let user: Option<String> = sqlx::query_scalar(DELETE)
            .bind(hash.0.as_slice())
            .fetch_optional(&mut *tx)
            .await?;
        let Some(user) = user else {
            tx.roll_back().await;
            return Ok(());
        };
        audit::write(&mut tx, &[session_ended(&user, by)], now).await?;
        tx.commit().await
    }
}
