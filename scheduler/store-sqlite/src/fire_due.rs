//! Fires due jobs: turns them into new runs.

use cueline_model::Timestamp;
use cueline_store::adapter::convert::to_i64;
use cueline_store::adapter::fire_due::{DueJob, PlannedJobs, plan_due_jobs, runs_to_dispatch};
use cueline_store::{FireDueRequest, FiredRuns, Planner};
use sqlx::types::Json;

use crate::error::Result;
use crate::{SqliteStore, new_runs, nodes};

pub(crate) const DUE: &str = "
    SELECT json_group_array(json_array(job_id, version, next_fire_at, run_count, rules, excluded_from))
    FROM (SELECT job_id, version, next_fire_at, run_count, rules, excluded_from FROM job_due
          WHERE next_fire_at <= ?1 ORDER BY next_fire_at, job_id LIMIT ?2 + 0)";

pub(crate) const ADVANCE: &str = "
    UPDATE job_due SET next_fire_at = e.value ->> 1, run_count = e.value ->> 2, excluded_from = e.value ->> 3
    FROM jsonb_each(?1) e WHERE job_id = e.value ->> 0";

impl SqliteStore {
    pub(crate) async fn fire_due(
        &self,
        request: FireDueRequest,
        planner: &dyn Planner,
    ) -> Result<FiredRuns> {
        let mut tx = self.db.write().await?;
        nodes::require(&mut tx, request.node).await?;
        let now = self.db.now();
        let Json(due): Json<Vec<DueJob>> = sqlx::query_scalar(DUE)
            .bind(now.plus_ms(request.horizon_ms).as_millis())
            .bind(to_i64(request.limit))
            .fetch_one(&mut *tx)
            .await?;
        if due.is_empty() {
            return Ok(FiredRuns::default());
        }
        let versions = due.iter().map(|job| (job.id, job.version));
        let jobs = self.definitions.get(&mut tx, versions).await?;
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
        // Runs that are due together are also dispatched, confirmed and ended together. Neighbouring ids let them share
        // pages.
        runs.sort_by_key(|run| run.due_at);
        let left_out = new_runs::insert(&mut tx, &mut runs, now).await?;
        let advances: Vec<(i64, Option<Timestamp>, i64, Option<Timestamp>)> = advances
            .iter()
            .map(|job| (job.id, job.next_fire_at, job.run_count, job.excluded_from))
            .collect();
        sqlx::query(ADVANCE)
            .bind(Json(advances))
            .execute(&mut *tx)
            .await?;
        self.raise_missed(&mut tx, &runs, &left_out, now).await?;
        tx.commit().await?;
        Ok(FiredRuns {
            runs: runs_to_dispatch(runs, &left_out),
            due_jobs: planned_jobs,
            limit_reached: jobs_left || due.len() >= request.limit,
            skipped_by_quota,
        })
    }
}
