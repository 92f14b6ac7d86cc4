//! Backfills: runs for the fire times of past windows.

use std::collections::HashMap;

use async_trait::async_trait;
use cueline_model::{Actor, JobId, JobName, Timestamp};
use cueline_store::adapter::audit::{backfill_changed, backfill_started, stored_actor};
use cueline_store::adapter::backfills::{
    Advanced, BackfillRow, BackfilledJob, advance_all, already_active, cancel_message,
    check_change, fire_keys, jobs_of, no_backfill, too_many_active,
};
use cueline_store::adapter::convert::{parse_name, run_state, to_i64, to_u64};
use cueline_store::adapter::definitions::job_of;
use cueline_store::adapter::job_list::name_range;
use cueline_store::{
    AdvancedBackfills, Backfill, BackfillChange, BackfillDetail, BackfillFilter, BackfillStore,
    MAX_ACTIVE_BACKFILLS, MAX_ENDED_BACKFILLS, NewBackfill, Revision, StoreError,
};
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::error::Result;
use crate::{SqliteStore, audit, new_runs};

/// The columns of [`BackfillRow`], without the definition and the outstanding fires of those that have ended.
macro_rules! rows {
    ($outstanding:literal, $definition:literal, $from:literal) => {
        concat!(
            "SELECT json_object('id', b.id, 'job_id', b.job_id, 'name', j.name, 'group_name', j.group_name,
                'from_at', b.from_at, 'to_at', b.to_at, 'parallel', b.parallel, 'include_excluded', b.include_excluded,
                'state', b.state, 'total', b.total, 'fires', b.fires, 'excluded', b.excluded, 'cursor_at', b.cursor_at,
                'started_at', b.started_at, 'started_by', b.started_by, 'changed_at', b.changed_at, 'changed_by', b.changed_by,
                'ended_at', b.ended_at, 'message', b.message, 'is_deleted', j.deleted_at IS NOT NULL,
                'outstanding', ", $outstanding, ", 'definition', ", $definition, ") FROM ", $from
        )
    };
}

const LIST: &str = rows!(
    "CASE WHEN b.state < 2 THEN (SELECT count(DISTINCT r.fire_at) FROM run r WHERE r.job_id = b.job_id AND r.kind = 4 AND r.ended_at IS NULL) ELSE 0 END",
    "NULL",
    "backfill b CROSS JOIN job j ON j.id = b.job_id
     WHERE b.id < ?1 AND j.name >= ?2 AND j.name < ?3 AND (?4 = 0 OR instr(j.name, '/') = 0) AND (?5 IS NULL OR j.name = ?5)
        AND (?6 = 0 OR b.state < 2)
     ORDER BY b.id DESC LIMIT ?7"
);

const READ: &str = rows!(
    "CASE WHEN b.state < 2 THEN (SELECT count(DISTINCT r.fire_at) FROM run r WHERE r.job_id = b.job_id AND r.kind = 4 AND r.ended_at IS NULL) ELSE 0 END",
    "NULL",
    "backfill b CROSS JOIN job j ON j.id = b.job_id WHERE b.id = ?1"
);

const COUNT_RUNS: &str = "
    SELECT state, count(*) FROM run WHERE fire_key >= ?1 AND fire_key < ?2 AND job_id = ?3 AND kind = 4 GROUP BY state ORDER BY state";

const JOB: &str = "
    SELECT j.id, d.version, j.group_name, j.definition FROM job j CROSS JOIN job_due d ON d.job_id = j.id
    WHERE j.name = ?1 AND j.deleted_at IS NULL";

const ACTIVE_OF_JOB: &str = "SELECT id, state FROM backfill WHERE job_id = ?1 AND state < 2";

const ID_OF_ACTIVE: &str = "SELECT id FROM backfill WHERE job_id = ?1 AND state < 2";

const COUNT_ACTIVE: &str = "SELECT count(*) FROM backfill WHERE state < 2";

const INSERT: &str = "
    INSERT INTO backfill (job_id, definition, from_at, to_at, parallel, include_excluded, total, started_at, started_by)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) RETURNING id";

