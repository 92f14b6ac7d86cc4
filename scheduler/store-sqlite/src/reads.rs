//! Runs, their timelines and logs, for people; and numbers about the whole.

use cueline_model::{RunId, RunState, Shard, Timestamp};
use cueline_store::adapter::log;
use cueline_store::{
    Run, RunDetail, RunFilter, StoreError, StoreStats, StoredLogLine, TimelineEntry,
};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use crate::SqliteStore;
use crate::error::failed;
use crate::rows::{decode, encode, int, kind, name, small, state, unsigned};

pub(crate) const RUNS: &str = "
    SELECT r.*, j.name AS job_name, coalesce(r.sent_to_group, j.grp) AS job_group
    FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value CROSS JOIN job j ON j.id = r.job_id
    ORDER BY r.id DESC";

const TIMELINE: &str =
    "SELECT at, attempt, event, detail FROM run_event WHERE run_id = ?1 ORDER BY id";

const EXISTS: &str = "SELECT count(*) FROM run WHERE id = ?1";

const LOG: &str = "
    SELECT cursor, at, stream, text FROM run_log WHERE run_id = ?1 AND cursor > ?2 ORDER BY cursor LIMIT ?3";

const EVER_NAMED: &str = "SELECT json_group_array(id) FROM job WHERE name = ?1";

const BOUNDS: &str = "SELECT coalesce(min(id), 0), coalesce(max(id), 0) FROM (SELECT min(id) AS id FROM run UNION ALL SELECT max(id) FROM run)";

pub(crate) const OF_JOBS: &str = "
    SELECT json_group_array(id) FROM (
        SELECT r.id FROM json_each(?1) b CROSS JOIN json_each(?2) j CROSS JOIN run r ON r.id >> 14 = b.value AND r.job_id = j.value
        WHERE r.id < ?3 AND (?4 = '[]' OR r.state IN (SELECT value FROM json_each(?4)))
            AND (?5 = 0 OR r.started_at IS NOT NULL OR r.state >= 10)
        ORDER BY r.id DESC LIMIT ?6)";

pub(crate) const ANY: &str = "
    SELECT json_group_array(id) FROM (
        SELECT id FROM run WHERE id < ?1 AND (?2 = '[]' OR state IN (SELECT value FROM json_each(?2))) ORDER BY id DESC LIMIT ?3)";

/// States that few runs are in.
pub(crate) const IN_RARE_STATES: &str = "
    SELECT json_group_array(id) FROM (
        SELECT id FROM run WHERE state > 10 AND state IN (SELECT value FROM json_each(?2)) AND id < ?1
        UNION ALL
        SELECT id FROM run WHERE state < 10 AND state IN (SELECT value FROM json_each(?2)) AND id < ?1
        ORDER BY id DESC LIMIT ?3)";

const JOBS: &str = "SELECT count(*) FROM job_due";
const LIVE: &str = "SELECT state, count(*) FROM run WHERE state < 10 GROUP BY state ORDER BY state";

const OLDEST_DUE: &str = "
    SELECT min(due) FROM (
        SELECT due FROM (SELECT due_at AS due FROM run WHERE claimed_by IS NULL AND state < 2 AND state = 0 ORDER BY due_at LIMIT 1)
        UNION ALL
        SELECT min(due_at) FROM run WHERE state = 0 AND state < 10 AND claimed_by IS NOT NULL)";

/// Ids of runs with the same number above these bits are one stretch of the index by job.
pub(crate) const STRETCH_BITS: u32 = 14;

/// So many stretches are looked through by one statement at the most.
const MOST_STRETCHES: i64 = 64;

/// Which runs of some jobs to look for, newest first.
pub(crate) struct OfJobs<'a> {
    pub(crate) jobs: &'a str,
    pub(crate) states: &'a [RunState],
    pub(crate) before: i64,
    /// Only runs that have started or ended.
    pub(crate) begun: bool,
    pub(crate) limit: usize,
}

impl SqliteStore {
    pub(crate) async fn one_run(&self, run: RunId) -> Result<RunDetail, StoreError> {
        let mut tx = self.db.snapshot().await?;
        let found = read_runs(&mut tx, &[run.0]).await?.pop();
        let found = found.ok_or_else(|| StoreError::no_run(run))?;
        let rows: Vec<(i64, i64, String, String)> = sqlx::query_as(TIMELINE)
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
            let jobs: String = sqlx::query_scalar(EVER_NAMED)
                .bind(job.as_str())
                .fetch_one(&mut *tx)
                .await
                .map_err(&fail)?;
            if jobs == "[]" {
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
        } else {
            let rare = !filter.states.is_empty() && !filter.states.contains(&RunState::Succeeded);
            let text: String = sqlx::query_scalar(if rare { IN_RARE_STATES } else { ANY })
                .bind(before)
                .bind(codes(&filter.states)?)
                .bind(int(filter.limit))
                .fetch_one(&mut *tx)
                .await
                .map_err(&fail)?;
            decode(&text)?
        };
        read_runs(&mut tx, &ids).await
    }

    pub(crate) async fn log_lines(
        &self,
        run: RunId,
        after: i64,
        limit: usize,
    ) -> Result<Vec<StoredLogLine>, StoreError> {
        let fail = failed("read a run's log");
        let mut tx = self.db.snapshot().await?;
        let found: i64 = sqlx::query_scalar(EXISTS)
            .bind(run.0)
            .fetch_one(&mut *tx)
            .await
            .map_err(&fail)?;
        if found == 0 {
            return Err(StoreError::no_run(run));
        }
        let rows: Vec<(i64, i64, String, String)> = sqlx::query_as(LOG)
            .bind(run.0)
            .bind(after)
            .bind(int(limit))
            .fetch_all(&mut *tx)
            .await
            .map_err(&fail)?;
        rows.into_iter()
            .map(|(cursor, at, stream, text)| log::row(cursor, at, &stream, text))
            .collect()
    }

