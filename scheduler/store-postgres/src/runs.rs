//! Reading runs and their timelines, runs of jobs, and counts over the store.
//!
//! A live run has a row in `run` and one in `run_live`. The values in `run_live` take precedence.

use std::collections::BTreeSet;

use cueline_model::{JobId, RunId, Shard, Timestamp};
use cueline_store::adapter::convert::{parse_name, run_kind, run_state, to_i64, to_u32};
use cueline_store::adapter::queries::{FoundRuns, RunsOfJobs, store_stats, timeline_entry};
use cueline_store::{Order, Run, RunDetail, StoreError, StoreStats};
use sqlx::Row as _;
use sqlx::postgres::{PgConnection, PgRow};

use crate::PgStore;
use crate::columns::{column, id_range, state_code};
use crate::error::Result;
use crate::partitions::{Day, existing_partitions};

pub(crate) const BY_ID: &str = "
    SELECT r.id, r.job_id, j.name AS job_name, coalesce(l.published_group, r.published_group, j.group_name) AS job_group, r.kind,
        coalesce(l.state, r.state) AS state, coalesce(l.attempt, r.attempt) AS attempt, coalesce(l.retries, r.retries) AS retries,
        r.fire_at, coalesce(l.due_at, r.due_at) AS due_at, r.shard_index, r.shard_total, r.shard_item,
        coalesce(l.executor, r.executor) AS executor, r.params, r.created_at, coalesce(l.queued_at, r.queued_at) AS queued_at,
        coalesce(l.started_at, r.started_at) AS started_at, r.ended_at, coalesce(l.exit_status, r.exit_status) AS exit_status,
        coalesce(l.message, r.message) AS message, r.output, coalesce(l.progress, r.progress) AS progress,
        coalesce(l.cancel_requested, r.cancel_requested) AS cancel_requested, r.parent
    FROM run r JOIN job j ON j.id = r.job_id LEFT JOIN run_live l ON l.id = r.id
    WHERE r.id = ANY ($1) ORDER BY r.id DESC";

const TIMELINE: &str = "
    SELECT at, attempt::bigint, event, detail FROM run_event WHERE run_id = $1 ORDER BY number";

/// The lowest and the highest id of each day.
pub(crate) const ID_RANGES: &str = "
    SELECT (SELECT min(id) FROM run WHERE id >= e.first AND id < e.past), (SELECT max(id) FROM run WHERE id >= e.first AND id < e.past)
    FROM unnest($1::bigint[], $2::bigint[]) e (first, past)";

macro_rules! of_jobs {
    ($direction:literal) => {
        concat!(
            "SELECT r.id FROM unnest($1::bigint[]) b (block), unnest($2::bigint[]) j (id), run r LEFT JOIN run_live l ON l.id = r.id
            WHERE r.id >> 14 = b.block AND r.job_id = j.id AND r.id BETWEEN $3 AND $4
                AND ($5 OR coalesce(l.state, r.state) = ANY ($6)) AND (NOT $7 OR l.started_at IS NOT NULL OR r.state IS NOT NULL)
            ORDER BY r.id ",
            $direction,
            " LIMIT $8"
        )
    };
}

pub(crate) const OF_JOBS: &str = of_jobs!("DESC");
const OF_JOBS_ASCENDING: &str = of_jobs!("ASC");

/// The ids of the runs of all jobs.
macro_rules! all {
    ($direction:literal) => {
        concat!(
            "SELECT id FROM run WHERE id > $1 AND id < $2 ORDER BY id ",
            $direction,
            " LIMIT $3"
        )
    };
}

pub(crate) const ALL: &str = all!("DESC");
pub(crate) const ALL_ASCENDING: &str = all!("ASC");

const COUNT_JOBS: &str = "SELECT count(*) FROM job_due";

const COUNT_LIVE: &str = "
    SELECT state::bigint, count(*), min(due_at) FILTER (WHERE state = 0) FROM run_live GROUP BY state ORDER BY state";

/// Ids that differ only in this many low bits form one block of the index by job.
pub(crate) const BLOCK_BITS: u32 = 14;

/// The most blocks that one statement searches.
const MAX_BLOCKS: usize = 64;

impl PgStore {
    pub(crate) async fn run(&self, run: RunId) -> Result<RunDetail> {
        run_detail(&mut *self.db.snapshot().await?, run).await
    }

    pub(crate) async fn stats(&self) -> Result<StoreStats> {
        let mut tx = self.db.snapshot().await?;
        let jobs: i64 = sqlx::query_scalar(COUNT_JOBS).fetch_one(&mut *tx).await?;
        let rows: Vec<(i64, i64, Option<i64>)> =
            sqlx::query_as(COUNT_LIVE).fetch_all(&mut *tx).await?;
        let now = self.db.now(&mut tx).await?;
        let oldest = rows.iter().filter_map(|(.., due)| *due).min();
        let live = rows.into_iter().map(|(state, count, _)| (state, count));
        Ok(store_stats(jobs, live, oldest, now)?)
    }
}

/// The lowest and the highest id of each day; days without runs are left out.
pub(crate) async fn id_ranges(
    conn: &mut PgConnection,
    days: BTreeSet<Day>,
) -> Result<Vec<(i64, i64)>> {
    let (firsts, ends): (Vec<i64>, Vec<i64>) = days.into_iter().map(Day::ids).unzip();
    let rows: Vec<(Option<i64>, Option<i64>)> = sqlx::query_as(ID_RANGES)
        .bind(firsts)
        .bind(ends)
        .fetch_all(conn)
        .await?;
    Ok(rows
        .into_iter()
        .filter_map(|(low, high)| Some((low?, high?)))
        .collect())
}

