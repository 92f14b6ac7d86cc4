//! API tokens.

use cueline_model::{Actor, Timestamp};
use cueline_store::adapter::accounts::{
    ApiTokenRow, PendingUse, TokenUseRow, Used, check_new_token, grants_text, most_tokens,
    no_owner, no_session, stored_api_token, token_created, token_exists, token_revoked, token_use,
    too_many_tokens,
};
use cueline_store::adapter::convert::{to_i64, without_nul};
use cueline_store::{NewApiToken, Principal, SecretHash, StoreError, StoredApiToken, UserId};
use sqlx::{Sqlite, SqliteConnection};

use crate::error::Result;
use crate::{SqliteStore, audit};

/// Selects the columns of [`ApiTokenRow`].
macro_rules! select_tokens {
    ($which:literal) => {
        concat!(
            "SELECT t.id, t.name, u.name, t.grants, t.created_at, t.created_by, t.expires_at, t.revoked_at, ",
            "t.last_used_at FROM api_token t LEFT JOIN account_user u ON u.id = t.owner_id ",
            $which
        )
    };
}

const OWNER: &str = "SELECT name FROM account_user WHERE id = ?1";

const SESSION: &str = "SELECT EXISTS (SELECT 1 FROM session WHERE hash = ?1)";

const COUNT_VALID: &str = "
    SELECT count(*) FROM api_token
    WHERE owner_id IS ?1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?2)";

/// Deletes all but the ?3 tokens of an owner that ended last.
const DELETE_ENDED: &str = "
    DELETE FROM api_token WHERE id IN (SELECT id FROM api_token
        WHERE owner_id IS ?1 AND coalesce(revoked_at, expires_at) <= ?2
        ORDER BY coalesce(revoked_at, expires_at) DESC, id LIMIT -1 OFFSET ?3)";

const INSERT: &str = "
    INSERT INTO api_token (id, hash, name, owner_id, grants, created_at, created_by, expires_at, idempotency_key)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT DO NOTHING";

/// The id of the token that an earlier request with the same key created.
const CREATED: &str = "SELECT id FROM api_token WHERE created_by = ?1 AND idempotency_key = ?2";

/// The columns of [`TokenUseRow`]. A user of a provider who never logged in has no time of a login, and no token counts.
pub(crate) const FIND: &str = "
    SELECT t.id, t.name, t.grants, t.expires_at, t.revoked_at, t.last_used_at, t.owner_id, u.name, u.grants, u.enabled, ?2
    FROM api_token t LEFT JOIN account_user u ON u.id = t.owner_id
    WHERE t.hash = ?1 AND (u.issuer IS NULL OR u.last_login_at > ?2 - ?3)";

pub(super) const NOTE_USE: &str = "
    UPDATE api_token SET last_used_at = ?2 WHERE hash = ?1 AND (last_used_at IS NULL OR last_used_at <= ?3)";

const LIST: &str = select_tokens!("WHERE t.id > ?1 ORDER BY t.id LIMIT ?2");

pub(crate) const LIST_OF_OWNER: &str =
    select_tokens!("WHERE t.owner_id = ?3 AND t.id > ?1 ORDER BY t.id LIMIT ?2");

const BY_ID: &str = select_tokens!("WHERE t.id = ?1 AND (?2 IS NULL OR t.owner_id = ?2)");

const REVOKE: &str = "UPDATE api_token SET revoked_at = ?2 WHERE id = ?1";

impl SqliteStore {
    pub(crate) async fn create_api_token(&self, token: &NewApiToken, by: &Actor) -> Result<()> {
        check_new_token(token)?;
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        refuse_repeated(&mut tx, token, by).await?;
        let owner = match token.owner {
            Some(id) => Some(owner_name(&mut tx, id).await?),
            None => None,
        };
        if let Some(session) = token.session {
            require_session(&mut tx, session).await?;
        }
        make_room(&mut tx, token.owner, owner.as_deref(), now).await?;
        let expires_at = token.valid_ms.map(|ms| now.plus_ms(ms));
        let inserted = sqlx::query(INSERT)
            .bind(&token.id)
            .bind(token.hash.0.as_slice())
            .bind(&token.name)
            .bind(token.owner.map(|id| id.0))
            .bind(grants_text(&token.grants)?)
            .bind(now.as_millis())
            .bind(without_nul(&by.to_string()))
            .bind(expires_at.map(Timestamp::as_millis))
            .bind(token.idempotency_key.as_deref())
            .execute(&mut *tx)
            .await?
            .rows_affected();
        if inserted == 0 {
            return Err(token_exists(&token.id).into());
        }
        let entry = token_created(token, owner.as_deref(), expires_at, by);
        audit::write(&mut tx, &[entry], now).await?;
        tx.commit().await
    }

