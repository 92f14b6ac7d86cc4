//! Summaries of jobs, for lists.

use cueline_model::JobName;
use cueline_store::adapter::convert::to_i64;
use cueline_store::adapter::definitions::JobsById;
use cueline_store::adapter::queries::{
    ExcludedJob, JobRow, RunsOfJobs, job_summaries, shown_next_fires,
};
use cueline_store::{JobSummary, StoreError};
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::columns::column;
use crate::error::Result;
use crate::partitions::{DAY_MS, Day, existing_partitions};
use crate::runs::{BLOCK_BITS, id_ranges, read_runs, runs_of_jobs};

pub(crate) const BY_NAME: &str = "
    SELECT j.id, j.version, d.next_fire_at FROM job j JOIN job_due d ON d.job_id = j.id
    WHERE j.name = $1 AND j.deleted_at IS NULL";

const EXCLUDED: &str = "
    SELECT job_id, excluded_from, rules FROM job_due WHERE job_id = ANY ($1::bigint[]) AND excluded_from IS NOT NULL";

pub(crate) const COUNT_DAY: &str = "
    SELECT r.job_id, coalesce(l.state, r.state)::bigint AS state, count(*)
    FROM unnest($1::bigint[]) b (block), unnest($2::bigint[]) j (id), run r LEFT JOIN run_live l ON l.id = r.id
    WHERE r.id >> 14 = b.block AND r.job_id = j.id AND r.id BETWEEN $3 AND $4 AND r.created_at >= $5
    GROUP BY 1, 2 ORDER BY 1, 2";

/// The newest blocks with runs. Each is found by the index, so blocks without runs cost nothing.
pub(crate) const NEWEST_BLOCKS: &str = "
    WITH RECURSIVE newest (block, count) AS (
        SELECT (SELECT max(id) FROM run WHERE id BETWEEN $1 AND $2) >> 14, 1::bigint
        UNION ALL
        SELECT (SELECT max(id) FROM run WHERE id >= $1 AND id < block << 14) >> 14, count + 1
        FROM newest WHERE block IS NOT NULL AND count < $3)
    SELECT block FROM newest WHERE block IS NOT NULL ORDER BY block DESC";

/// The counts of the last day cover at most the newest 16 million runs of all jobs.
const MAX_BLOCKS: usize = 1_024;

impl PgStore {
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
        conn: &mut PgConnection,
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
        conn: &mut PgConnection,
        rows: &[JobRow],
        jobs: &JobsById,
    ) -> Result<Vec<JobRow>> {
        let excluded: Vec<ExcludedJob> = sqlx::query_as(EXCLUDED)
            .bind(column(rows, |(id, ..)| *id))
            .fetch_all(&mut *conn)
            .await?;
        let needed = excluded.iter().map(|(.., rules)| *rules).max();
        let Some(needed) = needed else {
            return Ok(rows.to_vec());
        };
        let rules = self.rules_at_least(conn, needed).await?;
        Ok(shown_next_fires(rows, jobs, &excluded, &rules))
    }

    /// The runs that were created in the last 24 hours, counted by job and state.
    async fn count_last_day(
        &self,
        conn: &mut PgConnection,
        jobs: &[JobRow],
    ) -> Result<Vec<(i64, i64, i64)>> {
        let since = self.db.now(conn).await?.minus_ms(DAY_MS);
        let days = existing_partitions(conn).await?.split_off(&Day::of(since));
        let ranges = id_ranges(conn, days).await?;
        let mut blocks: Vec<i64> = ranges
            .iter()
            .rev()
            .flat_map(|(low, high)| (low >> BLOCK_BITS..=high >> BLOCK_BITS).rev())
            .take(MAX_BLOCKS)
            .collect();
        if blocks.len() == MAX_BLOCKS
            && let (Some((low, _)), Some((_, high))) = (ranges.first(), ranges.last())
        {
            // Perhaps a promotion left out a billion numbers.
            blocks = sqlx::query_scalar(NEWEST_BLOCKS)
                .bind(low)
                .bind(high)
                .bind(to_i64(MAX_BLOCKS))
                .fetch_all(&mut *conn)
                .await?;
        }
        let (Some(high), Some(low)) = (blocks.first(), blocks.last()) else {
            return Ok(Vec::new());
        };
        Ok(sqlx::query_as(COUNT_DAY)
            .bind(&blocks)
            .bind(column(jobs, |(id, ..)| *id))
            .bind(low << BLOCK_BITS)
            .bind(((high + 1) << BLOCK_BITS) - 1)
            .bind(since.as_millis())
            .fetch_all(conn)
            .await?)
    }
}
