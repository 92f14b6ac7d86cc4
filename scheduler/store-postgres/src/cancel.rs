//! Cancelling runs.

use cueline_model::{ExecutorId, RunId, RunState};
use cueline_store::{CancelOutcome, PendingCancellation, StoreError};
use sqlx::postgres::PgConnection;

use crate::database::{Write, commit};
use crate::error::failed;
use crate::finish::finish;
use crate::rows::{clean, int, name, state};
use crate::{PgStore, follow};

/// It is held: what a cancellation finds out must not be undone by one who gives the run back meanwhile.
const JOB: &str = "SELECT job_id FROM run_live WHERE id = $1";
const READ: &str =
    "SELECT state, job_id, attempt, cancel_requested FROM run_live WHERE id = $1 FOR UPDATE";
const ENDED: &str = "SELECT state FROM run WHERE id = $1";

pub(crate) const END: &str = finish!(
    "",
    delete: "WHERE l.id = $1 AND l.state = 0",
    ends: "15::smallint AS end_state, l.started_at AS began_at, $2::bigint AS end_at, l.exit_status AS status,
        $3::text AS why, NULL::text AS result",
    within: "AND run.id = $1",
    then: "SELECT id FROM done"
);

const ASK: &str = "UPDATE run_live SET cancel_requested = true WHERE id = $1";

const NOTE: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail) VALUES ($1, $2, $3, 'cancel', $4)";

pub(crate) const PENDING: &str = "
    SELECT l.id, coalesce(l.sent_to_group, j.grp), l.executor
    FROM (SELECT id, job_id, sent_to_group, executor FROM run_live
          WHERE cancel_requested AND executor IS NOT NULL ORDER BY id LIMIT $1) l
        JOIN job j ON j.id = l.job_id ORDER BY l.id";

impl PgStore {
    pub(crate) async fn cancel_run(
        &self,
        run: RunId,
        by: &str,
    ) -> Result<CancelOutcome, StoreError> {
        let fail = failed("cancel a run");
        let mut tx = self.db.write().await?;
        let job: Option<i64> = sqlx::query_scalar(JOB)
            .bind(run.0)
            .fetch_optional(&mut *tx)
            .await
            .map_err(&fail)?;
        follow::hold(&mut tx, job.into_iter().collect()).await?;
        let row: Option<(i16, i64, i32, bool)> = sqlx::query_as(READ)
            .bind(run.0)
            .fetch_optional(&mut *tx)
            .await
            .map_err(&fail)?;
        let Some((code, job, attempt, asked)) = row else {
            return ended(&mut tx, run).await;
        };
        if asked {
            return Ok(CancelOutcome::Requested);
        }
        let why = format!("cancelled by {}", clean(by));
        sqlx::query(ASK)
            .bind(run.0)
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        let waits = state(code)? == RunState::Scheduled;
        if waits {
            self.end(&mut tx, run, job, &why).await?;
        }
        let now = tx.now;
        sqlx::query(NOTE)
            .bind(run.0)
            .bind(now.as_millis())
            .bind(attempt)
            .bind(&why)
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        commit(tx).await?;
        Ok(if waits {
            CancelOutcome::Cancelled
        } else {
            CancelOutcome::Requested
        })
    }

    async fn end(
        &self,
        write: &mut Write,
        run: RunId,
        job: i64,
        why: &str,
    ) -> Result<(), StoreError> {
        let now = write.now;
        sqlx::query(END)
            .bind(run.0)
            .bind(now.as_millis())
            .bind(why)
            .execute(&mut **write)
            .await
            .map_err(failed("cancel a run"))?;
        follow::next_after_end(write, &self.definitions, &[(job, now)])
            .await
            .map(drop)
    }

    pub(crate) async fn cancels(
        &self,
        limit: usize,
    ) -> Result<Vec<PendingCancellation>, StoreError> {
        let mut conn = self.db.glance().await?;
        let rows: Vec<(i64, String, String)> = sqlx::query_as(PENDING)
            .bind(int(limit))
            .fetch_all(&mut *conn)
            .await
            .map_err(failed("list pending cancellations"))?;
        rows.into_iter()
            .map(|(run, group, executor)| {
                Ok(PendingCancellation {
                    run: RunId(run),
                    executor: ExecutorId {
                        group: name(&group)?,
                        name: name(&executor)?,
                    },
                })
            })
            .collect()
    }
}

/// The answer for a run that does not live.
async fn ended(conn: &mut PgConnection, run: RunId) -> Result<CancelOutcome, StoreError> {
    let code: Option<Option<i16>> = sqlx::query_scalar(ENDED)
        .bind(run.0)
        .fetch_optional(conn)
        .await
        .map_err(failed("cancel a run"))?;
    match code {
        Some(Some(code)) => Ok(CancelOutcome::AlreadyEnded(state(code)?)),
        _ => Err(StoreError::no_run(run)),
    }
}