const DELETE_OLD: &str = "
    DELETE FROM backfill WHERE state >= 2
        AND id <= (SELECT id FROM backfill WHERE state >= 2 ORDER BY id DESC LIMIT 1 OFFSET ?1)";

const CHANGE: &str = "
    UPDATE backfill SET state = ?2, changed_at = ?3, changed_by = ?4, ended_at = CASE WHEN ?2 >= 2 THEN ?3 END WHERE id = ?1";

/// Whether one is running, so that nothing is locked while there is none.
const IS_ACTIVE: &str = "SELECT EXISTS (SELECT 1 FROM backfill WHERE state = 0)";

const RUNNING: &str = rows!(
    "0",
    "b.definition",
    "backfill b CROSS JOIN job j ON j.id = b.job_id WHERE b.state = 0 ORDER BY b.id LIMIT 50"
);

const JOBS: &str = "
    SELECT json_group_array(json_array(job_id, version, run_count, json(iif(enabled = 0 OR paused_until > ?2, 'true', 'false'))))
    FROM job_due WHERE job_id IN (SELECT value FROM json_each(?1))";

pub(crate) const OUTSTANDING: &str = "
    SELECT json_group_array(json_array(job_id, fires)) FROM (
        SELECT job_id, count(DISTINCT fire_at) AS fires FROM run
        WHERE job_id IN (SELECT value FROM json_each(?1)) AND kind = 4 AND ended_at IS NULL GROUP BY job_id)";

const ADVANCE: &str = "
    UPDATE backfill SET fires = e.value ->> 1, excluded = e.value ->> 2, cursor_at = e.value ->> 3,
        state = coalesce(e.value ->> 4, state), ended_at = CASE WHEN e.value ->> 4 IS NOT NULL THEN ?2 ELSE ended_at END,
        message = coalesce(e.value ->> 5, message)
    FROM json_each(?1) e WHERE backfill.id = e.value ->> 0";

pub(crate) const INSERT_CANCEL_EVENTS: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT id, ?2, attempt, 'cancel', ?3 FROM run
    WHERE job_id = ?1 AND kind = 4 AND ended_at IS NULL AND cancel_requested = 0";

pub(crate) const CANCEL_WAITING: &str = "
    UPDATE run SET state = 15, ended_at = ?2, claimed_by = NULL, cancel_requested = 1, message = ?3
    WHERE job_id = ?1 AND kind = 4 AND state = 0 AND ended_at IS NULL";

pub(crate) const REQUEST_CANCEL: &str = "UPDATE run SET cancel_requested = 1 WHERE job_id = ?1 AND kind = 4 AND state IN (1, 2, 3) AND ended_at IS NULL";

