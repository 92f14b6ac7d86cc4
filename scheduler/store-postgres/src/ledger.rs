//! The ledger lists the expected fire times of a past window, each with the run that accounts for it.

use cueline_model::{JobName, RunId, Timestamp};
use cueline_store::adapter::convert::to_i64;
use cueline_store::adapter::definitions::job_of;
use cueline_store::adapter::jobs::is_fixed_delay;
use cueline_store::adapter::ledger::{
    LedgerRun, SkippedRange, WithoutRun, excluded_range, expected_fire_times, ledger_entries,
    past_window,
};
use cueline_store::adapter::queries::RunsOfJobs;
use cueline_store::{LedgerEntry, StoreError};
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::columns::{column, id_range};
use crate::error::Result;
use crate::partitions::Day;
use crate::runs::runs_of_jobs;

const JOB: &str = "
    SELECT j.id, j.version, j.created_at, d.excluded_from, d.next_fire_at,
        (SELECT max(p.fire_at) FROM pruned_until p WHERE p.job_id IN (0, j.id))
    FROM job j JOIN job_due d ON d.job_id = j.id
    WHERE j.name = $1 AND j.deleted_at IS NULL";

/// A run that was planned more than a month after its fire time has a later day. $4 is the end of the last possible
/// day.
pub(crate) const RUNS_AT: &str = "
    SELECT r.fire_at, r.id, r.shard_index, coalesce(l.state, r.state)
    FROM unnest($1::bigint[]) e (key)
        JOIN run r ON r.fire_key = e.key AND r.job_id = $2 AND r.kind = 0 AND r.id >= $3 AND r.id < $4
        LEFT JOIN run_live l ON l.id = r.id
    ORDER BY r.fire_at, r.shard_index";

/// Skipped runs that account for fire times between $2 and $3.
const SKIPPED: &str = "
    SELECT skipped_since, fire_at, id FROM run
    WHERE job_id = $1 AND skipped_since IS NOT NULL AND fire_at >= $2 AND skipped_since <= $3
    ORDER BY fire_at LIMIT $4";

const RUNS_BY_ID: &str = "
    SELECT r.fire_at, r.id, r.shard_index, coalesce(l.state, r.state)
    FROM unnest($1::bigint[]) e (key) JOIN run r ON r.id = e.key AND r.id BETWEEN $2 AND $3 LEFT JOIN run_live l ON l.id = r.id
    WHERE r.kind = 0 AND r.fire_at >= $4 AND r.fire_at < $5 ORDER BY r.fire_at, r.shard_index";

/// For a `fixed_delay` job, the search covers this many of its newest runs.
const MAX_SEARCHED: usize = 100_000;

/// The columns of [`JOB`].
type JobRow = (i64, i64, i64, Option<i64>, Option<i64>, Option<i64>);

impl PgStore {
    pub(crate) async fn ledger(
        &self,
        name: &JobName,
        from: Timestamp,
        to: Timestamp,
        limit: usize,
    ) -> Result<Vec<LedgerEntry>> {
        let mut tx = self.db.snapshot().await?;
        let row: Option<JobRow> = sqlx::query_as(JOB)
            .bind(name.as_str())
            .fetch_optional(&mut *tx)
            .await?;
        let (id, version, created_at, excluded_from, next_fire_at, pruned_until) =
            row.ok_or_else(|| StoreError::no_job(name.as_str()))?;
        let jobs = self.definitions.get(&mut tx, [(id, version)]).await?;
        let job = job_of(&jobs, id)?;
        let now = self.db.now(&mut tx).await?;
        let (from, to) = past_window(created_at, from, to, now);
        if is_fixed_delay(&job.spec) {
            return fixed_delay_entries(&mut tx, id, from, to, limit).await;
        }
        let times = expected_fire_times(&job.spec, from, to, limit);
        let (Some(&first), Some(&last)) = (times.first(), times.last()) else {
            return Ok(Vec::new());
        };
        let runs: Vec<LedgerRow> = sqlx::query_as(RUNS_AT)
            .bind(column(&times, |at| at.as_millis()))
            .bind(id)
            .bind(Day::of(first).ids().0)
            .bind(last_day(first, last, now).ids().1)
            .fetch_all(&mut *tx)
            .await?;
        let skipped: Vec<(i64, i64, i64)> = sqlx::query_as(SKIPPED)
            .bind(id)
            .bind(first.as_millis())
            .bind(last.as_millis())
            .bind(to_i64(limit))
            .fetch_all(&mut *tx)
            .await?;
        let runs: Vec<LedgerRun> = runs.into_iter().map(ledger_run).collect();
        let skipped: Vec<SkippedRange> = skipped.into_iter().map(SkippedRange::from).collect();
        Ok(ledger_entries(
            &times,
            &runs,
            &skipped,
            WithoutRun {
                excluded: excluded_range(excluded_from, next_fire_at),
                pruned_until,
            },
            limit,
        )?)
    }
}

type LedgerRow = (i64, i64, i32, i16);

fn ledger_run((fire_at, run, shard_index, state): LedgerRow) -> LedgerRun {
    LedgerRun {
        fire_at: Timestamp::from_millis(fire_at),
        run: RunId(run),
        shard_index: i64::from(shard_index),
        state: i64::from(state),
    }
}

/// The last day that can hold runs of these fire times. Fire times older than a month may have been planned on any
/// later day.
fn last_day(first: Timestamp, last: Timestamp, now: Timestamp) -> Day {
    if Day::of_fire(first, now) == Day::of(first) {
        Day::of(last)
    } else {
        Day::of(now)
    }
}

/// The fire times of a `fixed_delay` job follow from its runs, so each run is an entry and nothing can be missing.
async fn fixed_delay_entries(
    conn: &mut PgConnection,
    job: i64,
    from: Timestamp,
    to: Timestamp,
    limit: usize,
) -> Result<Vec<LedgerEntry>> {
    let ids = runs_of_jobs(conn, &RunsOfJobs::newest(&[job], MAX_SEARCHED))
        .await?
        .ids;
    let (low, high) = id_range(ids.iter().copied());
    let rows: Vec<LedgerRow> = sqlx::query_as(RUNS_BY_ID)
        .bind(ids)
        .bind(low)
        .bind(high)
        .bind(from.as_millis())
        .bind(to.as_millis())
        .fetch_all(conn)
        .await?;
    let entries = rows.into_iter().take(limit);
    entries.map(|row| Ok(ledger_run(row).entry()?)).collect()
}
