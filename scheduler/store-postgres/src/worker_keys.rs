//! Keys of workers and the tokens that enrol them.
//!
//! Changes are rare. They are made one after the other, so that readers see them in the order of their numbers.

use cueline_model::{Actor, ExecutorId, ExecutorName, GroupName, Namespace};
use cueline_store::adapter::audit::{
    KeyStateRow, key_changed, key_enrolled, stored_actor, token_created, token_deleted,
};
use cueline_store::adapter::convert::{to_i64, without_nul};
use cueline_store::adapter::worker_keys::{
    EnrolmentPlan, EnrolmentWrites, KeyRow, KnownKey, TokenRow, check_new_token, keys_page,
    plan_enrolment, stored_bytes, stored_token, too_many_tokens,
};
use cueline_store::{
    EnrolOutcome, EnrolRefusal, KeyOrigin, MAX_ENROLMENT_TOKENS, MAX_WORKER_KEYS,
    NewEnrolmentToken, NewWorkerKey, StoreError, StoredEnrolmentToken, WorkerKeyState,
    WorkerKeysPage,
};
use sqlx::postgres::PgConnection;

use crate::database::WriteTx;
use crate::error::Result;
use crate::{PgStore, audit};

const VERSION: &str = "SELECT number FROM worker_key_version";

/// Other changes wait for the end of the transaction.
const LOCK_VERSION: &str = "SELECT number FROM worker_key_version FOR UPDATE";

const SET_VERSION: &str = "UPDATE worker_key_version SET number = $1";

const COUNT_TOKENS: &str = "SELECT count(*) FROM enrolment_token";

const DELETE_SPENT: &str = "DELETE FROM enrolment_token WHERE uses_left < 1 OR expires_at <= $1";

const INSERT_TOKEN: &str = "
    INSERT INTO enrolment_token (id, verifier, group_name, executor, uses_left, expires_at, created_at, created_by, namespace, idempotency_key)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING";

/// The id of the token that an earlier request with the same key created.
const CREATED: &str =
    "SELECT id FROM enrolment_token WHERE created_by = $1 AND idempotency_key = $2";

/// The columns of [`TokenRow`].
const TOKENS: &str = "
    SELECT id, group_name, executor, uses_left, expires_at, created_at, created_by, namespace FROM enrolment_token
    ORDER BY created_at, id";

/// The token cannot be deleted before the end of the transaction.
const TOKEN: &str = "
    SELECT id, group_name, executor, uses_left, expires_at, created_at, created_by, namespace FROM enrolment_token WHERE id = $1 FOR UPDATE";

const VERIFIER: &str = "SELECT verifier FROM enrolment_token WHERE id = $1";

/// Returns the columns of [`TokenRow`].
const DELETE_TOKEN: &str = "
    DELETE FROM enrolment_token WHERE id = $1
    RETURNING id, group_name, executor, uses_left, expires_at, created_at, created_by, namespace";

const USE_TOKEN: &str = "UPDATE enrolment_token SET uses_left = uses_left - 1 WHERE id = $1";

/// The columns of [`KnownKey`].
const KEYS_OF_EXECUTOR: &str = "
    SELECT key_id, key, allowed FROM worker_key WHERE group_name = $1 AND executor = $2 ORDER BY change DESC";

/// The columns of [`KeyRow`].
const CHANGED: &str = "
    SELECT group_name, executor, key_id, key, allowed, enrolled_at, enrolled_by, changed_at, changed_by, change
    FROM worker_key WHERE change > $1 ORDER BY change LIMIT $2";

const COUNT_KEYS: &str = "SELECT count(*) FROM worker_key";

const DELETE_FIRST_REVOKED: &str = "
    DELETE FROM worker_key WHERE change = (SELECT min(change) FROM worker_key WHERE NOT allowed)";

const INSERT_KEY: &str = "
    INSERT INTO worker_key (group_name, executor, key_id, key, allowed, enrolled_at, enrolled_by, changed_at, changed_by, change)
    VALUES ($1, $2, $3, $4, true, $5, $6, $5, $6, $7)";

/// An operator's revocation also takes the place of a replacement, because a key that was just replaced still counts for
/// a short time. A later revocation changes nothing.
const SET_KEY: &str = "
    UPDATE worker_key SET allowed = $4, changed_at = $5, changed_by = $6, change = $7
    WHERE group_name = $1 AND executor = $2 AND key_id = $3
        AND (allowed <> $4 OR (NOT allowed AND (changed_by LIKE 'rotation to %' OR changed_by LIKE 'enrolment token %')))";

/// The columns of [`KeyStateRow`].
const KEY_STATE: &str = "
    SELECT allowed, changed_by FROM worker_key WHERE group_name = $1 AND executor = $2 AND key_id = $3";

const DELETE_KEY: &str =
    "DELETE FROM worker_key WHERE group_name = $1 AND executor = $2 AND key_id = $3";

