//! The ledger lists the expected fire times of a past window, each with the run that accounts for it.

use cueline_model::{JobName, Timestamp};
use cueline_store::adapter::convert::to_i64;
use cueline_store::adapter::definitions::job_of;
use cueline_store::adapter::jobs::is_fixed_delay;
use cueline_store::adapter::ledger::{
    LedgerRun, SkippedRange, WithoutRun, excluded_range, expected_fire_times, ledger_entries,
    past_window,
};
use cueline_store::adapter::queries::RunsOfJobs;
use cueline_store::{LedgerEntry, StoreError};
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::SqliteStore;
use crate::error::Result;
use crate::runs::runs_of_jobs;

const JOB: &str = "
    SELECT j.id, j.version, j.created_at, d.excluded_from, d.next_fire_at,
        (SELECT max(p.fire_at) FROM pruned_until p WHERE p.job_id IN (0, j.id))
    FROM job j CROSS JOIN job_due d ON d.job_id = j.id
    WHERE j.name = ?1 AND j.deleted_at IS NULL";

pub(crate) const RUNS_AT: &str = "
    SELECT json_group_array(json_array(fire_at, id, shard_index, state)) FROM (
        SELECT r.fire_at, r.id, r.shard_index, r.state
        FROM json_each(?1) e CROSS JOIN run r ON r.fire_key = e.value AND r.job_id = ?2 AND r.kind = 0
        ORDER BY r.fire_at, r.shard_index)";

/// Skipped runs that account for fire times between ?2 and ?3.
pub(crate) const SKIPPED: &str = "
    SELECT json_group_array(json_array(skipped_since, fire_at, id))
    FROM (SELECT skipped_since, fire_at, id FROM run
          WHERE job_id = ?1 AND skipped_since IS NOT NULL AND fire_at >= ?2 AND skipped_since <= ?3
          ORDER BY fire_at LIMIT ?4)";

const RUNS_BY_ID: &str = "
    SELECT json_group_array(json_array(fire_at, id, shard_index, state)) FROM (
        SELECT r.fire_at, r.id, r.shard_index, r.state
        FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value WHERE r.kind = 0 AND r.fire_at >= ?2 AND r.fire_at < ?3
        ORDER BY r.fire_at, r.shard_index)";

/// For a `fixed_delay` job, the search covers this many of its newest runs.
const MAX_SEARCHED: usize = 100_000;

/// The columns of [`JOB`].
type JobRow = (i64, i64, i64, Option<i64>, Option<i64>, Option<i64>);

impl SqliteStore {
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
        let (from, to) = past_window(created_at, from, to, self.db.now());
        if is_fixed_delay(&job.spec) {
            return fixed_delay_entries(&mut tx, id, from, to, limit).await;
        }
        let times = expected_fire_times(&job.spec, from, to, limit);
        let (Some(first), Some(last)) = (times.first(), times.last()) else {
            return Ok(Vec::new());
        };
        let Json(runs): Json<Vec<LedgerRun>> = sqlx::query_scalar(RUNS_AT)
            .bind(Json(&times))
            .bind(id)
            .fetch_one(&mut *tx)
            .await?;
        let Json(skipped): Json<Vec<SkippedRange>> = sqlx::query_scalar(SKIPPED)
            .bind(id)
            .bind(first.as_millis())
            .bind(last.as_millis())
            .bind(to_i64(limit))
            .fetch_one(&mut *tx)
            .await?;
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

/// The fire times of a `fixed_delay` job follow from its runs, so each run is an entry and nothing can be missing.
async fn fixed_delay_entries(
    conn: &mut SqliteConnection,
    job: i64,
    from: Timestamp,
    to: Timestamp,
    limit: usize,
) -> Result<Vec<LedgerEntry>> {
    let ids = runs_of_jobs(conn, &RunsOfJobs::newest(&[job], MAX_SEARCHED))
        .await?
        .ids;
    let Json(runs): Json<Vec<LedgerRun>> = sqlx::query_scalar(RUNS_BY_ID)
        .bind(Json(ids))
        .bind(from.as_millis())
        .bind(to.as_millis())
        .fetch_one(conn)
        .await?;
    let entries = runs.iter().take(limit).map(|run| Ok(run.entry()?));
    entries.collect()
}
