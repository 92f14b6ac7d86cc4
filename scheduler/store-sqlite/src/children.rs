//! Starts the jobs that run after others, in the transaction that ends the runs of those.

use cueline_model::Timestamp;
use cueline_store::adapter::child_starts::{
    ChildJob, ChildStarts, EndedFire, FoundFire, OUTPUTS_AT_ONCE, OutputRow, ParentRow, parent_jobs,
};
use cueline_store::adapter::report_batch::BatchWrites;
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::error::Result;
use crate::{SqliteStore, new_runs};

/// The code of the `FireState` of these runs: the greatest contribution of a shard.
macro_rules! fire_state {
    () => {
        "max(CASE WHEN r.state < 10 THEN 4 WHEN r.cancel_requested = 1 OR r.state > 14 THEN 3 WHEN r.state > 10 THEN 2 ELSE 1 END)"
    };
}

/// The given runs whose fires have succeeded or failed as a whole, each with its flow run, fire time and state. The runs
/// of a request and child runs have the flow run as their fire key.
pub(crate) const ENDED_FIRES: &str = concat!(
    "SELECT json_group_array(json_array(id, flow, fire_at, fire_state)) FROM (
        SELECT o.id, CASE WHEN o.kind IN (1, 2) THEN o.fire_key ELSE min(r.id) END AS flow, min(r.fire_at) AS fire_at, ",
    fire_state!(),
    " AS fire_state
        FROM json_each(?1) e CROSS JOIN run o ON o.id = e.value
            CROSS JOIN run r ON r.fire_key = o.fire_key AND r.job_id = o.job_id AND r.kind = o.kind
        GROUP BY o.id HAVING fire_state < 3)"
);

pub(crate) const CHILDREN: &str = "
    SELECT json_group_array(json_array(l.parent_id, d.job_id, d.version, d.run_count,
        (SELECT count(*) FROM job_parent o WHERE o.child_id = d.job_id)))
    FROM json_each(?1) e CROSS JOIN job_parent l ON l.parent_id = e.value CROSS JOIN job_due d ON d.job_id = l.child_id
    WHERE d.enabled = 1 AND coalesce(d.paused_until <= ?2, 1)";

/// How the parents of the given children stand in the given flow runs, and the children themselves. A flow run that the
/// schedule or a start has begun has the fire of its first run, and all others have the flow run as their fire key.
pub(crate) const PARENTS: &str = concat!(
    "SELECT json_group_array(json_array(flow, child, job, coalesce(
        (SELECT ",
    fire_state!(),
    " FROM run r WHERE r.fire_key = flow AND r.job_id = job AND r.kind IN (1, 2)),
        (SELECT ",
    fire_state!(),
    " FROM run o CROSS JOIN run r ON r.fire_key = o.fire_key AND r.job_id = o.job_id AND r.kind = o.kind
            WHERE o.id = flow AND o.job_id = job))))
    FROM (SELECT e.value ->> 0 AS flow, e.value ->> 1 AS child, l.parent_id AS job
            FROM json_each(?1) e CROSS JOIN job_parent l ON l.child_id = e.value ->> 1
        UNION ALL SELECT e.value ->> 0, e.value ->> 1, e.value ->> 1 FROM json_each(?1) e)"
);

/// The given jobs that a job leads to which has fired in the given flow run.
pub(crate) const AHEAD: &str = "
    WITH RECURSIVE above (flow, target, job) AS (
        SELECT e.value ->> 0, e.value ->> 1, l.parent_id FROM json_each(?1) e CROSS JOIN job_parent l ON l.child_id = e.value ->> 1
        UNION
        SELECT a.flow, a.target, l.parent_id FROM above a CROSS JOIN job_parent l ON l.child_id = a.job)
    SELECT json_group_array(json_array(flow, target)) FROM (
        SELECT DISTINCT a.flow, a.target FROM above a
        WHERE EXISTS (SELECT 1 FROM run r WHERE r.fire_key = a.flow AND r.job_id = a.job AND r.kind IN (1, 2))
            OR EXISTS (SELECT 1 FROM run o WHERE o.id = a.flow AND o.job_id = a.job))";

