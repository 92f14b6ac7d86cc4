//! Cancelling runs.

use cueline_model::{ExecutorId, ExecutorName, GroupName, RunId, RunState};
use cueline_store::{CancelOutcome, PendingCancellation, StoreError};
use serde::Deserialize;

use crate::database::commit;
use crate::error::failed;
use crate::rows::{clean, decode, int, state};
use crate::{SqliteStore, follow};

const READ: &str = "SELECT state, job_id, attempt, cancel_requested FROM run WHERE id = ?1";

const END: &str = "
    UPDATE run SET state = 15, ended_at = ?2, claimed_by = NULL, cancel_requested = 1, message = ?3
    WHERE id = ?1 AND state = 0";

const ASK: &str = "UPDATE run SET cancel_requested = 1 WHERE id = ?1 AND state IN (1, 2, 3)";

const NOTE: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail) VALUES (?1, ?2, ?3, ?4, ?5)";

pub(crate) const PENDING: &str = "
    SELECT json_group_array(json_array(r.id, coalesce(r.sent_to_group, j.grp), r.executor))
    FROM (SELECT id, job_id, sent_to_group, executor FROM run
          WHERE cancel_requested = 1 AND state < 10 AND executor IS NOT NULL ORDER BY id LIMIT ?1) r
        CROSS JOIN job j ON j.id = r.job_id";

#[derive(Deserialize)]
struct Row(RunId, GroupName, ExecutorName);

impl SqliteStore {
    pub(crate) async fn cancel_run(
        &self,
        run: RunId,
        by: &str,
    ) -> Result<CancelOutcome, StoreError> {
        let fail = failed("cancel a run");
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let row: Option<(i64, i64, i64, i64)> = sqlx::query_as(READ)
            .bind(run.0)
            .fetch_optional(&mut *tx)
            .await
            .map_err(&fail)?;
        let (code, job, attempt, asked) = row.ok_or_else(|| StoreError::no_run(run))?;
        let present = state(code)?;
        if present.is_terminal() {
            return Ok(CancelOutcome::AlreadyEnded(present));
        }
        if asked == 1 {
            return Ok(CancelOutcome::Requested);
        }
        let why = format!("cancelled by {}", clean(by));
        let done = if present == RunState::Scheduled {
            sqlx::query(END)
                .bind(run.0)
                .bind(now.as_millis())
                .bind(&why)
                .execute(&mut *tx)
                .await
                .map_err(&fail)?;
            follow::next_after_end(&mut tx, &self.definitions, &[(job, now)]).await?;
            CancelOutcome::Cancelled
        } else {
            sqlx::query(ASK)
                .bind(run.0)
                .execute(&mut *tx)
                .await
                .map_err(&fail)?;
            CancelOutcome::Requested
        };
        sqlx::query(NOTE)
            .bind(run.0)
            .bind(now.as_millis())
            .bind(attempt)
            .bind("cancel")
            .bind(&why)
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        commit(tx).await?;
        Ok(done)
    }

    pub(crate) async fn cancels(
        &self,
        limit: usize,
    ) -> Result<Vec<PendingCancellation>, StoreError> {
        let mut conn = self.db.read().await?;
        let text: String = sqlx::query_scalar(PENDING)
            .bind(int(limit))
            .fetch_one(&mut *conn)
            .await
            .map_err(failed("list pending cancellations"))?;
        let rows: Vec<Row> = decode(&text)?;
        Ok(rows
            .into_iter()
            .map(|Row(run, group, name)| PendingCancellation {
                run,
                executor: ExecutorId { group, name },
            })
            .collect())
    }
}
