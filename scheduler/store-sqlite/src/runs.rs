//! Reading runs, their timelines and logs, runs of jobs, and counts over the store.

use cueline_model::{JobId, RunId, RunState, Shard, Timestamp};
use cueline_store::adapter::convert::{parse_name, run_kind, run_state, to_i64, to_u32};
use cueline_store::adapter::log_lines::stored_line;
use cueline_store::adapter::queries::{FoundRuns, RunsOfJobs, store_stats, timeline_entry};
use cueline_store::{Order, Run, RunDetail, StoreError, StoreStats, StoredLogLine};
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

const ID_RANGE: &str = "
    SELECT coalesce(min(id), 0), coalesce(max(id), 0) FROM (SELECT min(id) AS id FROM run UNION ALL SELECT max(id) FROM run)";

macro_rules! of_jobs {
    ($direction:literal) => {
        concat!(
            "SELECT json_group_array(id) FROM (
                SELECT r.id FROM json_each(?1) b CROSS JOIN json_each(?2) j CROSS JOIN run r ON r.id >> 14 = b.value AND r.job_id = j.value
                WHERE +r.id > ?7 AND r.id < ?3 AND (?4 = '[]' OR r.state IN (SELECT value FROM json_each(?4)))
                    AND (?5 = 0 OR r.started_at IS NOT NULL OR r.state >= 10)
                ORDER BY r.id ",
            $direction,
            " LIMIT ?6)"
        )
    };
}

pub(crate) const OF_JOBS: &str = of_jobs!("DESC");
const OF_JOBS_ASCENDING: &str = of_jobs!("ASC");

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
const MAX_BLOCKS: usize = 64;

impl SqliteStore {
    pub(crate) async fn run(&self, run: RunId) -> Result<RunDetail> {
        run_detail(&mut *self.db.snapshot().await?, run).await
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

/// The stored codes of states.
pub(crate) fn codes(states: &[RunState]) -> Json<Vec<u32>> {
    Json(states.iter().map(|s| u32::from(s.code())).collect())
}

/// The lowest and the highest id of all runs.
pub(crate) async fn id_range(conn: &mut SqliteConnection) -> Result<(i64, i64)> {
    Ok(sqlx::query_as(ID_RANGE).fetch_one(conn).await?)
}

/// Ids of runs of jobs in the order of the search. Searches the first block first, then twice as many blocks with each
/// further statement.
pub(crate) async fn runs_of_jobs(
    conn: &mut SqliteConnection,
    wanted: &RunsOfJobs<'_>,
) -> Result<FoundRuns> {
    let (lowest, highest) = id_range(conn).await?;
    let bottom = lowest.max(wanted.ids.above.saturating_add(1)) >> BLOCK_BITS;
    let top = highest.min(wanted.ids.below.saturating_sub(1)) >> BLOCK_BITS;
    let is_ascending = wanted.order == Order::Ascending;
    let statement = if is_ascending {
        OF_JOBS_ASCENDING
    } else {
        OF_JOBS
    };
    let mut blocks = (0..=top - bottom).map(|n| if is_ascending { bottom + n } else { top - n });
    let mut found = FoundRuns::default();
    let (mut step, mut left) = (1, wanted.max_blocks);
    while found.ids.len() < wanted.limit {
        let searched: Vec<i64> = blocks.by_ref().take(step.min(left)).collect();
        let Some(&last) = searched.last() else {
            break;
        };
        left -= searched.len();
        let Json(ids): Json<Vec<i64>> = sqlx::query_scalar(statement)
            .bind(Json(searched))
            .bind(Json(wanted.jobs))
            .bind(wanted.ids.below)
            .bind(codes(wanted.states))
            .bind(wanted.begun)
            .bind(to_i64(wanted.limit - found.ids.len()))
            .bind(wanted.ids.above)
            .fetch_one(&mut *conn)
            .await?;
        found.ids.extend(ids);
        step = (step * 2).min(MAX_BLOCKS);
        if left == 0 && found.ids.len() < wanted.limit {
            found.searched_to = Some(if is_ascending {
                ((last + 1) << BLOCK_BITS) - 1
            } else {
                last << BLOCK_BITS
            });
        }
    }
    Ok(found)
}

/// A run with its timeline, in a snapshot.
pub(crate) async fn run_detail(conn: &mut SqliteConnection, run: RunId) -> Result<RunDetail> {
    let found = read_runs(&mut *conn, &[run.0]).await?.pop();
    let found = found.ok_or_else(|| StoreError::no_run(run))?;
    let events: Vec<(i64, i64, String, String)> =
        sqlx::query_as(TIMELINE).bind(run.0).fetch_all(conn).await?;
    Ok(RunDetail {
        run: found,
        timeline: events.into_iter().map(timeline_entry).collect(),
    })
}

/// Runs by id, the highest first.
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
