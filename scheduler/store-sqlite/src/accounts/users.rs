//! Users.

use cueline_model::{Actor, Timestamp};
use cueline_store::adapter::accounts::{
    UserRow, check_first_user, check_new_user, check_user_change, grants_text, is_admin,
    last_admin, login_columns, may_be_admin, name_key, no_user, not_first_user, plan_user_change,
    stored_user, subject_taken, too_many_users, user_changed, user_created, user_created_before,
    user_deleted, user_exists, user_grants_text,
};
use cueline_store::adapter::convert::{to_i64, without_nul};
use cueline_store::{
    ChangedUser, Login, MAX_USERS, NewUser, Precondition, StoredUser, UserChange, UserId,
};
use sqlx::SqliteConnection;

use crate::error::Result;
use crate::{SqliteStore, audit};

/// Selects the columns of [`UserRow`].
macro_rules! select_users {
    ($which:literal) => {
        concat!(
            "SELECT id, name, display_name, password_hash, issuer, subject, grants, enabled, version, created_at, ",
            "created_by, last_login_at FROM account_user ",
            $which
        )
    };
}

const ANY: &str = "SELECT EXISTS (SELECT 1 FROM account_user)";

const COUNT: &str = "SELECT count(*) FROM account_user";

const BY_NAME: &str = select_users!("WHERE name_key = ?1");

const BY_SUBJECT: &str = select_users!("WHERE issuer = ?1 AND subject = ?2");

const LIST: &str = select_users!("WHERE name_key > ?1 ORDER BY name_key LIMIT ?2");

const NAME_TAKEN: &str = "SELECT EXISTS (SELECT 1 FROM account_user WHERE name_key = ?1)";

const SUBJECT_TAKEN: &str = "
    SELECT EXISTS (SELECT 1 FROM account_user WHERE issuer = ?1 AND subject = ?2 AND id IS NOT ?3)";

const OTHER_ADMIN: &str =
    "SELECT EXISTS (SELECT 1 FROM account_user WHERE is_admin = 1 AND id <> ?1)";

const INSERT: &str = "
    INSERT INTO account_user (name, name_key, display_name, password_hash, issuer, subject, grants, enabled, is_admin,
        version, created_at, created_by, idempotency_key)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 1, ?8, 1, ?9, ?10, ?11) RETURNING id";

/// The name of the user whom an earlier request with the same key created.
const CREATED: &str =
    "SELECT name FROM account_user WHERE created_by = ?1 AND idempotency_key = ?2";

const UPDATE: &str = "
    UPDATE account_user SET display_name = ?2, password_hash = ?3, issuer = ?4, subject = ?5, grants = ?6, enabled = ?7,
        is_admin = ?8, version = ?9
    WHERE id = ?1";

const DELETE_SESSIONS: &str = "DELETE FROM session WHERE user_id = ?1";

/// Those that have ended keep the time of their end.
const REVOKE_TOKENS: &str = "
    UPDATE api_token SET revoked_at = ?2
    WHERE owner_id = ?1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?2)";

const DELETE_TOKENS: &str = "DELETE FROM api_token WHERE owner_id = ?1";

const DELETE: &str = "DELETE FROM account_user WHERE id = ?1";

impl SqliteStore {
    pub(crate) async fn has_users(&self) -> Result<bool> {
        let mut conn = self.db.read().await?;
        Ok(sqlx::query_scalar(ANY).fetch_one(&mut *conn).await?)
    }

    pub(crate) async fn create_user(&self, user: &NewUser, by: &Actor) -> Result<UserId> {
        check_new_user(user)?;
        let mut tx = self.db.write().await?;
        refuse_repeated(&mut tx, user, by).await?;
        let users: i64 = sqlx::query_scalar(COUNT).fetch_one(&mut *tx).await?;
        if users >= to_i64(MAX_USERS) {
            return Err(too_many_users().into());
        }
        let id = insert(&mut tx, user, by, self.db.now()).await?;
        tx.commit().await?;
        Ok(id)
    }

    pub(crate) async fn create_first_user(&self, user: &NewUser, by: &Actor) -> Result<UserId> {
        check_first_user(user)?;
        let mut tx = self.db.write().await?;
        let exists: bool = sqlx::query_scalar(ANY).fetch_one(&mut *tx).await?;
        if exists {
            return Err(not_first_user().into());
        }
        let id = insert(&mut tx, user, by, self.db.now()).await?;
        tx.commit().await?;
        Ok(id)
    }

    pub(crate) async fn change_user(
        &self,
        name: &str,
        change: &UserChange,
        by: &Actor,
    ) -> Result<ChangedUser> {
        check_user_change(change)?;
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let before = find(&mut tx, name).await?;
        let Some(update) = plan_user_change(&before, change)? else {
            return Ok(ChangedUser {
                version: before.version,
                tokens_revoked: 0,
            });
        };
        if update.needs_other_admin {
            require_other_admin(&mut tx, &before).await?;
        }
        let after = &update.after;
        require_free_subject(&mut tx, &after.login, Some(after.id)).await?;
        write(&mut tx, after).await?;
        let sessions = if update.ends_sessions {
            delete(&mut tx, DELETE_SESSIONS, after.id).await?
        } else {
            0
        };
        let tokens_revoked = if change.revoke_tokens {
            let revoked = sqlx::query(REVOKE_TOKENS)
                .bind(after.id.0)
                .bind(now.as_millis());
            revoked.execute(&mut *tx).await?.rows_affected()
        } else {
            0
        };
        let entry = user_changed(&before, &update, sessions, tokens_revoked, by);
        audit::write(&mut tx, &[entry], now).await?;
        tx.commit().await?;
        Ok(ChangedUser {
            version: update.after.version,
            tokens_revoked,
        })
    }

