//! Reading runs, their timelines and logs, and counts over the store.

use cueline_model::{JobId, Namespace, RunId, RunState, Shard, Timestamp};
use cueline_store::adapter::convert::{parse_name, run_kind, run_state, to_i64, to_u32};
use cueline_store::adapter::log_lines::stored_line;
use cueline_store::adapter::namespaces::{MAX_SEARCHED_JOBS, NameRange};
use cueline_store::adapter::queries::{NewestRuns, store_stats, timeline_entry};
use cueline_store::{Run, RunDetail, RunFilter, StoreError, StoreStats, StoredLogLine};
use sqlx::sqlite::SqliteRow;
use sqlx::types::Json;
use sqlx::{Row as _, SqliteConnection};

use crate::SqliteStore;
use crate::error::Result;

pub(crate) const BY_ID: &str = "
    SELECT r.*, j.name AS job_name, coalesce(r.published_group, j.group_name) AS job_group
    FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value CROSS JOIN job j ON j.id = r.job_id
    ORDER BY r.id DESC";

const TIMELINE: &str =
    "SELECT at, attempt, event, detail FROM run_event WHERE run_id = ?1 ORDER BY id";

const EXISTS: &str = "SELECT EXISTS (SELECT 1 FROM run WHERE id = ?1)";

const LOG: &str = "
    SELECT cursor, at, stream, text FROM run_log WHERE run_id = ?1 AND cursor > ?2 ORDER BY cursor LIMIT ?3";

const JOBS_EVER_NAMED: &str = "SELECT id FROM job WHERE name = ?1";

const ID_RANGE: &str = "
    SELECT coalesce(min(id), 0), coalesce(max(id), 0) FROM (SELECT min(id) AS id FROM run UNION ALL SELECT max(id) FROM run)";

pub(crate) const OF_JOBS: &str = "
    SELECT json_group_array(id) FROM (
        SELECT r.id FROM json_each(?1) b CROSS JOIN json_each(?2) j CROSS JOIN run r ON r.id >> 14 = b.value AND r.job_id = j.value
        WHERE r.id < ?3 AND (?4 = '[]' OR r.state IN (SELECT value FROM json_each(?4)))
            AND (?5 = 0 OR r.started_at IS NOT NULL OR r.state >= 10)
        ORDER BY r.id DESC LIMIT ?6)";

pub(crate) const ALL: &str = "
    SELECT json_group_array(id) FROM (
        SELECT id FROM run WHERE id < ?1 AND (?2 = '[]' OR state IN (SELECT value FROM json_each(?2))) ORDER BY id DESC LIMIT ?3)";

/// For states other than success. Few runs are in such a state.
pub(crate) const IN_RARE_STATES: &str = "
    SELECT json_group_array(id) FROM (
        SELECT id FROM run WHERE state > 10 AND state IN (SELECT value FROM json_each(?2)) AND id < ?1
        UNION ALL
        SELECT id FROM run WHERE state < 10 AND state IN (SELECT value FROM json_each(?2)) AND id < ?1
        ORDER BY id DESC LIMIT ?3)";

const JOBS_OF_NAMESPACE: &str = "
    SELECT id FROM job WHERE name > ?1 AND name < ?2 AND (?3 = 0 OR instr(name, '/') = 0) LIMIT ?4";

pub(crate) const ALL_OF_NAMESPACE: &str = "
    SELECT json_group_array(id) FROM (
        SELECT r.id FROM run r CROSS JOIN job j ON j.id = r.job_id
        WHERE r.id < ?1 AND (?2 = '[]' OR r.state IN (SELECT value FROM json_each(?2)))
            AND j.name > ?4 AND j.name < ?5 AND (?6 = 0 OR instr(j.name, '/') = 0)
        ORDER BY r.id DESC LIMIT ?3)";

pub(crate) const IN_RARE_STATES_OF_NAMESPACE: &str = "
    SELECT json_group_array(id) FROM (
        SELECT r.id AS id FROM run r CROSS JOIN job j ON j.id = r.job_id
        WHERE r.state > 10 AND r.state IN (SELECT value FROM json_each(?2)) AND r.id < ?1
            AND j.name > ?4 AND j.name < ?5 AND (?6 = 0 OR instr(j.name, '/') = 0)
        UNION ALL
        SELECT r.id AS id FROM run r CROSS JOIN job j ON j.id = r.job_id
        WHERE r.state < 10 AND r.state IN (SELECT value FROM json_each(?2)) AND r.id < ?1
            AND j.name > ?4 AND j.name < ?5 AND (?6 = 0 OR instr(j.name, '/') = 0)
        ORDER BY id DESC LIMIT ?3)";

