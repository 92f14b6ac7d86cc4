//! Runs and their timelines, for people; and numbers about the whole.
//!
//! A run is its row in `run`, under what `run_live` says of it while it lives.

use std::collections::BTreeSet;

use cueline_model::{JobId, RunId, RunState, Shard, Timestamp};
use cueline_store::{Run, RunDetail, RunFilter, StoreError, StoreStats, TimelineEntry};
use sqlx::FromRow;
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::days::{Day, existing};
use crate::error::failed;
use crate::rows::{bounds, code, int, kind, name, small, state, unsigned};

pub(crate) const RUNS: &str = "
    SELECT r.id, r.job_id, j.name AS job_name, coalesce(l.sent_to_group, r.sent_to_group, j.grp) AS job_group, r.kind,
        coalesce(l.state, r.state) AS state, coalesce(l.attempt, r.attempt) AS attempt, coalesce(l.retries, r.retries) AS retries,
        r.fire_at, coalesce(l.due_at, r.due_at) AS due_at, r.shard_index, r.shard_total, r.shard_item,
        coalesce(l.executor, r.executor) AS executor, r.params, r.created_at, coalesce(l.queued_at, r.queued_at) AS queued_at,
        coalesce(l.started_at, r.started_at) AS started_at, r.ended_at, coalesce(l.exit_status, r.exit_status) AS exit_status,
        coalesce(l.message, r.message) AS message, r.output, coalesce(l.progress, r.progress) AS progress,
        coalesce(l.cancel_requested, r.cancel_requested) AS cancel_requested, r.parent
    FROM run r JOIN job j ON j.id = r.job_id LEFT JOIN run_live l ON l.id = r.id
    WHERE r.id = ANY ($1) ORDER BY r.id DESC";

const TIMELINE: &str =
    "SELECT at, attempt, event, detail FROM run_event WHERE run_id = $1 ORDER BY number";

const EVER_NAMED: &str = "SELECT id FROM job WHERE name = $1";

/// The lowest and the highest id of each day.
pub(crate) const BOUNDS: &str = "
    SELECT (SELECT min(id) FROM run WHERE id >= e.first AND id < e.past), (SELECT max(id) FROM run WHERE id >= e.first AND id < e.past)
    FROM unnest($1::bigint[], $2::bigint[]) e (first, past)";

pub(crate) const OF_JOBS: &str = "
    SELECT r.id FROM unnest($1::bigint[]) b (stretch), unnest($2::bigint[]) j (id), run r LEFT JOIN run_live l ON l.id = r.id
    WHERE r.id >> 14 = b.stretch AND r.job_id = j.id AND r.id BETWEEN $3 AND $4
        AND ($5 OR coalesce(l.state, r.state) = ANY ($6)) AND (NOT $7 OR l.started_at IS NOT NULL OR r.state IS NOT NULL)
    ORDER BY r.id DESC LIMIT $8";

pub(crate) const ANY: &str = "SELECT id FROM run WHERE id < $1 ORDER BY id DESC LIMIT $2";

pub(crate) const IN_STATES: &str = "
    SELECT r.id FROM run r LEFT JOIN run_live l ON l.id = r.id
    WHERE r.id < $1 AND coalesce(l.state, r.state) = ANY ($2) ORDER BY r.id DESC LIMIT $3";

/// States that few runs are in.
pub(crate) const IN_RARE_STATES: &str = "
    SELECT id FROM (
        (SELECT r.id FROM unnest($2::smallint[]) s (code), LATERAL (
            SELECT id FROM run WHERE mishap = s.code AND mishap IS NOT NULL AND id < $1 ORDER BY id DESC LIMIT $3) r)
        UNION ALL
        (SELECT id FROM run_live WHERE state = ANY ($2) AND id < $1 ORDER BY id DESC LIMIT $3)) found
    ORDER BY id DESC LIMIT $3";

const JOBS: &str = "SELECT count(*) FROM job_due";

const LIVE: &str = "
    SELECT state, count(*), min(due_at) FILTER (WHERE state = 0) FROM run_live GROUP BY state ORDER BY state";

/// Ids of runs with the same number above these bits are one stretch of the index by job.
pub(crate) const STRETCH_BITS: u32 = 14;

