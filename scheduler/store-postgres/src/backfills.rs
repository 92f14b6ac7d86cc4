//! Backfills: runs for the fire times of past windows.

use std::collections::HashMap;

use async_trait::async_trait;
use cueline_model::{Actor, JobId, JobName, Timestamp};
use cueline_store::adapter::audit::{backfill_changed, backfill_started, stored_actor};
use cueline_store::adapter::backfills::{
    BackfillRow, BackfilledJob, advance_all, already_active, cancel_message, check_change,
    fire_keys, jobs_of, no_backfill, too_many_active,
};
use cueline_store::adapter::convert::{parse_name, run_state, to_i64, to_u64};
use cueline_store::adapter::definitions::job_of;
use cueline_store::adapter::job_list::name_range;
use cueline_store::{
    AdvancedBackfills, Backfill, BackfillChange, BackfillDetail, BackfillFilter, BackfillStore,
    MAX_ACTIVE_BACKFILLS, MAX_ENDED_BACKFILLS, NewBackfill, Revision, StoreError,
};
use sqlx::postgres::PgConnection;

use crate::columns::column;
use crate::database::WriteTx;
use crate::end_runs::end_runs;
use crate::error::Result;
use crate::partitions::Day;
use crate::{PgStore, audit, follow_ups};

/// The columns of [`BackfillRow`], without the definition and the outstanding fires of those that have ended.
macro_rules! rows {
    ($outstanding:literal, $definition:literal, $from:literal) => {
        concat!(
            "SELECT json_build_object('id', b.id, 'job_id', b.job_id, 'name', j.name, 'group_name', j.group_name,
                'from_at', b.from_at, 'to_at', b.to_at, 'parallel', b.parallel, 'include_excluded', b.include_excluded::int,
                'state', b.state, 'total', b.total, 'fires', b.fires, 'excluded', b.excluded, 'cursor_at', b.cursor_at,
                'started_at', b.started_at, 'started_by', b.started_by, 'changed_at', b.changed_at, 'changed_by', b.changed_by,
                'ended_at', b.ended_at, 'message', b.message, 'is_deleted', (j.deleted_at IS NOT NULL)::int,
                'outstanding', ", $outstanding, ", 'definition', ", $definition, ")::text FROM ", $from
        )
    };
}

const LIST: &str = rows!(
    "CASE WHEN b.state < 2 THEN (SELECT count(DISTINCT l.fire_at) FROM run_live l WHERE l.job_id = b.job_id AND l.kind = 4) ELSE 0 END",
    "NULL::text",
    "(SELECT b.* FROM backfill b JOIN job j ON j.id = b.job_id
      WHERE b.id < $1 AND j.name >= $2 AND j.name < $3 AND (NOT $4 OR strpos(j.name, '/') = 0) AND ($5::text IS NULL OR j.name = $5)
        AND (NOT $6 OR b.state < 2)
      ORDER BY b.id DESC LIMIT $7) b JOIN job j ON j.id = b.job_id ORDER BY b.id DESC"
);

const READ: &str = rows!(
    "CASE WHEN b.state < 2 THEN (SELECT count(DISTINCT l.fire_at) FROM run_live l WHERE l.job_id = b.job_id AND l.kind = 4) ELSE 0 END",
    "NULL::text",
    "backfill b JOIN job j ON j.id = b.job_id WHERE b.id = $1"
);

/// The runs of a backfill by state. `$4` is the first id of the day of its start.
const COUNT_RUNS: &str = "
    SELECT coalesce(l.state, r.state, 0)::smallint, count(*)
    FROM run r LEFT JOIN run_live l ON l.id = r.id
    WHERE r.fire_key >= $1 AND r.fire_key < $2 AND r.job_id = $3 AND r.kind = 4 AND r.id >= $4
    GROUP BY 1 ORDER BY 1";

const LOCK: &str = "SELECT job_id FROM backfill WHERE id = $1 FOR NO KEY UPDATE";

const JOB: &str = "
    SELECT j.id, d.version, j.group_name, j.definition FROM job j JOIN job_due d ON d.job_id = j.id
    WHERE j.name = $1 AND j.deleted_at IS NULL FOR NO KEY UPDATE OF d";

