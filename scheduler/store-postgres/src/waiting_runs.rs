//! The unpublished runs of jobs that are changed, paused or deleted.
//!
//! The jobs are no relation to join with. While most runs are at executors, the planner expects few that wait, and would
//! compare each of them with each job.

use cueline_model::{JobId, Timestamp};
use sqlx::postgres::PgConnection;

use crate::columns::job_ids;
use crate::end_runs::end_runs;
use crate::error::Result;

/// A run that was written ahead of its fire time can be deleted: the new definition plans the fire time again.
pub(crate) const DELETE_AHEAD: &str = "
    WITH gone AS (
        DELETE FROM run_live l USING run r
        WHERE l.job_id = ANY ($1::bigint[]) AND l.state = 0 AND l.kind = 0 AND r.id = l.id AND r.fire_at > $2
        RETURNING l.id)
    DELETE FROM run r USING gone g WHERE r.id = g.id";

/// Locks unclaimed runs too. So it waits for a claim in progress, which has read the old definition. A later claim
/// skips the locked rows.
pub(crate) const UNCLAIM: &str = "
    UPDATE run_live l SET claimed_by = NULL WHERE l.job_id = ANY ($1::bigint[]) AND l.state = 0";

pub(crate) const END: &str = end_runs!(
    "",
    delete: "WHERE l.job_id = ANY ($1::bigint[]) AND l.state = 0 AND l.due_at < $4",
    ends: "CASE WHEN l.attempt = 1 THEN 18 ELSE 15 END::smallint AS end_state, l.started_at AS began_at, $2::bigint AS end_at,
        l.exit_status AS status, $3::text AS reason, NULL::text AS result",
    within: "",
    then: "INSERT INTO run_event (run_id, at, attempt, event, detail)
        SELECT id, $2, attempt, CASE WHEN attempt = 1 THEN 'skipped' ELSE 'cancel' END, $3 FROM done"
);

/// Deletes the runs that were written ahead of their fire time.
pub(crate) async fn delete_ahead(
    conn: &mut PgConnection,
    jobs: &[JobId],
    now: Timestamp,
) -> Result<()> {
    sqlx::query(DELETE_AHEAD)
        .bind(job_ids(jobs))
        .bind(now.as_millis())
        .execute(conn)
        .await?;
    Ok(())
}

/// Releases the waiting runs, so that nodes claim them again with the new definition.
pub(crate) async fn unclaim(conn: &mut PgConnection, jobs: &[JobId]) -> Result<()> {
    sqlx::query(UNCLAIM)
        .bind(job_ids(jobs))
        .execute(conn)
        .await?;
    Ok(())
}

/// Deletes the runs that were written ahead of their fire time, and ends the others.
pub(crate) async fn end(
    conn: &mut PgConnection,
    jobs: &[JobId],
    now: Timestamp,
    message: &str,
) -> Result<()> {
    delete_ahead(conn, jobs, now).await?;
    end_due(conn, jobs, (now, i64::MAX), message).await
}

/// Ends the runs that wait and are due before `until`.
pub(crate) async fn end_due(
    conn: &mut PgConnection,
    jobs: &[JobId],
    (now, until): (Timestamp, i64),
    message: &str,
) -> Result<()> {
    sqlx::query(END)
        .bind(job_ids(jobs))
        .bind(now.as_millis())
        .bind(message)
        .bind(until)
        .execute(conn)
        .await?;
    Ok(())
}
