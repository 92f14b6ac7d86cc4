//! Summaries of jobs, for lists.

use cueline_model::JobName;
use cueline_store::adapter::definitions::JobsById;
use cueline_store::adapter::queries::{
    ExcludedJob, JobRow, RunsOfJobs, job_summaries, shown_next_fires,
};
use cueline_store::{JobSummary, StoreError};
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::SqliteStore;
use crate::error::Result;
use crate::run_times::first_since;
use crate::runs::{BLOCK_BITS, id_range, read_runs, runs_of_jobs};

pub(crate) const BY_NAME: &str = "
    SELECT j.id, j.version, d.next_fire_at FROM job j CROSS JOIN job_due d ON d.job_id = j.id
    WHERE j.name = ?1 AND j.deleted_at IS NULL";

const EXCLUDED: &str = "
    SELECT job_id, excluded_from, rules FROM job_due
    WHERE job_id IN (SELECT value FROM json_each(?1)) AND excluded_from IS NOT NULL";

pub(crate) const COUNT_DAY: &str = "
    SELECT r.job_id, r.state, count(*)
    FROM json_each(?1) b CROSS JOIN json_each(?2) j CROSS JOIN run r ON r.id >> 14 = b.value AND r.job_id = j.value
    WHERE r.id >= ?3 GROUP BY r.job_id, r.state ORDER BY r.job_id, r.state";

const DAY_MS: u64 = 24 * 3_600_000;

/// The counts of the last day cover at most the newest 16 million runs of all jobs.
const MAX_BLOCKS: i64 = 1_024;

impl SqliteStore {
    pub(crate) async fn job(&self, name: &JobName) -> Result<JobSummary> {
        let mut tx = self.db.snapshot().await?;
        let rows: Vec<JobRow> = sqlx::query_as(BY_NAME)
            .bind(name.as_str())
            .fetch_all(&mut *tx)
            .await?;
        let summary = self.summaries(&mut tx, &rows).await?.pop();
        Ok(summary.ok_or_else(|| StoreError::no_job(name.as_str()))?)
    }

    /// Summaries of these jobs, in their order.
    pub(crate) async fn summaries(
        &self,
        conn: &mut SqliteConnection,
        rows: &[JobRow],
    ) -> Result<Vec<JobSummary>> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let versions = rows.iter().map(|(id, version, _)| (*id, *version));
        let jobs = self.definitions.get(conn, versions).await?;
        let mut newest = Vec::with_capacity(rows.len());
        for (id, ..) in rows {
            let job = [*id];
            let found = runs_of_jobs(conn, &RunsOfJobs::last_begun(&job)).await?;
            newest.extend(found.ids);
        }
        let last = read_runs(conn, &newest).await?;
        let day = self.count_last_day(conn, rows).await?;
        let rows = self.shown_next_fires(conn, rows, &jobs).await?;
        Ok(job_summaries(&rows, &jobs, last, day)?)
    }

    /// The rows with next fire times that are not excluded.
    async fn shown_next_fires(
        &self,
        conn: &mut SqliteConnection,
        rows: &[JobRow],
        jobs: &JobsById,
    ) -> Result<Vec<JobRow>> {
        let ids: Vec<i64> = rows.iter().map(|(id, ..)| *id).collect();
        let excluded: Vec<ExcludedJob> = sqlx::query_as(EXCLUDED)
            .bind(Json(ids))
            .fetch_all(&mut *conn)
            .await?;
        let needed = excluded.iter().map(|(.., rules)| *rules).max();
        let Some(needed) = needed else {
            return Ok(rows.to_vec());
        };
        let rules = self.rules_at_least(conn, needed).await?;
        Ok(shown_next_fires(rows, jobs, &excluded, &rules))
    }

    /// The runs of the last 24 hours, counted by job and state.
    async fn count_last_day(
        &self,
        conn: &mut SqliteConnection,
        jobs: &[JobRow],
    ) -> Result<Vec<(i64, i64, i64)>> {
        let (lowest, highest) = id_range(conn).await?;
        let since = self.db.now().minus_ms(DAY_MS).as_millis();
        let first = first_since(conn, lowest, highest, since).await?;
        let top = highest >> BLOCK_BITS;
        let bottom = (first >> BLOCK_BITS).max(top - MAX_BLOCKS + 1);
        let ids: Vec<i64> = jobs.iter().map(|(id, ..)| *id).collect();
        Ok(sqlx::query_as(COUNT_DAY)
            .bind(Json((bottom..=top).collect::<Vec<_>>()))
            .bind(Json(ids))
            .bind(first)
            .fetch_all(conn)
            .await?)
    }
}