/// Ids of runs of jobs in the order of the search. Searches the first block first, then twice as many blocks with each
/// further statement. After the most blocks without a run of these jobs, it goes on at the next run of any job. A promotion
/// or a restored backup leaves out a billion numbers, which it need not search.
pub(crate) async fn runs_of_jobs(
    conn: &mut PgConnection,
    wanted: &RunsOfJobs<'_>,
) -> Result<FoundRuns> {
    let days = existing_partitions(conn).await?;
    let mut ranges = id_ranges(conn, days).await?;
    let first = wanted.ids.above.saturating_add(1);
    let last = wanted.ids.below.saturating_sub(1);
    ranges.retain(|(low, high)| *low <= last && *high >= first);
    let is_ascending = wanted.order == Order::Ascending;
    let statement = if is_ascending {
        OF_JOBS_ASCENDING
    } else {
        ranges.reverse();
        OF_JOBS
    };
    let blocks = ranges.into_iter().flat_map(|(low, high)| {
        let (low, high) = (low.max(first) >> BLOCK_BITS, high.min(last) >> BLOCK_BITS);
        (0..=high - low).map(move |n| if is_ascending { low + n } else { high - n })
    });
    let mut blocks = blocks.peekable();
    let mut found = FoundRuns::default();
    let (mut step, mut left) = (1, wanted.max_blocks);
    while found.ids.len() < wanted.limit {
        let searched: Vec<i64> = blocks.by_ref().take(step.min(left)).collect();
        if searched.is_empty() {
            break;
        }
        left -= searched.len();
        let (low, high) = id_range(searched.iter().copied());
        let (low, high) = (low << BLOCK_BITS, ((high + 1) << BLOCK_BITS) - 1);
        let ids: Vec<i64> = sqlx::query_scalar(statement)
            .bind(&searched)
            .bind(wanted.jobs)
            .bind(low.max(first))
            .bind(high.min(last))
            .bind(wanted.states.is_empty())
            .bind(column(wanted.states, |state| state_code(*state)))
            .bind(wanted.begun)
            .bind(to_i64(wanted.limit - found.ids.len()))
            .fetch_all(&mut *conn)
            .await?;
        if ids.is_empty() && searched.len() == MAX_BLOCKS {
            let Some(next) = next_run(conn, wanted, low, high).await? else {
                break;
            };
            let next = next >> BLOCK_BITS;
            let is_before = |block: i64| {
                if is_ascending {
                    block < next
                } else {
                    block > next
                }
            };
            while blocks.next_if(|block| is_before(*block)).is_some() {}
        }
        found.ids.extend(ids);
        step = (step * 2).min(MAX_BLOCKS);
        if left == 0 && found.ids.len() < wanted.limit {
            found.searched_to = Some(if is_ascending { high } else { low });
        }
    }
    Ok(found)
}

/// The first run of any job behind ids that were searched, from `low` to `high`.
async fn next_run(
    conn: &mut PgConnection,
    wanted: &RunsOfJobs<'_>,
    low: i64,
    high: i64,
) -> Result<Option<i64>> {
    let (statement, above, below) = match wanted.order {
        Order::Ascending => (ALL_ASCENDING, high, wanted.ids.below),
        Order::Descending => (ALL, wanted.ids.above, low),
    };
    let next = sqlx::query_scalar(statement)
        .bind(above)
        .bind(below)
        .bind(1_i64)
        .fetch_optional(conn)
        .await?;
    Ok(next)
}

/// A run with its timeline, in a snapshot.
pub(crate) async fn run_detail(conn: &mut PgConnection, run: RunId) -> Result<RunDetail> {
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
pub(crate) async fn read_runs(conn: &mut PgConnection, ids: &[i64]) -> Result<Vec<Run>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let rows = sqlx::query(BY_ID).bind(ids).fetch_all(conn).await?;
    rows.iter().map(run).collect()
}

fn run(row: &PgRow) -> Result<Run> {
    let id = |column: &str| row.try_get::<i64, _>(column);
    let number = |column: &str| row.try_get::<i32, _>(column).map(to_u32);
    let time = |column: &str| id(column).map(Timestamp::from_millis);
    let optional = |column: &str| row.try_get::<Option<i64>, _>(column);
    let optional_time = |column: &str| optional(column).map(|at| at.map(Timestamp::from_millis));
    let executor: Option<&str> = row.try_get("executor")?;
    Ok(Run {
        id: RunId(id("id")?),
        job_id: JobId(id("job_id")?),
        job: parse_name(row.try_get("job_name")?)?,
        group: parse_name(row.try_get("job_group")?)?,
        kind: run_kind(row.try_get::<i16, _>("kind")?)?,
        state: run_state(row.try_get::<i16, _>("state")?)?,
        attempt: number("attempt")?,
        retries: number("retries")?,
        fire_at: time("fire_at")?,
        due_at: time("due_at")?,
        shard: Shard {
            index: number("shard_index")?,
            total: number("shard_total")?,
            item: row.try_get("shard_item")?,
        },
        executor: executor.map(parse_name).transpose()?,
        params: row.try_get("params")?,
        created_at: time("created_at")?,
        queued_at: optional_time("queued_at")?,
        started_at: optional_time("started_at")?,
        ended_at: optional_time("ended_at")?,
        exit_status: row.try_get("exit_status")?,
        message: row.try_get("message")?,
        output: row.try_get("output")?,
        progress: row.try_get("progress")?,
        cancel_requested: row.try_get("cancel_requested")?,
        parent: optional("parent")?.map(RunId),
    })
}
