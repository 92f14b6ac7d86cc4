//! Cancels runs.

use cueline_model::{Actor, ExecutorId, ExecutorName, GroupName, RunId, RunState};
use cueline_store::adapter::audit::{run_cancelled, stored_actor};
use cueline_store::adapter::convert::{run_state, to_i64};
use cueline_store::{CancelOutcome, PendingCancellation, StoreError};
use sqlx::types::Json;

use crate::error::Result;
use crate::{SqliteStore, audit};

const READ: &str = "SELECT state, job_id, attempt, cancel_requested FROM run WHERE id = ?1";

const JOB: &str = "SELECT name, group_name FROM job WHERE id = ?1";

const END: &str = "
    UPDATE run SET state = 15, ended_at = ?2, claimed_by = NULL, cancel_requested = 1, message = ?3
    WHERE id = ?1 AND state = 0";

const REQUEST: &str = "UPDATE run SET cancel_requested = 1 WHERE id = ?1 AND state IN (1, 2, 3)";

const INSERT_EVENT: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail) VALUES (?1, ?2, ?3, 'cancel', ?4)";

pub(crate) const PENDING: &str = "
    SELECT json_group_array(json_array(r.id, coalesce(r.published_group, j.group_name), r.executor))
    FROM (SELECT id, job_id, published_group, executor FROM run
          WHERE cancel_requested = 1 AND ended_at IS NULL AND executor IS NOT NULL ORDER BY id LIMIT ?1 + 0) r
        CROSS JOIN job j ON j.id = r.job_id";

impl SqliteStore {
    pub(crate) async fn cancel_run(&self, run: RunId, by: &Actor) -> Result<CancelOutcome> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let row: Option<(i64, i64, i64, bool)> = sqlx::query_as(READ)
            .bind(run.0)
            .fetch_optional(&mut *tx)
            .await?;
        let (state, job, attempt, requested) = row.ok_or_else(|| StoreError::no_run(run))?;
        let state = run_state(state)?;
        if state.is_terminal() {
            return Ok(CancelOutcome::AlreadyEnded(state));
        }
        if requested {
            return Ok(CancelOutcome::Requested);
        }
        let message = format!("cancelled by {}", stored_actor(by));
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
            sqlx::query(REQUEST).bind(run.0).execute(&mut *tx).await?;
            CancelOutcome::Requested
        };
        sqlx::query(INSERT_EVENT)
            .bind(run.0)
            .bind(now.as_millis())
            .bind(attempt)
            .bind(&message)
            .execute(&mut *tx)
            .await?;
        let (job, group): (String, String) =
            sqlx::query_as(JOB).bind(job).fetch_one(&mut *tx).await?;
        let entry = run_cancelled(by, run, (&job, &group), state)?;
        audit::write(&mut tx, &[entry], now).await?;
        tx.commit().await?;
        Ok(outcome)
    }

    pub(crate) async fn pending_cancellations(
        &self,
        limit: usize,
    ) -> Result<Vec<PendingCancellation>> {
        let Json(rows): Json<Vec<(RunId, GroupName, ExecutorName)>> = sqlx::query_scalar(PENDING)
            .bind(to_i64(limit))
            .fetch_one(&mut *self.db.read().await?)
            .await?;
        Ok(rows
            .into_iter()
            .map(|(run, group, name)| PendingCancellation {
                run,
                executor: ExecutorId { group, name },
            })
            .collect())
    }
}
