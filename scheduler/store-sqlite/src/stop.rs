//! What becomes of the waiting runs of jobs that are changed or stopped.

use cueline_model::{JobId, Timestamp};
use cueline_store::StoreError;
use sqlx::SqliteConnection;

use crate::error::failed;
use crate::rows::encode;

/// Runs written ahead of their fire time have not happened: their fire times are planned anew.
const WITHDRAW: &str = "
    DELETE FROM run WHERE state = 0 AND state < 10 AND kind = 0 AND fire_at > ?2 AND job_id IN (SELECT value FROM json_each(?1))";

const UNCLAIM: &str = "
    UPDATE run SET claimed_by = NULL
    WHERE state = 0 AND state < 10 AND claimed_by IS NOT NULL AND job_id IN (SELECT value FROM json_each(?1))";

const NOTE_STOPPED: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT id, ?2, attempt, CASE WHEN attempt = 1 THEN 'skipped' ELSE 'cancel' END, ?3
    FROM run WHERE state = 0 AND state < 10 AND job_id IN (SELECT value FROM json_each(?1))";

const STOP: &str = "
    UPDATE run SET state = CASE WHEN attempt = 1 THEN 18 ELSE 15 END, ended_at = ?2, claimed_by = NULL, message = ?3
    WHERE state = 0 AND state < 10 AND job_id IN (SELECT value FROM json_each(?1))";

pub(crate) async fn withdraw(
    conn: &mut SqliteConnection,
    jobs: &[JobId],
    now: Timestamp,
) -> Result<(), StoreError> {
    sqlx::query(WITHDRAW)
        .bind(encode(jobs)?)
        .bind(now.as_millis())
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("withdraw runs written ahead"))
}

pub(crate) async fn unclaim(conn: &mut SqliteConnection, jobs: &[JobId]) -> Result<(), StoreError> {
    sqlx::query(UNCLAIM)
        .bind(encode(jobs)?)
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("release the runs of changed jobs"))
}

/// Withdraws what was written ahead and ends what waits in `scheduled`.
pub(crate) async fn stop(
    conn: &mut SqliteConnection,
    jobs: &[JobId],
    now: Timestamp,
    why: &str,
) -> Result<(), StoreError> {
    let fail = failed("end the waiting runs of stopped jobs");
    withdraw(conn, jobs, now).await?;
    let list = encode(jobs)?;
    for statement in [NOTE_STOPPED, STOP] {
        sqlx::query(statement)
            .bind(&list)
            .bind(now.as_millis())
            .bind(why)
            .execute(&mut *conn)
            .await
            .map_err(&fail)?;
    }
    Ok(())
}
