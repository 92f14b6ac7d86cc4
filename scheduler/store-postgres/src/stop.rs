//! What happens to the runs of jobs that change, pause or go: those that have not been published yet.

use cueline_model::{JobId, Timestamp};
use cueline_store::StoreError;
use sqlx::postgres::PgConnection;

use crate::error::failed;
use crate::finish::finish;
use crate::rows::numbers;

/// Runs written ahead of their fire time have not happened: their fire times are planned anew.
pub(crate) const WITHDRAW: &str = "
    WITH gone AS (
        DELETE FROM run_live l USING unnest($1::bigint[]) e (id), run r
        WHERE l.job_id = e.id AND l.state = 0 AND l.kind = 0 AND r.id = l.id AND r.fire_at > $2
        RETURNING l.id)
    DELETE FROM run r USING gone g WHERE r.id = g.id";

/// Also of those that nobody has claimed: a claim that is under way has read the old definition, and is waited for here; a later one passes
/// over what is locked.
const UNCLAIM: &str = "
    UPDATE run_live l SET claimed_by = NULL FROM unnest($1::bigint[]) e (id) WHERE l.job_id = e.id AND l.state = 0";

pub(crate) const STOP: &str = finish!(
    "",
    delete: "USING unnest($1::bigint[]) e (id) WHERE l.job_id = e.id AND l.state = 0",
    ends: "CASE WHEN l.attempt = 1 THEN 18 ELSE 15 END::smallint AS end_state, l.started_at AS began_at, $2::bigint AS end_at,
        l.exit_status AS status, $3::text AS why, NULL::text AS result",
    within: "",
    then: "INSERT INTO run_event (run_id, at, attempt, event, detail)
        SELECT id, $2, attempt, CASE WHEN attempt = 1 THEN 'skipped' ELSE 'cancel' END, $3 FROM done"
);

/// Deletes what was written ahead.
pub(crate) async fn withdraw(
    conn: &mut PgConnection,
    jobs: &[JobId],
    now: Timestamp,
) -> Result<(), StoreError> {
    sqlx::query(WITHDRAW)
        .bind(numbers(jobs))
        .bind(now.as_millis())
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("withdraw runs written ahead"))
}

/// Takes the runs that wait from the nodes that have them: they are claimed anew, with the new definition.
pub(crate) async fn unclaim(conn: &mut PgConnection, jobs: &[JobId]) -> Result<(), StoreError> {
    sqlx::query(UNCLAIM)
        .bind(numbers(jobs))
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("release the runs of changed jobs"))
}

/// Withdraws what was written ahead and ends what waits in `scheduled`.
pub(crate) async fn stop(
    conn: &mut PgConnection,
    jobs: &[JobId],
    now: Timestamp,
    why: &str,
) -> Result<(), StoreError> {
    withdraw(conn, jobs, now).await?;
    sqlx::query(STOP)
        .bind(numbers(jobs))
        .bind(now.as_millis())
        .bind(why)
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("end the waiting runs of stopped jobs"))
}
