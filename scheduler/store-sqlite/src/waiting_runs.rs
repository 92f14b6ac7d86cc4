//! The unpublished runs of jobs that are changed, paused or deleted.

use cueline_model::{JobId, Timestamp};
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::error::Result;

/// A run that was written ahead of its fire time can be deleted: the new definition plans the fire time again.
const DELETE_AHEAD: &str = "
    DELETE FROM run WHERE state = 0 AND state < 10 AND kind = 0 AND fire_at > ?2 AND job_id IN (SELECT value FROM json_each(?1))";

const UNCLAIM: &str = "
    UPDATE run SET claimed_by = NULL
    WHERE state = 0 AND state < 10 AND claimed_by IS NOT NULL AND job_id IN (SELECT value FROM json_each(?1))";

const INSERT_END_EVENTS: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT id, ?2, attempt, CASE WHEN attempt = 1 THEN 'skipped' ELSE 'cancel' END, ?3
    FROM run WHERE state = 0 AND state < 10 AND due_at < ?4 AND job_id IN (SELECT value FROM json_each(?1))";

const END: &str = "
    UPDATE run SET state = CASE WHEN attempt = 1 THEN 18 ELSE 15 END, ended_at = ?2, claimed_by = NULL, message = ?3
    WHERE state = 0 AND state < 10 AND due_at < ?4 AND job_id IN (SELECT value FROM json_each(?1))";

/// Deletes the runs that were written ahead of their fire time.
pub(crate) async fn delete_ahead(
    conn: &mut SqliteConnection,
    jobs: &[JobId],
    now: Timestamp,
) -> Result<()> {
    sqlx::query(DELETE_AHEAD)
        .bind(Json(jobs))
        .bind(now.as_millis())
        .execute(conn)
        .await?;
    Ok(())
}

/// Releases the waiting runs, so that nodes claim them again with the new definition.
pub(crate) async fn unclaim(conn: &mut SqliteConnection, jobs: &[JobId]) -> Result<()> {
    sqlx::query(UNCLAIM).bind(Json(jobs)).execute(conn).await?;
    Ok(())
}

/// Deletes the runs that were written ahead of their fire time, and ends the others.
pub(crate) async fn end(
    conn: &mut SqliteConnection,
    jobs: &[JobId],
    now: Timestamp,
    message: &str,
) -> Result<()> {
    delete_ahead(conn, jobs, now).await?;
    end_due(conn, jobs, (now, i64::MAX), message).await
}

/// Ends the runs that wait and are due before `until`.
pub(crate) async fn end_due(
    conn: &mut SqliteConnection,
    jobs: &[JobId],
    (now, until): (Timestamp, i64),
    message: &str,
) -> Result<()> {
    for statement in [INSERT_END_EVENTS, END] {
        sqlx::query(statement)
            .bind(Json(jobs))
            .bind(now.as_millis())
            .bind(message)
            .bind(until)
            .execute(&mut *conn)
            .await?;
    }
    Ok(())
}