/// So many stretches are looked through by one statement at the most.
const MOST_STRETCHES: usize = 64;

/// Which runs of some jobs to look for, newest first.
pub(crate) struct OfJobs<'a> {
    pub(crate) jobs: &'a [i64],
    pub(crate) states: &'a [RunState],
    pub(crate) before: i64,
    /// Only runs that have started or ended.
    pub(crate) begun: bool,
    pub(crate) limit: usize,
}

#[derive(FromRow)]
struct Row {
    id: i64,
    job_id: i64,
    job_name: String,
    job_group: String,
    kind: i16,
    state: i16,
    attempt: i32,
    retries: i32,
    fire_at: i64,
    due_at: i64,
    shard_index: i32,
    shard_total: i32,
    shard_item: Option<String>,
    executor: Option<String>,
    params: Option<String>,
    created_at: i64,
    queued_at: Option<i64>,
    started_at: Option<i64>,
    ended_at: Option<i64>,
    exit_status: Option<i32>,
    message: Option<String>,
    output: Option<String>,
    progress: Option<f64>,
    cancel_requested: bool,
    parent: Option<i64>,
}

impl PgStore {
    pub(crate) async fn one_run(&self, run: RunId) -> Result<RunDetail, StoreError> {
        let mut tx = self.db.snapshot().await?;
        let found = read_runs(&mut tx, &[run.0]).await?.pop();
        let found = found.ok_or_else(|| StoreError::no_run(run))?;
        let rows: Vec<(i64, i32, String, String)> = sqlx::query_as(TIMELINE)
            .bind(run.0)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed("read a run's timeline"))?;
        let timeline = rows
            .into_iter()
            .map(|(at, attempt, event, detail)| TimelineEntry {
                at: Timestamp::from_millis(at),
                attempt: small(attempt),
                event,
                detail,
            })
            .collect();
        Ok(RunDetail {
            run: found,
            timeline,
        })
    }

    pub(crate) async fn list_runs(&self, filter: &RunFilter) -> Result<Vec<Run>, StoreError> {
        let fail = failed("list runs");
        let mut tx = self.db.snapshot().await?;
        let before = filter.before.map_or(i64::MAX, |run| run.0);
        let ids = if let Some(job) = &filter.job {
            let jobs: Vec<i64> = sqlx::query_scalar(EVER_NAMED)
                .bind(job.as_str())
                .fetch_all(&mut *tx)
                .await
                .map_err(&fail)?;
            if jobs.is_empty() {
                return Err(StoreError::no_job(job.as_str()));
            }
            let wanted = OfJobs {
                jobs: &jobs,
                states: &filter.states,
                before,
                begun: false,
                limit: filter.limit,
            };
            newest_of_jobs(&mut tx, &wanted).await?
        } else if filter.states.is_empty() {
            sqlx::query_scalar(ANY)
                .bind(before)
                .bind(int(filter.limit))
                .fetch_all(&mut *tx)
                .await
                .map_err(&fail)?
        } else {
            let rare = !filter.states.contains(&RunState::Succeeded);
            sqlx::query_scalar(if rare { IN_RARE_STATES } else { IN_STATES })
                .bind(before)
                .bind(codes(&filter.states))
                .bind(int(filter.limit))
                .fetch_all(&mut *tx)
                .await
                .map_err(&fail)?
        };
        read_runs(&mut tx, &ids).await
    }

    pub(crate) async fn numbers(&self) -> Result<StoreStats, StoreError> {
        let fail = failed("read the store's numbers");
        let mut tx = self.db.snapshot().await?;
        let jobs: i64 = sqlx::query_scalar(JOBS)
            .fetch_one(&mut *tx)
            .await
            .map_err(&fail)?;
        let rows: Vec<(i16, i64, Option<i64>)> = sqlx::query_as(LIVE)
            .fetch_all(&mut *tx)
            .await
            .map_err(&fail)?;
        let now = self.db.now(&mut tx).await?;
        let oldest = rows.iter().filter_map(|(.., due)| *due).min();
        let behind = oldest.map(|due| now.since_ms(Timestamp::from_millis(due)));
        Ok(StoreStats {
            jobs: unsigned(jobs),
            live: rows
                .into_iter()
                .map(|(code, count, _)| Ok((state(code)?, unsigned(count))))
                .collect::<Result<_, StoreError>>()?,
            oldest_due_ms: behind.and_then(|ms| u64::try_from(ms).ok()),
        })
    }
}