impl SqliteStore {
    async fn insert_backfill(&self, new: &NewBackfill) -> Result<Backfill> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let found: Option<(i64, i64, String, String)> = sqlx::query_as(JOB)
            .bind(new.job.as_str())
            .fetch_optional(&mut *tx)
            .await?;
        let (job, version, group, definition) =
            found.ok_or_else(|| StoreError::no_job(new.job.as_str()))?;
        let revision = Revision { id: job, version };
        let name = new.job.as_str();
        new.condition
            .require("backfill the job", name, Some(revision))?;
        let active: Option<(i64, i64)> = sqlx::query_as(ACTIVE_OF_JOB)
            .bind(job)
            .fetch_optional(&mut *tx)
            .await?;
        if let Some((id, state)) = active {
            return Err(already_active(name, id, state).into());
        }
        let active: i64 = sqlx::query_scalar(COUNT_ACTIVE).fetch_one(&mut *tx).await?;
        if active >= to_i64(MAX_ACTIVE_BACKFILLS) {
            return Err(too_many_active(MAX_ACTIVE_BACKFILLS).into());
        }
        let id: i64 = sqlx::query_scalar(INSERT)
            .bind(job)
            .bind(&definition)
            .bind(new.from.as_millis())
            .bind(new.to.as_millis())
            .bind(new.parallel)
            .bind(new.include_excluded)
            .bind(i64::try_from(new.total).unwrap_or(i64::MAX))
            .bind(now.as_millis())
            .bind(stored_actor(&new.by))
            .fetch_one(&mut *tx)
            .await?;
        sqlx::query(DELETE_OLD)
            .bind(to_i64(MAX_ENDED_BACKFILLS))
            .execute(&mut *tx)
            .await?;
        let entry = backfill_started(new, id, &parse_name(&group)?);
        audit::write(&mut tx, &[entry], now).await?;
        let started = read(&mut tx, id).await?.backfill()?;
        tx.commit().await?;
        Ok(started)
    }

    async fn list_backfills(&self, filter: &BackfillFilter) -> Result<Vec<Backfill>> {
        let (from, below, without_slash) = name_range(filter.namespace.as_ref());
        let rows: Vec<String> = sqlx::query_scalar(LIST)
            .bind(filter.before.unwrap_or(i64::MAX))
            .bind(from)
            .bind(below)
            .bind(without_slash)
            .bind(filter.job.as_ref().map(JobName::as_str))
            .bind(filter.active)
            .bind(to_i64(filter.limit))
            .fetch_all(&mut *self.db.read().await?)
            .await?;
        backfills(&rows)
    }

    async fn read_backfill(&self, id: i64) -> Result<BackfillDetail> {
        let mut tx = self.db.snapshot().await?;
        let row = read(&mut tx, id).await?;
        let (low, end) = fire_keys(id);
        let counts: Vec<(i64, i64)> = sqlx::query_as(COUNT_RUNS)
            .bind(low)
            .bind(end)
            .bind(row.job_id)
            .fetch_all(&mut *tx)
            .await?;
        let counts = counts.into_iter();
        let runs = counts.map(|(state, count)| Ok((run_state(state)?, to_u64(count))));
        Ok(BackfillDetail {
            runs: runs.collect::<Result<_>>()?,
            backfill: row.backfill()?,
        })
    }

    async fn set_backfill(&self, id: i64, change: BackfillChange, by: &Actor) -> Result<Backfill> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let row = read(&mut tx, id).await?;
        let job = row.job_id;
        let before = row.backfill()?;
        if !check_change(id, before.state, change)? {
            return Ok(before);
        }
        sqlx::query(CHANGE)
            .bind(id)
            .bind(change.state().code())
            .bind(now.as_millis())
            .bind(stored_actor(by))
            .execute(&mut *tx)
            .await?;
        if change == BackfillChange::Cancel {
            let message = cancel_message(id, &stored_actor(by));
            for statement in [INSERT_CANCEL_EVENTS, CANCEL_WAITING] {
                sqlx::query(statement)
                    .bind(job)
                    .bind(now.as_millis())
                    .bind(&message)
                    .execute(&mut *tx)
                    .await?;
            }
            sqlx::query(REQUEST_CANCEL)
                .bind(job)
                .execute(&mut *tx)
                .await?;
        }
        let entry = backfill_changed(by, change, &before);
        audit::write(&mut tx, &[entry], now).await?;
        let after = read(&mut tx, id).await?.backfill()?;
        tx.commit().await?;
        Ok(after)
    }

    async fn advance(&self) -> Result<AdvancedBackfills> {
        let is_active: bool = sqlx::query_scalar(IS_ACTIVE)
            .fetch_one(&mut *self.db.read().await?)
            .await?;
        if !is_active {
            return Ok(AdvancedBackfills::default());
        }
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let rows: Vec<String> = sqlx::query_scalar(RUNNING).fetch_all(&mut *tx).await?;
        let rows = rows.iter().map(|text| BackfillRow::parse(text));
        let rows: Vec<BackfillRow> = rows.collect::<std::result::Result<_, _>>()?;
        let jobs = self.backfilled_jobs(&mut tx, &jobs_of(&rows), now).await?;
        let rules = self.present_rules(&mut tx).await?;
        let mut live = self.live_executors(&mut tx, now).await?;
        let (mut runs, changes) = advance_all(&rows, &jobs, &rules, &mut live, now);
        if changes.is_empty() {
            return Ok(AdvancedBackfills { runs: 0, is_active });
        }
        new_runs::insert_and_count(&mut tx, &mut runs, now).await?;
        let columns = |(id, advanced): (i64, Advanced)| {
            let Advanced {
                fires,
                excluded,
                cursor_at,
                ends,
                ..
            } = advanced;
            let state = ends.map(|(state, _)| state.code());
            (
                id,
                fires,
                excluded,
                cursor_at,
                state,
                ends.and_then(|(_, why)| why),
            )
        };
        let changes: Vec<_> = changes.into_iter().map(columns).collect();
        sqlx::query(ADVANCE)
            .bind(Json(changes))
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(AdvancedBackfills {
            runs: runs.len(),
            is_active,
        })
    }

    /// What the next runs of backfills need of their jobs.
    async fn backfilled_jobs(
        &self,
        conn: &mut SqliteConnection,
        jobs: &[JobId],
        now: Timestamp,
    ) -> Result<HashMap<i64, BackfilledJob>> {
        let Json(found): Json<Vec<(i64, i64, i64, bool)>> = sqlx::query_scalar(JOBS)
            .bind(Json(jobs))
            .bind(now.as_millis())
            .fetch_one(&mut *conn)
            .await?;
        let Json(outstanding): Json<Vec<(i64, i64)>> = sqlx::query_scalar(OUTSTANDING)
            .bind(Json(jobs))
            .fetch_one(&mut *conn)
            .await?;
        let outstanding: HashMap<i64, i64> = outstanding.into_iter().collect();
        let versions = found.iter().map(|(job, version, ..)| (*job, *version));
        let known = self.definitions.get(conn, versions).await?;
        let job = |(id, _, run_count, is_paused): (i64, i64, i64, bool)| {
            let job = BackfilledJob {
                job: job_of(&known, id).ok(),
                run_count,
                is_paused,
                outstanding: outstanding.get(&id).copied().unwrap_or_default(),
            };
            (id, job)
        };
        Ok(found.into_iter().map(job).collect())
    }
}