const ACTIVE_OF_JOB: &str = "SELECT id, state FROM backfill WHERE job_id = $1 AND state < 2";

const ID_OF_ACTIVE: &str = "SELECT id FROM backfill WHERE job_id = $1 AND state < 2";

const COUNT_ACTIVE: &str = "SELECT count(*) FROM backfill WHERE state < 2";

const INSERT: &str = "
    INSERT INTO backfill (job_id, definition, from_at, to_at, parallel, include_excluded, total, started_at, started_by)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) RETURNING id";

const DELETE_OLD: &str = "
    DELETE FROM backfill WHERE state >= 2
        AND id <= (SELECT id FROM backfill WHERE state >= 2 ORDER BY id DESC OFFSET $1 LIMIT 1)";

const CHANGE: &str = "
    UPDATE backfill SET state = $2, changed_at = $3, changed_by = $4, ended_at = CASE WHEN $2 >= 2 THEN $3 END WHERE id = $1";

/// Whether one is running, so that nothing is locked while there is none.
const IS_ACTIVE: &str = "SELECT EXISTS (SELECT FROM backfill WHERE state = 0)";

/// Locks those that are running. Skips those that another node advances or a person changes.
const RUNNING: &str = rows!(
    "0",
    "b.definition",
    "(SELECT * FROM backfill WHERE state = 0 ORDER BY id LIMIT 50 FOR NO KEY UPDATE SKIP LOCKED) b JOIN job j ON j.id = b.job_id"
);

/// Locks the jobs that no other transaction holds.
const JOBS: &str = "
    SELECT job_id, version, run_count, NOT enabled OR coalesce(paused_until > $2, false)
    FROM job_due WHERE job_id = ANY ($1::bigint[]) ORDER BY job_id FOR NO KEY UPDATE SKIP LOCKED";

/// A later statement than the locks, so that it sees the runs that another node has created before.
const OUTSTANDING: &str = "
    SELECT job_id, count(DISTINCT fire_at) FROM run_live WHERE job_id = ANY ($1::bigint[]) AND kind = 4 GROUP BY job_id";

const ADVANCE: &str = "
    UPDATE backfill b SET fires = e.fires, excluded = e.excluded, cursor_at = e.cursor_at,
        state = coalesce(e.state, b.state), ended_at = CASE WHEN e.state IS NOT NULL THEN $7 ELSE b.ended_at END,
        message = coalesce(e.message, b.message)
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::smallint[], $6::text[])
        e (id, fires, excluded, cursor_at, state, message)
    WHERE b.id = e.id";

const CANCEL_WAITING: &str = end_runs!(
    "",
    delete: "WHERE l.job_id = $1 AND l.kind = 4 AND l.state = 0",
    ends: "15::smallint AS end_state, l.started_at AS began_at, $2::bigint AS end_at, l.exit_status AS status,
        $3::text AS reason, NULL::text AS result",
    within: "",
    then: "INSERT INTO run_event (run_id, at, attempt, event, detail) SELECT id, $2, attempt, 'cancel', $3 FROM done"
);

const REQUEST_CANCEL: &str = "
    WITH requested AS (
        UPDATE run_live SET cancel_requested = true WHERE job_id = $1 AND kind = 4 AND NOT cancel_requested RETURNING id, attempt)
    INSERT INTO run_event (run_id, at, attempt, event, detail) SELECT id, $2, attempt, 'cancel', $3 FROM requested";

impl PgStore {
    async fn insert_backfill(&self, new: &NewBackfill) -> Result<Backfill> {
        let mut tx = self.db.write().await?;
        let inserted = insert_locked(&mut tx, new).await;
        // A dropped transaction keeps the lock of the job for a moment, and a node would skip its backfill.
        tx.finish(inserted).await
    }

    async fn list_backfills(&self, filter: &BackfillFilter) -> Result<Vec<Backfill>> {
        let (from, below, without_slash) = name_range(filter.namespace.as_ref());
        let mut conn = self.db.autocommit().await?;
        let rows: Vec<String> = sqlx::query_scalar(LIST)
            .bind(filter.before.unwrap_or(i64::MAX))
            .bind(from)
            .bind(below)
            .bind(without_slash)
            .bind(filter.job.as_ref().map(JobName::as_str))
            .bind(filter.active)
            .bind(to_i64(filter.limit))
            .fetch_all(&mut *conn)
            .await?;
        conn.keep();
        backfills(&rows)
    }