    pub(crate) async fn numbers(&self) -> Result<StoreStats, StoreError> {
        let fail = failed("read the store's numbers");
        let mut tx = self.db.snapshot().await?;
        let jobs: i64 = sqlx::query_scalar(JOBS)
            .fetch_one(&mut *tx)
            .await
            .map_err(&fail)?;
        let rows: Vec<(i64, i64)> = sqlx::query_as(LIVE)
            .fetch_all(&mut *tx)
            .await
            .map_err(&fail)?;
        let oldest: Option<i64> = sqlx::query_scalar(OLDEST_DUE)
            .fetch_one(&mut *tx)
            .await
            .map_err(&fail)?;
        let now = self.db.now();
        let behind = oldest.map(|due| now.since_ms(Timestamp::from_millis(due)));
        Ok(StoreStats {
            jobs: unsigned(jobs),
            live: rows
                .into_iter()
                .map(|(code, count)| Ok((state(code)?, unsigned(count))))
                .collect::<Result<_, StoreError>>()?,
            oldest_due_ms: behind.and_then(|ms| u64::try_from(ms).ok()),
        })
    }
}

pub(crate) fn codes(states: &[RunState]) -> Result<String, StoreError> {
    let codes: Vec<u32> = states.iter().map(|s| u32::from(s.code())).collect();
    encode(&codes)
}

/// The lowest and the highest id of the runs there are.
pub(crate) async fn bounds(conn: &mut SqliteConnection) -> Result<(i64, i64), StoreError> {
    sqlx::query_as(BOUNDS)
        .fetch_one(conn)
        .await
        .map_err(failed("find the newest run"))
}

/// Ids of runs of jobs, newest first. Looks through the newest stretch first, then through more and more at a time.
pub(crate) async fn newest_of_jobs(
    conn: &mut SqliteConnection,
    wanted: &OfJobs<'_>,
) -> Result<Vec<i64>, StoreError> {
    let (lowest, highest) = bounds(conn).await?;
    let states = codes(wanted.states)?;
    let mut top = highest.min(wanted.before.saturating_sub(1)) >> STRETCH_BITS;
    let bottom = lowest >> STRETCH_BITS;
    let mut step = 1;
    let mut ids: Vec<i64> = Vec::new();
    while top >= bottom && ids.len() < wanted.limit {
        let low = (top - step + 1).max(bottom);
        let stretches: Vec<i64> = (low..=top).rev().collect();
        let text: String = sqlx::query_scalar(OF_JOBS)
            .bind(encode(&stretches)?)
            .bind(wanted.jobs)
            .bind(wanted.before)
            .bind(&states)
            .bind(wanted.begun)
            .bind(int(wanted.limit - ids.len()))
            .fetch_one(&mut *conn)
            .await
            .map_err(failed("list the runs of a job"))?;
        ids.extend(decode::<i64>(&text)?);
        top = low - 1;
        step = (step * 2).min(MOST_STRETCHES);
    }
    Ok(ids)
}

/// Whole runs by id, newest first.
pub(crate) async fn read_runs(
    conn: &mut SqliteConnection,
    ids: &[i64],
) -> Result<Vec<Run>, StoreError> {
    let rows = sqlx::query(RUNS)
        .bind(encode(ids)?)
        .fetch_all(conn)
        .await
        .map_err(failed("read runs"))?;
    rows.iter().map(run).collect()
}

fn run(row: &SqliteRow) -> Result<Run, StoreError> {
    let fail = failed("read a run");
    let number = |column: &str| row.try_get::<i64, _>(column).map_err(&fail);
    let optional = |column: &str| row.try_get::<Option<i64>, _>(column).map_err(&fail);
    let text = |column: &str| row.try_get::<Option<String>, _>(column).map_err(&fail);
    let time = |column: &str| Ok::<_, StoreError>(Timestamp::from_millis(number(column)?));
    let maybe_time =
        |column: &str| Ok::<_, StoreError>(optional(column)?.map(Timestamp::from_millis));
    Ok(Run {
        id: RunId(number("id")?),
        job_id: cueline_model::JobId(number("job_id")?),
        job: name(&text("job_name")?.unwrap_or_default())?,
        group: name(&text("job_group")?.unwrap_or_default())?,
        kind: kind(number("kind")?)?,
        state: state(number("state")?)?,
        attempt: small(number("attempt")?),
        retries: small(number("retries")?),
        fire_at: time("fire_at")?,
        due_at: time("due_at")?,
        shard: Shard {
            index: small(number("shard_index")?),
            total: small(number("shard_total")?),
            item: text("shard_item")?,
        },
        executor: text("executor")?.map(|n| name(&n)).transpose()?,
        params: text("params")?,
        created_at: time("created_at")?,
        queued_at: maybe_time("queued_at")?,
        started_at: maybe_time("started_at")?,
        ended_at: maybe_time("ended_at")?,
        exit_status: optional("exit_status")?.and_then(|status| i32::try_from(status).ok()),
        message: text("message")?,
        output: text("output")?,
        progress: row.try_get("progress").map_err(&fail)?,
        cancel_requested: number("cancel_requested")? == 1,
        parent: optional("parent")?.map(RunId),
    })
}