impl PgStore {
    pub(crate) async fn create_enrolment_token(&self, token: &NewEnrolmentToken) -> Result<bool> {
        check_new_token(token)?;
        let mut tx = self.db.write().await?;
        let now = tx.now;
        // Two calls at the same time must not both find room for one.
        lock_version(&mut tx).await?;
        if let Some(key) = &token.idempotency_key {
            let existing: Option<String> = sqlx::query_scalar(CREATED)
                .bind(stored_actor(&token.by))
                .bind(key)
                .fetch_optional(&mut *tx)
                .await?;
            if let Some(id) = existing {
                return Err(StoreError::already_created("an enrolment token", &id).into());
            }
        }
        if count(&mut tx, COUNT_TOKENS).await? >= to_i64(MAX_ENROLMENT_TOKENS) {
            sqlx::query(DELETE_SPENT)
                .bind(now.as_millis())
                .execute(&mut *tx)
                .await?;
            if count(&mut tx, COUNT_TOKENS).await? >= to_i64(MAX_ENROLMENT_TOKENS) {
                return Err(too_many_tokens().into());
            }
        }
        let created = sqlx::query(INSERT_TOKEN)
            .bind(&token.id)
            .bind(token.verifier.as_slice())
            .bind(token.group.as_ref().map(GroupName::as_str))
            .bind(token.executor.as_ref().map(ExecutorName::as_str))
            .bind(i64::from(token.uses))
            .bind(token.valid_ms.map(|ms| now.plus_ms(ms).as_millis()))
            .bind(now.as_millis())
            .bind(stored_actor(&token.by))
            .bind(token.namespace.as_ref().map(Namespace::as_str))
            .bind(token.idempotency_key.as_deref())
            .execute(&mut *tx)
            .await?
            .rows_affected();
        if created == 1 {
            audit::write(&mut tx, &[token_created(token)], now).await?;
        }
        tx.commit().await?;
        Ok(created == 1)
    }

    pub(crate) async fn enrolment_tokens(&self) -> Result<Vec<StoredEnrolmentToken>> {
        let rows: Vec<TokenRow> = sqlx::query_as(TOKENS)
            .fetch_all(&mut *self.db.read().await?)
            .await?;
        rows.into_iter().map(|row| Ok(stored_token(row)?)).collect()
    }

    pub(crate) async fn delete_enrolment_token(&self, id: &str, by: &Actor) -> Result<bool> {
        let mut tx = self.db.write().await?;
        let now = tx.now;
        let deleted: Option<TokenRow> = sqlx::query_as(DELETE_TOKEN)
            .bind(without_nul(id))
            .fetch_optional(&mut *tx)
            .await?;
        let Some(token) = deleted else {
            tx.roll_back().await;
            return Ok(false);
        };
        audit::write(&mut tx, &[token_deleted(by, token)?], now).await?;
        tx.commit().await?;
        Ok(true)
    }

    pub(crate) async fn token_verifier(&self, id: &str) -> Result<Option<[u8; 32]>> {
        let mut conn = self.db.autocommit().await?;
        let verifier: Option<Vec<u8>> = sqlx::query_scalar(VERIFIER)
            .bind(without_nul(id))
            .fetch_optional(&mut *conn)
            .await?;
        conn.keep();
        let verifier = verifier.as_deref().map(stored_bytes);
        Ok(verifier.transpose()?)
    }

    pub(crate) async fn enrol_workers(&self, keys: &[NewWorkerKey]) -> Result<Vec<EnrolOutcome>> {
        let mut tx = self.db.write().await?;
        let mut change = lock_version(&mut tx).await?;
        let mut stored = None;
        let (mut outcomes, mut entries) = (Vec::with_capacity(keys.len()), Vec::new());
        for key in keys {
            let writes = match plan(&mut tx, key).await? {
                EnrolmentPlan::Write(writes) => writes,
                EnrolmentPlan::Done(outcome) => {
                    outcomes.push(outcome);
                    continue;
                }
            };
            let before = match stored {
                Some(stored) => stored,
                None => count(&mut tx, COUNT_KEYS).await?,
            };
            stored = Some(before);
            let kept = before - delete_keys(&mut tx, &key.executor, &writes.deleted).await?;
            let is_full = kept >= to_i64(MAX_WORKER_KEYS);
            // A deletion would have made room, so a refusal changes nothing.
            if is_full && !delete_first_revoked(&mut tx).await? {
                outcomes.push(EnrolOutcome::Refused(EnrolRefusal::TooManyKeys));
                continue;
            }
            change = write_enrolment(&mut tx, key, &writes, change).await?;
            stored = Some(kept + i64::from(!is_full));
            entries.push(key_enrolled(key, &writes));
            outcomes.push(EnrolOutcome::Enrolled);
        }
        if entries.is_empty() {
            tx.roll_back().await;
            return Ok(outcomes);
        }
        set_version(&mut tx, change).await?;
        let now = tx.now;
        audit::write(&mut tx, &entries, now).await?;
        tx.commit().await?;
        Ok(outcomes)
    }

    pub(crate) async fn worker_keys(
        &self,
        changed_after: i64,
        limit: usize,
    ) -> Result<WorkerKeysPage> {
        let mut conn = self.db.autocommit().await?;
        let newest = count(&mut conn, VERSION).await?;
        let rows: Vec<KeyRow> = if newest > changed_after {
            sqlx::query_as(CHANGED)
                .bind(changed_after)
                .bind(to_i64(limit))
                .fetch_all(&mut *conn)
                .await?
        } else {
            Vec::new()
        };
        conn.keep();
        Ok(keys_page(rows, changed_after, newest)?)
    }