pub(crate) fn codes(states: &[RunState]) -> Vec<i16> {
    states.iter().map(|s| code(*s)).collect()
}

/// The lowest and the highest id of each of the days, those without runs left out.
pub(crate) async fn ids_of_days(
    conn: &mut PgConnection,
    days: BTreeSet<Day>,
) -> Result<Vec<(i64, i64)>, StoreError> {
    let (firsts, ends): (Vec<i64>, Vec<i64>) = days.into_iter().map(Day::ids).unzip();
    let rows: Vec<(Option<i64>, Option<i64>)> = sqlx::query_as(BOUNDS)
        .bind(firsts)
        .bind(ends)
        .fetch_all(conn)
        .await
        .map_err(failed("find the newest run"))?;
    Ok(rows
        .into_iter()
        .filter_map(|(low, high)| Some((low?, high?)))
        .collect())
}

/// Ids of runs of jobs, newest first. Looks through the newest stretch first, then through more and more at a time.
pub(crate) async fn newest_of_jobs(
    conn: &mut PgConnection,
    wanted: &OfJobs<'_>,
) -> Result<Vec<i64>, StoreError> {
    let days = existing(conn).await?;
    let days = ids_of_days(conn, days).await?;
    let last = wanted.before.saturating_sub(1);
    let mut stretches = days
        .into_iter()
        .rev()
        .filter(|(low, _)| *low <= last)
        .flat_map(|(low, high)| (low >> STRETCH_BITS..=high.min(last) >> STRETCH_BITS).rev());
    let mut step = 1;
    let mut ids: Vec<i64> = Vec::new();
    while ids.len() < wanted.limit {
        let some: Vec<i64> = stretches.by_ref().take(step).collect();
        if some.is_empty() {
            break;
        }
        let (low, high) = bounds(some.iter().copied());
        let found: Vec<i64> = sqlx::query_scalar(OF_JOBS)
            .bind(&some)
            .bind(wanted.jobs)
            .bind(low << STRETCH_BITS)
            .bind(last.min(((high + 1) << STRETCH_BITS) - 1))
            .bind(wanted.states.is_empty())
            .bind(codes(wanted.states))
            .bind(wanted.begun)
            .bind(int(wanted.limit - ids.len()))
            .fetch_all(&mut *conn)
            .await
            .map_err(failed("list the runs of a job"))?;
        ids.extend(found);
        step = (step * 2).min(MOST_STRETCHES);
    }
    Ok(ids)
}

/// Whole runs by id, newest first.
pub(crate) async fn read_runs(
    conn: &mut PgConnection,
    ids: &[i64],
) -> Result<Vec<Run>, StoreError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let rows: Vec<Row> = sqlx::query_as(RUNS)
        .bind(ids)
        .fetch_all(conn)
        .await
        .map_err(failed("read runs"))?;
    rows.into_iter().map(run).collect()
}

fn run(row: Row) -> Result<Run, StoreError> {
    let time = Timestamp::from_millis;
    Ok(Run {
        id: RunId(row.id),
        job_id: JobId(row.job_id),
        job: name(&row.job_name)?,
        group: name(&row.job_group)?,
        kind: kind(row.kind)?,
        state: state(row.state)?,
        attempt: small(row.attempt),
        retries: small(row.retries),
        fire_at: time(row.fire_at),
        due_at: time(row.due_at),
        shard: Shard {
            index: small(row.shard_index),
            total: small(row.shard_total),
            item: row.shard_item,
        },
        executor: row.executor.as_deref().map(name).transpose()?,
        params: row.params,
        created_at: time(row.created_at),
        queued_at: row.queued_at.map(time),
        started_at: row.started_at.map(time),
        ended_at: row.ended_at.map(time),
        exit_status: row.exit_status,
        message: row.message,
        output: row.output,
        progress: row.progress,
        cancel_requested: row.cancel_requested,
        parent: row.parent.map(RunId),
    })
}
