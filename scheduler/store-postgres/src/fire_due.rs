//! Fires due jobs: turns them into new runs.

use cueline_model::Timestamp;
use cueline_store::adapter::convert::to_i64;
use cueline_store::adapter::fire_due::{DueJob, PlannedJobs, plan_due_jobs, runs_to_dispatch};
use cueline_store::{FireDueRequest, FiredRuns, Planner};
use sqlx::postgres::PgConnection;

use crate::columns::column;
use crate::error::Result;
use crate::new_runs::FireTimes;
use crate::{PgStore, nodes};

/// Locks the due jobs, and lists them in their order. Skips jobs that another node is firing or a user is changing.
pub(crate) const DUE: &str = "
    WITH due AS MATERIALIZED (
        SELECT job_id, version, next_fire_at, run_count, rules, excluded_from FROM job_due
        WHERE next_fire_at <= $1 ORDER BY next_fire_at, job_id LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED)
    SELECT coalesce(array_agg(job_id), '{}'), coalesce(array_agg(version), '{}'), coalesce(array_agg(next_fire_at), '{}'),
        coalesce(array_agg(run_count), '{}'), coalesce(array_agg(rules), '{}'), coalesce(array_agg(excluded_from), '{}')
    FROM due";

pub(crate) const ADVANCE: &str = "
    UPDATE job_due SET next_fire_at = e.next_fire_at, run_count = e.run_count, excluded_from = e.excluded_from
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) e (job_id, next_fire_at, run_count, excluded_from)
    WHERE job_due.job_id = e.job_id";

impl PgStore {
    pub(crate) async fn fire_due(
        &self,
        request: FireDueRequest,
        planner: &dyn Planner,
    ) -> Result<FiredRuns> {
        match self.try_fire_due(request, planner, FireTimes::New).await {
            // For example of a job whose schedule was changed and changed back. PostgreSQL logs this as an error.
            Err(error) if error.is_unique_violation() => {
                tracing::info!("fire times of due jobs have runs already; they are left out");
                let fire_times = FireTimes::MayBeTaken;
                self.try_fire_due(request, planner, fire_times).await
            }
            fired => fired,
        }
    }

    async fn try_fire_due(
        &self,
        request: FireDueRequest,
        planner: &dyn Planner,
        fire_times: FireTimes,
    ) -> Result<FiredRuns> {
        let mut tx = self.db.write().await?;
        let now = tx.now;
        nodes::require(&mut tx, request.node).await?;
        let due = due_jobs(&mut tx, now.plus_ms(request.horizon_ms), request.limit).await?;
        if due.is_empty() {
            return Ok(FiredRuns::default());
        }
        let versions = due.iter().map(|job| (job.id, job.version));
        let jobs = self.definitions.get_due(&mut tx, versions).await?;
        let needed = due.iter().map(|job| job.rules).max().unwrap_or_default();
        let rules = self.rules_at_least(&mut tx, needed).await?;
        let mut live = self.live_executors(&mut tx, now).await?;
        let PlannedJobs {
            mut runs,
            advances,
            jobs_left,
            skipped_by_quota,
        } = plan_due_jobs(&due, (&jobs, &rules), &mut live, &request, planner, now);
        let planned_jobs = advances.len();
        let left_out = match self.insert_runs(&mut tx, &mut runs, fire_times).await {
            Ok(left_out) => left_out,
            Err(error) => {
                tx.roll_back().await;
                return Err(error);
            }
        };
        sqlx::query(ADVANCE)
            .bind(column(&advances, |job| job.id))
            .bind(column(&advances, |job| {
                job.next_fire_at.map(Timestamp::as_millis)
            }))
            .bind(column(&advances, |job| job.run_count))
            .bind(column(&advances, |job| {
                job.excluded_from.map(Timestamp::as_millis)
            }))
            .execute(&mut *tx)
            .await?;
        self.raise_missed(&mut tx, &runs, &left_out).await?;
        tx.commit().await?;
        Ok(FiredRuns {
            runs: runs_to_dispatch(runs, &left_out),
            due_jobs: planned_jobs,
            limit_reached: jobs_left || due.len() >= request.limit,
            skipped_by_quota,
        })
    }
}

/// The columns of [`DUE`].
type DueColumns = (
    Vec<i64>,
    Vec<i64>,
    Vec<i64>,
    Vec<i64>,
    Vec<i64>,
    Vec<Option<i64>>,
);

/// Locks and reads the jobs that are due until `until`.
async fn due_jobs(conn: &mut PgConnection, until: Timestamp, limit: usize) -> Result<Vec<DueJob>> {
    let (ids, versions, next_fires, run_counts, rules, excluded): DueColumns = sqlx::query_as(DUE)
        .bind(until.as_millis())
        .bind(to_i64(limit))
        .fetch_one(conn)
        .await?;
    let columns = ids.into_iter().zip(versions).zip(next_fires);
    let columns = columns.zip(run_counts).zip(rules).zip(excluded);
    let due = columns.map(
        |(((((id, version), next_fire_at), run_count), rules), excluded_from)| DueJob {
            id,
            version,
            next_fire_at,
            run_count,
            rules,
            excluded_from,
        },
    );
    Ok(due.collect())
}