    pub(crate) async fn set_worker_key(
        &self,
        executor: &ExecutorId,
        key_id: &str,
        state: WorkerKeyState,
        by: &Actor,
    ) -> Result<bool> {
        let mut tx = self.db.write().await?;
        let change = lock_version(&mut tx).await? + 1;
        let before: Option<KeyStateRow> = sqlx::query_as(KEY_STATE)
            .bind(executor.group.as_str())
            .bind(executor.name.as_str())
            .bind(key_id)
            .fetch_optional(&mut *tx)
            .await?;
        let Some(before) = before else {
            tx.roll_back().await;
            return Ok(false);
        };
        let (allowed, now) = (state == WorkerKeyState::Allowed, tx.now);
        let named = stored_actor(by);
        if set_key(&mut tx, executor, key_id, allowed, &named, change).await? {
            set_version(&mut tx, change).await?;
            let entry = key_changed(by, executor, key_id, &before, state);
            audit::write(&mut tx, &[entry], now).await?;
            tx.commit().await?;
        } else {
            tx.roll_back().await;
        }
        Ok(true)
    }
}

async fn lock_version(conn: &mut PgConnection) -> Result<i64> {
    count(conn, LOCK_VERSION).await
}

/// The number that a statement selects.
async fn count(conn: &mut PgConnection, statement: &'static str) -> Result<i64> {
    Ok(sqlx::query_scalar(statement).fetch_one(conn).await?)
}

async fn set_version(conn: &mut PgConnection, newest: i64) -> Result<()> {
    sqlx::query(SET_VERSION).bind(newest).execute(conn).await?;
    Ok(())
}

async fn plan(tx: &mut WriteTx, key: &NewWorkerKey) -> Result<EnrolmentPlan> {
    let token: Option<TokenRow> = match &key.by {
        KeyOrigin::Token(id) => {
            sqlx::query_as(TOKEN)
                .bind(without_nul(id))
                .fetch_optional(&mut **tx)
                .await?
        }
        KeyOrigin::Rotation { .. } => None,
    };
    let keys: Vec<KnownKey> = sqlx::query_as(KEYS_OF_EXECUTOR)
        .bind(key.executor.group.as_str())
        .bind(key.executor.name.as_str())
        .fetch_all(&mut **tx)
        .await?;
    Ok(plan_enrolment(key, token, &keys, tx.now)?)
}

/// Deletes these keys of the executor. Returns how many there were.
async fn delete_keys(
    conn: &mut PgConnection,
    executor: &ExecutorId,
    ids: &[String],
) -> Result<i64> {
    let mut deleted = 0;
    for id in ids {
        let result = sqlx::query(DELETE_KEY)
            .bind(executor.group.as_str())
            .bind(executor.name.as_str())
            .bind(id)
            .execute(&mut *conn)
            .await?;
        deleted += i64::from(result.rows_affected() == 1);
    }
    Ok(deleted)
}

/// Returns whether there was a revoked key.
async fn delete_first_revoked(conn: &mut PgConnection) -> Result<bool> {
    let deleted = sqlx::query(DELETE_FIRST_REVOKED).execute(conn).await?;
    Ok(deleted.rows_affected() == 1)
}

/// Takes one use of the token, and writes the changes of the executor's keys. Returns the number of the last one.
async fn write_enrolment(
    tx: &mut WriteTx,
    key: &NewWorkerKey,
    writes: &EnrolmentWrites,
    newest: i64,
) -> Result<i64> {
    let executor = &key.executor;
    if let Some(token) = &writes.token {
        sqlx::query(USE_TOKEN)
            .bind(token)
            .execute(&mut **tx)
            .await?;
    }
    let mut change = newest;
    for id in &writes.revoked {
        change += 1;
        set_key(tx, executor, id, false, &writes.revoked_by, change).await?;
    }
    change += 1;
    sqlx::query(INSERT_KEY)
        .bind(executor.group.as_str())
        .bind(executor.name.as_str())
        .bind(without_nul(&key.key_id))
        .bind(key.key.as_slice())
        .bind(tx.now.as_millis())
        .bind(without_nul(&writes.enrolled_by))
        .bind(change)
        .execute(&mut **tx)
        .await?;
    Ok(change)
}

/// Changes the state of a key. Returns whether this was a change.
async fn set_key(
    tx: &mut WriteTx,
    executor: &ExecutorId,
    key_id: &str,
    allowed: bool,
    by: &str,
    change: i64,
) -> Result<bool> {
    let changed = sqlx::query(SET_KEY)
        .bind(executor.group.as_str())
        .bind(executor.name.as_str())
        .bind(key_id)
        .bind(allowed)
        .bind(tx.now.as_millis())
        .bind(by)
        .bind(change)
        .execute(&mut **tx)
        .await?;
    Ok(changed.rows_affected() == 1)
}