    pub(crate) async fn api_token(
        &self,
        hash: SecretHash,
        openid_valid_ms: u64,
    ) -> Result<Option<Principal>> {
        let row: Option<TokenUseRow> = sqlx::query_as(FIND)
            .bind(hash.0.as_slice())
            .bind(self.db.now().as_millis())
            .bind(to_i64(openid_valid_ms))
            .fetch_optional(&mut *self.db.authenticate().await?)
            .await?;
        let used = row.map(token_use).transpose()?;
        let Some(used) = used.flatten() else {
            return Ok(None);
        };
        if let Some(at) = used.note_at {
            let used = Used::ApiToken;
            self.uses.note(PendingUse { used, hash, at });
        }
        Ok(Some(used.principal))
    }

    pub(crate) async fn api_tokens(
        &self,
        owner: Option<UserId>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<StoredApiToken>> {
        let statement = if owner.is_some() { LIST_OF_OWNER } else { LIST };
        let mut query = sqlx::query_as::<Sqlite, ApiTokenRow>(statement)
            .bind(without_nul(after.unwrap_or_default()))
            .bind(to_i64(limit));
        if let Some(owner) = owner {
            query = query.bind(owner.0);
        }
        let rows = query.fetch_all(&mut *self.db.read().await?).await?;
        Ok(rows.into_iter().map(stored_api_token).collect())
    }

    pub(crate) async fn revoke_api_token(
        &self,
        id: &str,
        owner: Option<UserId>,
        by: &Actor,
    ) -> Result<bool> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let row: Option<ApiTokenRow> = sqlx::query_as(BY_ID)
            .bind(without_nul(id))
            .bind(owner.map(|owner| owner.0))
            .fetch_optional(&mut *tx)
            .await?;
        let Some(row) = row else {
            return Ok(false);
        };
        let token = stored_api_token(row);
        if token.revoked_at.is_some() {
            return Ok(true);
        }
        sqlx::query(REVOKE)
            .bind(&token.id)
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await?;
        audit::write(&mut tx, &[token_revoked(&token, by)], now).await?;
        tx.commit().await?;
        Ok(true)
    }
}

/// Fails if an earlier request with the same idempotency key created a token.
async fn refuse_repeated(
    conn: &mut SqliteConnection,
    token: &NewApiToken,
    by: &Actor,
) -> Result<()> {
    let Some(key) = &token.idempotency_key else {
        return Ok(());
    };
    let existing: Option<String> = sqlx::query_scalar(CREATED)
        .bind(without_nul(&by.to_string()))
        .bind(key)
        .fetch_optional(conn)
        .await?;
    match existing {
        None => Ok(()),
        Some(id) => Err(StoreError::already_created("an API token", &id).into()),
    }
}

async fn owner_name(conn: &mut SqliteConnection, owner: UserId) -> Result<String> {
    let name: Option<String> = sqlx::query_scalar(OWNER)
        .bind(owner.0)
        .fetch_optional(conn)
        .await?;
    Ok(name.ok_or_else(|| no_owner(owner))?)
}

/// Fails if the session has ended, as a new password ends it: no token is made by the old one afterwards.
async fn require_session(conn: &mut SqliteConnection, session: SecretHash) -> Result<()> {
    let exists: bool = sqlx::query_scalar(SESSION)
        .bind(session.0.as_slice())
        .fetch_one(conn)
        .await?;
    if exists {
        Ok(())
    } else {
        Err(no_session().into())
    }
}

/// Fails if the owner has too many valid tokens. Deletes the surplus of those that have ended.
async fn make_room(
    conn: &mut SqliteConnection,
    owner: Option<UserId>,
    name: Option<&str>,
    now: Timestamp,
) -> Result<()> {
    let most = most_tokens(owner);
    let valid: i64 = sqlx::query_scalar(COUNT_VALID)
        .bind(owner.map(|id| id.0))
        .bind(now.as_millis())
        .fetch_one(&mut *conn)
        .await?;
    if valid >= to_i64(most) {
        return Err(too_many_tokens(name, most).into());
    }
    sqlx::query(DELETE_ENDED)
        .bind(owner.map(|id| id.0))
        .bind(now.as_millis())
        .bind(to_i64(most))
        .execute(conn)
        .await?;
    Ok(())
}