const COUNT_JOBS: &str = "SELECT count(*) FROM job_due";
const COUNT_LIVE: &str =
    "SELECT state, count(*) FROM run WHERE state < 10 GROUP BY state ORDER BY state";

const OLDEST_DUE: &str = "
    SELECT min(due) FROM (
        SELECT due FROM (SELECT due_at AS due FROM run WHERE claimed_by IS NULL AND state < 2 AND state = 0 ORDER BY due_at LIMIT 1)
        UNION ALL
        SELECT min(due_at) FROM run WHERE state = 0 AND state < 10 AND claimed_by IS NOT NULL)";

/// Ids that differ only in this many low bits form one block of the index by job.
pub(crate) const BLOCK_BITS: u32 = 14;

/// The most blocks that one statement searches.
const MAX_BLOCKS: i64 = 64;

impl SqliteStore {
    pub(crate) async fn run(&self, run: RunId) -> Result<RunDetail> {
        let mut tx = self.db.snapshot().await?;
        let found = read_runs(&mut tx, &[run.0]).await?.pop();
        let found = found.ok_or_else(|| StoreError::no_run(run))?;
        let events: Vec<(i64, i64, String, String)> = sqlx::query_as(TIMELINE)
            .bind(run.0)
            .fetch_all(&mut *tx)
            .await?;
        Ok(RunDetail {
            run: found,
            timeline: events.into_iter().map(timeline_entry).collect(),
        })
    }

    pub(crate) async fn runs(&self, filter: &RunFilter) -> Result<Vec<Run>> {
        let mut tx = self.db.snapshot().await?;
        let before = NewestRuns::before(filter.before);
        let ids = if let Some(job) = &filter.job {
            let jobs: Vec<i64> = sqlx::query_scalar(JOBS_EVER_NAMED)
                .bind(job.as_str())
                .fetch_all(&mut *tx)
                .await?;
            if jobs.is_empty() {
                return Err(StoreError::no_job(job.as_str()).into());
            }
            let wanted = NewestRuns {
                states: &filter.states,
                before,
                ..NewestRuns::of(&jobs, filter.limit)
            };
            newest_of_jobs(&mut tx, &wanted).await?
        } else if let Some(namespace) = &filter.namespace {
            newest_of_namespace(&mut tx, namespace, filter).await?
        } else {
            let rare = !filter.states.is_empty() && !filter.states.contains(&RunState::Succeeded);
            let Json(ids) = sqlx::query_scalar(if rare { IN_RARE_STATES } else { ALL })
                .bind(before)
                .bind(codes(&filter.states))
                .bind(to_i64(filter.limit))
                .fetch_one(&mut *tx)
                .await?;
            ids
        };
        read_runs(&mut tx, &ids).await
    }

    pub(crate) async fn log_lines(
        &self,
        run: RunId,
        after: i64,
        limit: usize,
    ) -> Result<Vec<StoredLogLine>> {
        let mut tx = self.db.snapshot().await?;
        let exists: bool = sqlx::query_scalar(EXISTS)
            .bind(run.0)
            .fetch_one(&mut *tx)
            .await?;
        if !exists {
            return Err(StoreError::no_run(run).into());
        }
        let rows: Vec<(i64, i64, String, String)> = sqlx::query_as(LOG)
            .bind(run.0)
            .bind(after)
            .bind(to_i64(limit))
            .fetch_all(&mut *tx)
            .await?;
        rows.into_iter().map(|row| Ok(stored_line(row)?)).collect()
    }

    pub(crate) async fn stats(&self) -> Result<StoreStats> {
        let mut tx = self.db.snapshot().await?;
        let jobs: i64 = sqlx::query_scalar(COUNT_JOBS).fetch_one(&mut *tx).await?;
        let live: Vec<(i64, i64)> = sqlx::query_as(COUNT_LIVE).fetch_all(&mut *tx).await?;
        let oldest: Option<i64> = sqlx::query_scalar(OLDEST_DUE).fetch_one(&mut *tx).await?;
        Ok(store_stats(jobs, live, oldest, self.db.now())?)
    }
}

fn codes(states: &[RunState]) -> Json<Vec<u32>> {
    Json(states.iter().map(|s| u32::from(s.code())).collect())
}

/// The lowest and the highest id of all runs.
pub(crate) async fn id_range(conn: &mut SqliteConnection) -> Result<(i64, i64)> {
    Ok(sqlx::query_as(ID_RANGE).fetch_one(conn).await?)
}