    pub(crate) async fn delete_user_if(
        &self,
        name: &str,
        condition: &Precondition,
        by: &Actor,
    ) -> Result<()> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let user = find(&mut tx, name).await?;
        condition.require("delete the user", &user.name, Some((&user).into()))?;
        if may_be_admin(&user) {
            require_other_admin(&mut tx, &user).await?;
        }
        let sessions = delete(&mut tx, DELETE_SESSIONS, user.id).await?;
        let tokens = delete(&mut tx, DELETE_TOKENS, user.id).await?;
        delete(&mut tx, DELETE, user.id).await?;
        audit::write(&mut tx, &[user_deleted(&user, sessions, tokens, by)], now).await?;
        tx.commit().await
    }

    pub(crate) async fn user(&self, name: &str) -> Result<StoredUser> {
        find(&mut *self.db.read().await?, name).await
    }

    pub(crate) async fn user_by_subject(
        &self,
        issuer: &str,
        subject: &str,
    ) -> Result<Option<StoredUser>> {
        let row: Option<UserRow> = sqlx::query_as(BY_SUBJECT)
            .bind(without_nul(issuer))
            .bind(without_nul(subject))
            .fetch_optional(&mut *self.db.read().await?)
            .await?;
        Ok(row.map(stored_user).transpose()?)
    }

    pub(crate) async fn users(&self, after: Option<&str>, limit: usize) -> Result<Vec<StoredUser>> {
        let rows: Vec<UserRow> = sqlx::query_as(LIST)
            .bind(after.map(name_key).unwrap_or_default())
            .bind(to_i64(limit))
            .fetch_all(&mut *self.db.read().await?)
            .await?;
        rows.into_iter().map(|row| Ok(stored_user(row)?)).collect()
    }
}

async fn find(conn: &mut SqliteConnection, name: &str) -> Result<StoredUser> {
    let row: Option<UserRow> = sqlx::query_as(BY_NAME)
        .bind(name_key(name))
        .fetch_optional(conn)
        .await?;
    let row = row.ok_or_else(|| no_user(name))?;
    Ok(stored_user(row)?)
}

/// Fails if an earlier request with the same idempotency key created a user.
async fn refuse_repeated(conn: &mut SqliteConnection, user: &NewUser, by: &Actor) -> Result<()> {
    let Some(key) = &user.idempotency_key else {
        return Ok(());
    };
    let existing: Option<String> = sqlx::query_scalar(CREATED)
        .bind(without_nul(&by.to_string()))
        .bind(key)
        .fetch_optional(conn)
        .await?;
    match existing {
        None => Ok(()),
        Some(existing) => Err(user_created_before(&user.name, &existing).into()),
    }
}

async fn insert(
    conn: &mut SqliteConnection,
    user: &NewUser,
    by: &Actor,
    now: Timestamp,
) -> Result<UserId> {
    let key = name_key(&user.name);
    let taken: bool = sqlx::query_scalar(NAME_TAKEN)
        .bind(&key)
        .fetch_one(&mut *conn)
        .await?;
    if taken {
        return Err(user_exists(&user.name).into());
    }
    require_free_subject(conn, &user.login, None).await?;
    let (password, issuer, subject) = login_columns(&user.login);
    let id: i64 = sqlx::query_scalar(INSERT)
        .bind(&user.name)
        .bind(&key)
        .bind(&user.display_name)
        .bind(password)
        .bind(issuer)
        .bind(subject)
        .bind(grants_text(&user.grants)?)
        .bind(is_admin(&user.login, &user.grants, true))
        .bind(now.as_millis())
        .bind(without_nul(&by.to_string()))
        .bind(user.idempotency_key.as_deref())
        .fetch_one(&mut *conn)
        .await?;
    audit::write(conn, &[user_created(user, by)], now).await?;
    Ok(UserId(id))
}

async fn write(conn: &mut SqliteConnection, user: &StoredUser) -> Result<()> {
    let (password, issuer, subject) = login_columns(&user.login);
    sqlx::query(UPDATE)
        .bind(user.id.0)
        .bind(&user.display_name)
        .bind(password)
        .bind(issuer)
        .bind(subject)
        .bind(user_grants_text(user)?)
        .bind(user.enabled)
        .bind(is_admin(&user.login, &user.grants, user.enabled))
        .bind(to_i64(user.version))
        .execute(conn)
        .await?;
    Ok(())
}

/// Fails if a user other than `own` has this OpenID subject.
async fn require_free_subject(
    conn: &mut SqliteConnection,
    login: &Login,
    own: Option<UserId>,
) -> Result<()> {
    let Login::OpenId { issuer, subject } = login else {
        return Ok(());
    };
    let taken: bool = sqlx::query_scalar(SUBJECT_TAKEN)
        .bind(issuer)
        .bind(subject)
        .bind(own.map(|id| id.0))
        .fetch_one(conn)
        .await?;
    if taken {
        return Err(subject_taken(issuer, subject).into());
    }
    Ok(())
}

/// Fails if no user but this one can manage users.
async fn require_other_admin(conn: &mut SqliteConnection, user: &StoredUser) -> Result<()> {
    let exists: bool = sqlx::query_scalar(OTHER_ADMIN)
        .bind(user.id.0)
        .fetch_one(conn)
        .await?;
    if exists {
        Ok(())
    } else {
        Err(last_admin(&user.name).into())
    }
}

/// Deletes what belongs to a user. Returns the number of rows.
async fn delete(conn: &mut SqliteConnection, statement: &'static str, user: UserId) -> Result<u64> {
    let deleted = sqlx::query(statement).bind(user.0).execute(conn).await?;
    Ok(deleted.rows_affected())
}