/// What the parents of the given children returned in the given flow runs: of several shards, the output that ended last.
pub(crate) const OUTPUTS: &str = "
    SELECT e.value ->> 0, e.value ->> 1, j.name, coalesce(
        (SELECT r.output FROM run r WHERE r.fire_key = e.value ->> 0 AND r.job_id = l.parent_id AND r.kind IN (1, 2)
            AND r.output IS NOT NULL ORDER BY r.ended_at DESC, r.id DESC LIMIT 1),
        (SELECT r.output FROM run o CROSS JOIN run r ON r.fire_key = o.fire_key AND r.job_id = o.job_id AND r.kind = o.kind
            WHERE o.id = e.value ->> 0 AND o.job_id = l.parent_id AND r.output IS NOT NULL ORDER BY r.ended_at DESC, r.id DESC LIMIT 1))
    FROM json_each(?1) e CROSS JOIN job_parent l ON l.child_id = e.value ->> 1 CROSS JOIN job j ON j.id = l.parent_id";

impl SqliteStore {
    /// Writes the runs of the children that start because of this batch. Returns their number.
    pub(crate) async fn write_child_runs(
        &self,
        conn: &mut SqliteConnection,
        writes: &BatchWrites,
        now: Timestamp,
    ) -> Result<usize> {
        let parents: Vec<i64> = writes.parents().map(|(run, _)| run.id).collect();
        if parents.is_empty() {
            return Ok(0);
        }
        let Json(found): Json<Vec<FoundFire>> = sqlx::query_scalar(ENDED_FIRES)
            .bind(Json(parents))
            .fetch_one(&mut *conn)
            .await?;
        let fires = EndedFire::in_batch(&found, writes);
        if fires.is_empty() {
            return Ok(0);
        }
        let Json(children): Json<Vec<ChildJob>> = sqlx::query_scalar(CHILDREN)
            .bind(Json(parent_jobs(&fires)))
            .bind(now.as_millis())
            .fetch_one(&mut *conn)
            .await?;
        let versions = children.iter().map(|child| (child.id, child.version));
        let jobs = self.definitions.get(conn, versions).await?;
        let mut starts = ChildStarts::new(&fires, &children, &jobs);
        settle_joins(conn, &mut starts).await?;
        if starts.is_empty() {
            return Ok(0);
        }
        let mut live = self.live_executors(conn, now).await?;
        let mut runs = starts.into_runs(&mut live, now);
        new_runs::insert_and_count(conn, &mut runs, now).await
    }
}

/// Reads how the other parents of children with several ones stand.
async fn settle_joins(conn: &mut SqliteConnection, starts: &mut ChildStarts<'_>) -> Result<()> {
    let joins = starts.joins();
    if joins.is_empty() {
        return Ok(());
    }
    let Json(rows): Json<Vec<ParentRow>> = sqlx::query_scalar(PARENTS)
        .bind(Json(joins))
        .fetch_one(&mut *conn)
        .await?;
    let unfired = starts.read_parents(&rows);
    let ahead = if unfired.is_empty() {
        Vec::new()
    } else {
        let Json(ahead): Json<Vec<(i64, i64)>> = sqlx::query_scalar(AHEAD)
            .bind(Json(unfired))
            .fetch_one(&mut *conn)
            .await?;
        ahead
    };
    starts.settle(&ahead);
    for joined in starts.joined_outputs().chunks(OUTPUTS_AT_ONCE) {
        let rows: Vec<OutputRow> = sqlx::query_as(OUTPUTS)
            .bind(Json(joined))
            .fetch_all(&mut *conn)
            .await?;
        starts.read_outputs(rows);
    }
    Ok(())
}