    async fn read_backfill(&self, id: i64) -> Result<BackfillDetail> {
        let mut tx = self.db.snapshot().await?;
        let row = read(&mut tx, id).await?;
        let (low, end) = fire_keys(id);
        let first_day = Day::of(Timestamp::from_millis(row.started_at));
        let counts: Vec<(i16, i64)> = sqlx::query_as(COUNT_RUNS)
            .bind(low)
            .bind(end)
            .bind(row.job_id)
            .bind(first_day.ids().0)
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
        let changed = change_locked(&mut tx, id, change, by).await;
        tx.finish(changed).await
    }

    async fn advance(&self) -> Result<AdvancedBackfills> {
        let mut conn = self.db.autocommit().await?;
        let is_active: bool = sqlx::query_scalar(IS_ACTIVE).fetch_one(&mut *conn).await?;
        conn.keep();
        if !is_active {
            return Ok(AdvancedBackfills::default());
        }
        let mut tx = self.db.write().await?;
        let now = tx.now;
        let rows: Vec<String> = sqlx::query_scalar(RUNNING).fetch_all(&mut *tx).await?;
        let rows = rows.iter().map(|text| BackfillRow::parse(text));
        let rows: Vec<BackfillRow> = rows.collect::<std::result::Result<_, _>>()?;
        let jobs = self.backfilled_jobs(&mut tx, &jobs_of(&rows), now).await?;
        let rules = self.present_rules(&mut tx).await?;
        let mut live = self.live_executors(&mut tx, now).await?;
        let (mut runs, changes) = advance_all(&rows, &jobs, &rules, &mut live, now);
        if changes.is_empty() {
            // A dropped transaction keeps its locks for a moment, and other nodes would skip its backfills.
            tx.roll_back().await;
            return Ok(AdvancedBackfills { runs: 0, is_active });
        }
        if let Err(error) = self.insert_and_count(&mut tx, &mut runs).await {
            tx.roll_back().await;
            return Err(error);
        }
        sqlx::query(ADVANCE)
            .bind(column(&changes, |(id, _)| *id))
            .bind(column(&changes, |(_, a)| a.fires))
            .bind(column(&changes, |(_, a)| a.excluded))
            .bind(column(&changes, |(_, a)| a.cursor_at))
            .bind(column(&changes, |(_, a)| {
                a.ends.map(|(state, _)| i16::from(state.code()))
            }))
            .bind(column(&changes, |(_, a)| a.ends.and_then(|(_, why)| why)))
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(AdvancedBackfills {
            runs: runs.len(),
            is_active,
        })
    }

    /// Locks the jobs of backfills, and reads what their next runs need.
    async fn backfilled_jobs(
        &self,
        tx: &mut WriteTx,
        jobs: &[JobId],
        now: Timestamp,
    ) -> Result<HashMap<i64, BackfilledJob>> {
        let ids: Vec<i64> = jobs.iter().map(|job| job.0).collect();
        let locked: Vec<(i64, i64, i64, bool)> = sqlx::query_as(JOBS)
            .bind(&ids)
            .bind(now.as_millis())
            .fetch_all(&mut **tx)
            .await?;
        let outstanding: Vec<(i64, i64)> = sqlx::query_as(OUTSTANDING)
            .bind(&ids)
            .fetch_all(&mut **tx)
            .await?;
        let outstanding: HashMap<i64, i64> = outstanding.into_iter().collect();
        let versions = locked.iter().map(|(job, version, ..)| (*job, *version));
        let known = self.definitions.get(&mut *tx, versions).await?;
        let job = |(id, _, run_count, is_paused): (i64, i64, i64, bool)| {
            let job = BackfilledJob {
                job: job_of(&known, id).ok(),
                run_count,
                is_paused,
                outstanding: outstanding.get(&id).copied().unwrap_or_default(),
            };
            (id, job)
        };
        Ok(locked.into_iter().map(job).collect())
    }
}

