//! Cancels runs.

use cueline_model::{Actor, RunId, RunState};
use cueline_store::adapter::audit::{run_cancelled, stored_actor};
use cueline_store::adapter::convert::{run_state, to_i64};
use cueline_store::{CancelOutcome, PendingCancellation, StoreError};
use sqlx::postgres::PgConnection;

use crate::end_runs::end_runs;
use crate::error::Result;
use crate::executors::executor_id;
use crate::{PgStore, audit, follow_ups};

const JOB: &str = "SELECT job_id FROM run_live WHERE id = $1";

const JOB_NAME: &str = "SELECT name, group_name FROM job WHERE id = $1";

/// Locks the run, so that a concurrent release cannot change the state that the cancellation decides by.
const READ: &str =
    "SELECT state, job_id, attempt, cancel_requested FROM run_live WHERE id = $1 FOR UPDATE";

const READ_ENDED: &str = "SELECT state FROM run WHERE id = $1 AND state IS NOT NULL";

const REQUEST: &str = "UPDATE run_live SET cancel_requested = true WHERE id = $1";

pub(crate) const END: &str = end_runs!(
    "",
    delete: "WHERE l.id = $1 AND l.state = 0",
    ends: "15::smallint AS end_state, l.started_at AS began_at, $2::bigint AS end_at, l.exit_status AS status,
        $3::text AS reason, NULL::text AS result",
    within: "AND run.id = $1",
    then: "SELECT id FROM done"
);

const INSERT_EVENT: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail) VALUES ($1, $2, $3, 'cancel', $4)";

pub(crate) const PENDING: &str = "
    SELECT l.id, coalesce(l.published_group, j.group_name), l.executor
    FROM (SELECT id, job_id, published_group, executor FROM run_live
          WHERE cancel_requested AND executor IS NOT NULL ORDER BY id LIMIT $1) l
        JOIN job j ON j.id = l.job_id ORDER BY l.id";

impl PgStore {
    pub(crate) async fn cancel_run(&self, run: RunId, by: &Actor) -> Result<CancelOutcome> {
        let mut tx = self.db.write().await?;
        let now = tx.now;
        let job: Option<i64> = sqlx::query_scalar(JOB)
            .bind(run.0)
            .fetch_optional(&mut *tx)
            .await?;
        follow_ups::lock_jobs(&mut tx, job.into_iter().collect()).await?;
        let row: Option<(i16, i64, i32, bool)> = sqlx::query_as(READ)
            .bind(run.0)
            .fetch_optional(&mut *tx)
            .await?;
        let Some((state, job, attempt, requested)) = row else {
            return outcome_of_ended(&mut tx, run).await;
        };
        if requested {
            return Ok(CancelOutcome::Requested);
        }
        let message = format!("cancelled by {}", stored_actor(by));
        sqlx::query(REQUEST).bind(run.0).execute(&mut *tx).await?;
        let state = run_state(state)?;
        let outcome = if state == RunState::Scheduled {
            sqlx::query(END)
                .bind(run.0)
                .bind(now.as_millis())
                .bind(&message)
                .execute(&mut *tx)
                .await?;
            self.schedule_fixed_delays(&mut tx, &[(job, now)]).await?;
            CancelOutcome::Cancelled
        } else {
            CancelOutcome::Requested
        };
        sqlx::query(INSERT_EVENT)
            .bind(run.0)
            .bind(now.as_millis())
            .bind(attempt)
            .bind(&message)
            .execute(&mut *tx)
            .await?;
        let (job, group): (String, String) = sqlx::query_as(JOB_NAME)
            .bind(job)
            .fetch_one(&mut *tx)
            .await?;
        let entry = run_cancelled(by, run, (&job, &group), state)?;
        audit::write(&mut tx, &[entry], now).await?;
        tx.commit().await?;
        Ok(outcome)
    }

    pub(crate) async fn pending_cancellations(
        &self,
        limit: usize,
    ) -> Result<Vec<PendingCancellation>> {
        let mut conn = self.db.autocommit().await?;
        let rows: Vec<(i64, String, String)> = sqlx::query_as(PENDING)
            .bind(to_i64(limit))
            .fetch_all(&mut *conn)
            .await?;
        conn.keep();
        rows.into_iter()
            .map(|(run, group, name)| {
                Ok(PendingCancellation {
                    run: RunId(run),
                    executor: executor_id(&group, &name)?,
                })
            })
            .collect()
    }
}

/// The answer for a run that is not live.
async fn outcome_of_ended(conn: &mut PgConnection, run: RunId) -> Result<CancelOutcome> {
    let state: Option<i16> = sqlx::query_scalar(READ_ENDED)
        .bind(run.0)
        .fetch_optional(conn)
        .await?;
    let state = state.ok_or_else(|| StoreError::no_run(run))?;
    Ok(CancelOutcome::AlreadyEnded(run_state(state)?))
}