/// Ids of runs of jobs, newest first. Searches the newest block first, then twice as many blocks with each further
/// statement.
pub(crate) async fn newest_of_jobs(
    conn: &mut SqliteConnection,
    wanted: &NewestRuns<'_>,
) -> Result<Vec<i64>> {
    let (lowest, highest) = id_range(conn).await?;
    let mut top = highest.min(wanted.before.saturating_sub(1)) >> BLOCK_BITS;
    let bottom = lowest >> BLOCK_BITS;
    let mut step = 1;
    let mut ids: Vec<i64> = Vec::new();
    while top >= bottom && ids.len() < wanted.limit {
        let low = (top - step + 1).max(bottom);
        let blocks: Vec<i64> = (low..=top).rev().collect();
        let Json(found): Json<Vec<i64>> = sqlx::query_scalar(OF_JOBS)
            .bind(Json(blocks))
            .bind(Json(wanted.jobs))
            .bind(wanted.before)
            .bind(codes(wanted.states))
            .bind(wanted.begun)
            .bind(to_i64(wanted.limit - ids.len()))
            .fetch_one(&mut *conn)
            .await?;
        ids.extend(found);
        top = low - 1;
        step = (step * 2).min(MAX_BLOCKS);
    }
    Ok(ids)
}

/// Ids of runs of a namespace, newest first. The runs of few jobs are found by their jobs, because they may be far apart.
/// Those of many jobs, and runs in rare states, are found by looking at each run.
async fn newest_of_namespace(
    conn: &mut SqliteConnection,
    namespace: &Namespace,
    filter: &RunFilter,
) -> Result<Vec<i64>> {
    let range = NameRange::new(Some(namespace), None);
    let before = NewestRuns::before(filter.before);
    let rare = !filter.states.is_empty() && !filter.states.contains(&RunState::Succeeded);
    if !rare {
        let jobs: Vec<i64> = sqlx::query_scalar(JOBS_OF_NAMESPACE)
            .bind(&range.above)
            .bind(&range.below)
            .bind(range.without_slash)
            .bind(to_i64(MAX_SEARCHED_JOBS + 1))
            .fetch_all(&mut *conn)
            .await?;
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        if jobs.len() <= MAX_SEARCHED_JOBS {
            let wanted = NewestRuns {
                states: &filter.states,
                before,
                ..NewestRuns::of(&jobs, filter.limit)
            };
            return newest_of_jobs(conn, &wanted).await;
        }
    }
    let statement = if rare {
        IN_RARE_STATES_OF_NAMESPACE
    } else {
        ALL_OF_NAMESPACE
    };
    let Json(ids) = sqlx::query_scalar(statement)
        .bind(before)
        .bind(codes(&filter.states))
        .bind(to_i64(filter.limit))
        .bind(range.above)
        .bind(range.below)
        .bind(range.without_slash)
        .fetch_one(conn)
        .await?;
    Ok(ids)
}

/// Runs by id, newest first.
pub(crate) async fn read_runs(conn: &mut SqliteConnection, ids: &[i64]) -> Result<Vec<Run>> {
    let rows = sqlx::query(BY_ID).bind(Json(ids)).fetch_all(conn).await?;
    rows.iter().map(run).collect()
}

fn run(row: &SqliteRow) -> Result<Run> {
    let number = |column: &str| row.try_get::<i64, _>(column);
    let optional = |column: &str| row.try_get::<Option<i64>, _>(column);
    let text = |column: &str| row.try_get::<Option<String>, _>(column);
    let time = |column: &str| number(column).map(Timestamp::from_millis);
    let optional_time = |column: &str| optional(column).map(|at| at.map(Timestamp::from_millis));
    Ok(Run {
        id: RunId(number("id")?),
        job_id: JobId(number("job_id")?),
        job: parse_name(row.try_get("job_name")?)?,
        group: parse_name(row.try_get("job_group")?)?,
        kind: run_kind(number("kind")?)?,
        state: run_state(number("state")?)?,
        attempt: to_u32(number("attempt")?),
        retries: to_u32(number("retries")?),
        fire_at: time("fire_at")?,
        due_at: time("due_at")?,
        shard: Shard {
            index: to_u32(number("shard_index")?),
            total: to_u32(number("shard_total")?),
            item: text("shard_item")?,
        },
        executor: text("executor")?.as_deref().map(parse_name).transpose()?,
        params: text("params")?,
        created_at: time("created_at")?,
        queued_at: optional_time("queued_at")?,
        started_at: optional_time("started_at")?,
        ended_at: optional_time("ended_at")?,
        exit_status: optional("exit_status")?.and_then(|status| i32::try_from(status).ok()),
        message: text("message")?,
        output: text("output")?,
        progress: row.try_get("progress")?,
        cancel_requested: row.try_get("cancel_requested")?,
        parent: optional("parent")?.map(RunId),
    })
}