/// The backfill of a job that has not ended.
pub(crate) async fn active_of_job(conn: &mut PgConnection, job: i64) -> Result<Option<Backfill>> {
    let active: Option<(i64,)> = sqlx::query_as(ID_OF_ACTIVE)
        .bind(job)
        .fetch_optional(&mut *conn)
        .await?;
    match active {
        Some((id,)) => Ok(Some(read(conn, id).await?.backfill()?)),
        None => Ok(None),
    }
}

async fn read(conn: &mut PgConnection, id: i64) -> Result<BackfillRow> {
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

/// Locks the job, and inserts its backfill.
async fn insert_locked(tx: &mut WriteTx, new: &NewBackfill) -> Result<Backfill> {
    let now = tx.now;
    let found: Option<(i64, i64, String, String)> = sqlx::query_as(JOB)
        .bind(new.job.as_str())
        .fetch_optional(&mut **tx)
        .await?;
    let (job, version, group, definition) =
        found.ok_or_else(|| StoreError::no_job(new.job.as_str()))?;
    let revision = Revision { id: job, version };
    let name = new.job.as_str();
    new.condition
        .require("backfill the job", name, Some(revision))?;
    let active: Option<(i64, i16)> = sqlx::query_as(ACTIVE_OF_JOB)
        .bind(job)
        .fetch_optional(&mut **tx)
        .await?;
    if let Some((id, state)) = active {
        return Err(already_active(name, id, state).into());
    }
    let active: i64 = sqlx::query_scalar(COUNT_ACTIVE)
        .fetch_one(&mut **tx)
        .await?;
    if active >= to_i64(MAX_ACTIVE_BACKFILLS) {
        return Err(too_many_active(MAX_ACTIVE_BACKFILLS).into());
    }
    let id: i64 = sqlx::query_scalar(INSERT)
        .bind(job)
        .bind(&definition)
        .bind(new.from.as_millis())
        .bind(new.to.as_millis())
        .bind(i32::try_from(new.parallel).unwrap_or(i32::MAX))
        .bind(new.include_excluded)
        .bind(i64::try_from(new.total).unwrap_or(i64::MAX))
        .bind(now.as_millis())
        .bind(stored_actor(&new.by))
        .fetch_one(&mut **tx)
        .await?;
    sqlx::query(DELETE_OLD)
        .bind(to_i64(MAX_ENDED_BACKFILLS))
        .execute(&mut **tx)
        .await?;
    let entry = backfill_started(new, id, &parse_name(&group)?);
    audit::write(tx, &[entry], now).await?;
    Ok(read(tx, id).await?.backfill()?)
}

/// Locks the backfill, and changes its state.
async fn change_locked(
    tx: &mut WriteTx,
    id: i64,
    change: BackfillChange,
    by: &Actor,
) -> Result<Backfill> {
    let now = tx.now;
    let job: Option<i64> = sqlx::query_scalar(LOCK)
        .bind(id)
        .fetch_optional(&mut **tx)
        .await?;
    let job = job.ok_or_else(|| no_backfill(id))?;
    let before = read(tx, id).await?.backfill()?;
    if !check_change(id, before.state, change)? {
        return Ok(before);
    }
    sqlx::query(CHANGE)
        .bind(id)
        .bind(i16::from(change.state().code()))
        .bind(now.as_millis())
        .bind(stored_actor(by))
        .execute(&mut **tx)
        .await?;
    if change == BackfillChange::Cancel {
        follow_ups::lock_jobs(tx, vec![job]).await?;
        let message = cancel_message(id, &stored_actor(by));
        for statement in [CANCEL_WAITING, REQUEST_CANCEL] {
            sqlx::query(statement)
                .bind(job)
                .bind(now.as_millis())
                .bind(&message)
                .execute(&mut **tx)
                .await?;
        }
    }
    let entry = backfill_changed(by, change, &before);
    audit::write(tx, &[entry], now).await?;
    let after = read(tx, id).await?.backfill()?;
    Ok(after)
}

#[async_trait]
impl BackfillStore for PgStore {
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