/// The backfill of a job that has not ended.
pub(crate) async fn active_of_job(
    conn: &mut SqliteConnection,
    job: i64,
) -> Result<Option<Backfill>> {
    let active: Option<(i64,)> = sqlx::query_as(ID_OF_ACTIVE)
        .bind(job)
        .fetch_optional(&mut *conn)
        .await?;
    match active {
        Some((id,)) => Ok(Some(read(conn, id).await?.backfill()?)),
        None => Ok(None),
    }
}

async fn read(conn: &mut SqliteConnection, id: i64) -> Result<BackfillRow> {
    let found: Option<String> = sqlx::query_scalar(READ)
        .bind(id)
        .fetch_optional(conn)
        .await?;
    let text = found.ok_or_else(|| no_backfill(id))?;
    Ok(BackfillRow::parse(&text)?)
}

fn backfills(rows: &[String]) -> Result<Vec<Backfill>> {
    let backfill = |text: &String| Ok(BackfillRow::parse(text)?.backfill()?);
    rows.iter().map(backfill).collect()
}

type Answer<T> = std::result::Result<T, StoreError>;

#[async_trait]
impl BackfillStore for SqliteStore {
    async fn start_backfill(&self, new: &NewBackfill) -> Answer<Backfill> {
        let started = self.insert_backfill(new).await;
        started.map_err(|error| error.failed_to("start a backfill"))
    }

    async fn backfills(&self, filter: &BackfillFilter) -> Answer<Vec<Backfill>> {
        let listed = self.list_backfills(filter).await;
        listed.map_err(|error| error.failed_to("list backfills"))
    }

    async fn backfill(&self, id: i64) -> Answer<BackfillDetail> {
        let read = self.read_backfill(id).await;
        read.map_err(|error| error.failed_to("read a backfill"))
    }

    async fn change_backfill(
        &self,
        id: i64,
        change: BackfillChange,
        by: &Actor,
    ) -> Answer<Backfill> {
        let changed = self.set_backfill(id, change, by).await;
        changed.map_err(|error| error.failed_to("change a backfill"))
    }

    async fn advance_backfills(&self) -> Answer<AdvancedBackfills> {
        let advanced = self.advance().await;
        advanced.map_err(|error| error.failed_to("advance backfills"))
    }
}
