//! Starts the jobs that run after others, in the transaction that ends the runs of those.
//!
//! Two transactions may end two runs of one fire, or two parents of one child, at the same time. Each locks the jobs of
//! its runs and the jobs after them, in the order of their ids. So the second one sees the results of the first.

use cueline_store::adapter::child_starts::{
    ChildJob, ChildStarts, EndedFire, FoundFire, OUTPUTS_AT_ONCE, OutputRow, ParentRow, parent_jobs,
};
use cueline_store::adapter::report_batch::BatchWrites;
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::columns::{column, id_range};
use crate::database::WriteTx;
use crate::error::Result;
use crate::partitions::Day;

/// Locks jobs and the jobs after them. In one statement, so that all transactions lock in the same order.
pub(crate) const LOCK_WITH_CHILDREN: &str = "
    SELECT 1 FROM job_due d
    WHERE d.job_id IN (SELECT e.id FROM unnest($1::bigint[]) e (id)
        UNION ALL SELECT l.child_id FROM unnest($1::bigint[]) e (id) JOIN job_parent l ON l.parent_id = e.id)
    ORDER BY d.job_id FOR NO KEY UPDATE OF d";

/// The code of the `FireState` of these runs: the greatest contribution of a shard.
macro_rules! fire_state {
    () => {
        "max(CASE WHEN r.state IS NULL THEN 4 WHEN r.cancel_requested OR r.state > 14 THEN 3 WHEN r.state > 10 THEN 2 ELSE 1 END)::bigint"
    };
}

/// The given runs whose fires have succeeded or failed as a whole, each with its flow run, fire time and state. The runs
/// of a request and child runs have the flow run as their fire key.
pub(crate) const ENDED_FIRES: &str = concat!(
    "SELECT e.id, CASE WHEN o.kind IN (1, 2) THEN o.fire_key ELSE min(r.id) END, min(r.fire_at), ",
    fire_state!(),
    " FROM unnest($1::bigint[]) e (id) JOIN run o ON o.id = e.id AND o.id BETWEEN $2 AND $3
        JOIN run r ON r.fire_key = o.fire_key AND r.job_id = o.job_id AND r.kind = o.kind AND r.id BETWEEN $2 AND $3
    GROUP BY e.id, o.kind, o.fire_key HAVING ",
    fire_state!(),
    " < 3"
);

/// It locks the children, for those that were linked while the transaction waited for its locks.
pub(crate) const CHILDREN: &str = "
    SELECT l.parent_id, d.job_id, d.version, d.run_count, (SELECT count(*) FROM job_parent o WHERE o.child_id = d.job_id)
    FROM unnest($1::bigint[]) e (id) JOIN job_parent l ON l.parent_id = e.id JOIN job_due d ON d.job_id = l.child_id
    WHERE d.enabled AND coalesce(d.paused_until <= $2, true) ORDER BY d.job_id FOR NO KEY UPDATE OF d";

/// How the parents of the given children stand in the given flow runs, and the children themselves. A flow run that the
/// schedule or a start has begun has the fire of its first run, and all others have the flow run as their fire key. All
/// runs of a flow run are of one day.
pub(crate) const PARENTS: &str = concat!(
    "SELECT p.flow, p.child, p.job, coalesce(
        (SELECT ",
    fire_state!(),
    " FROM run r WHERE r.fire_key = p.flow AND r.job_id = p.job AND r.kind IN (1, 2) AND r.id BETWEEN $3 AND $4),
        (SELECT ",
    fire_state!(),
    " FROM run o JOIN run r ON r.fire_key = o.fire_key AND r.job_id = o.job_id AND r.kind = o.kind AND r.id BETWEEN $3 AND $4
            WHERE o.id = p.flow AND o.job_id = p.job AND o.id BETWEEN $3 AND $4))
    FROM (SELECT e.flow, e.child, l.parent_id AS job
            FROM unnest($1::bigint[], $2::bigint[]) e (flow, child) JOIN job_parent l ON l.child_id = e.child
        UNION ALL SELECT e.flow, e.child, e.child FROM unnest($1::bigint[], $2::bigint[]) e (flow, child)) p"
);

/// The given jobs that a job leads to which has fired in the given flow run.
pub(crate) const AHEAD: &str = "
    WITH RECURSIVE above (flow, target, job) AS (
        SELECT e.flow, e.job, l.parent_id FROM unnest($1::bigint[], $2::bigint[]) e (flow, job) JOIN job_parent l ON l.child_id = e.job
        UNION
        SELECT a.flow, a.target, l.parent_id FROM above a JOIN job_parent l ON l.child_id = a.job)
    SELECT DISTINCT a.flow, a.target FROM above a
    WHERE EXISTS (SELECT FROM run r WHERE r.fire_key = a.flow AND r.job_id = a.job AND r.kind IN (1, 2) AND r.id BETWEEN $3 AND $4)
        OR EXISTS (SELECT FROM run o WHERE o.id = a.flow AND o.job_id = a.job AND o.id BETWEEN $3 AND $4)";

/// What the parents of the given children returned in the given flow runs: of several shards, the output that ended last.
pub(crate) const OUTPUTS: &str = "
    SELECT e.flow, e.child, j.name, coalesce(
        (SELECT r.output FROM run r WHERE r.fire_key = e.flow AND r.job_id = l.parent_id AND r.kind IN (1, 2)
            AND r.id BETWEEN $3 AND $4 AND r.output IS NOT NULL ORDER BY r.ended_at DESC, r.id DESC LIMIT 1),
        (SELECT r.output FROM run o JOIN run r ON r.fire_key = o.fire_key AND r.job_id = o.job_id AND r.kind = o.kind
            WHERE o.id = e.flow AND o.job_id = l.parent_id AND o.id BETWEEN $3 AND $4 AND r.id BETWEEN $3 AND $4
                AND r.output IS NOT NULL ORDER BY r.ended_at DESC, r.id DESC LIMIT 1))
    FROM unnest($1::bigint[], $2::bigint[]) e (flow, child) JOIN job_parent l ON l.child_id = e.child JOIN job j ON j.id = l.parent_id";

/// Locks jobs and the jobs after them until the end of the transaction.
pub(crate) async fn lock_with_children(conn: &mut PgConnection, jobs: Vec<i64>) -> Result<()> {
    sqlx::query(LOCK_WITH_CHILDREN)
        .bind(jobs)
        .execute(conn)
        .await?;
    Ok(())
}

/// Bounds of the ids of all runs of these days. They exclude the partitions of all other days.
pub(crate) fn days_of(runs: impl IntoIterator<Item = i64>) -> (i64, i64) {
    let (low, high) = id_range(runs);
    (Day::of_run(low).ids().0, Day::of_run(high).ids().1 - 1)
}

impl PgStore {
    /// Writes the runs of the children that start because of this batch. Returns their number. The caller has locked
    /// the jobs of the parents.
    pub(crate) async fn write_child_runs(
        &self,
        tx: &mut WriteTx,
        writes: &BatchWrites,
    ) -> Result<usize> {
        let parents: Vec<i64> = writes.parents().map(|(run, _)| run.id).collect();
        if parents.is_empty() {
            return Ok(0);
        }
        let now = tx.now;
        let (low, high) = days_of(parents.iter().copied());
        let found: Vec<(i64, i64, i64, i64)> = sqlx::query_as(ENDED_FIRES)
            .bind(parents)
            .bind(low)
            .bind(high)
            .fetch_all(&mut **tx)
            .await?;
        let found: Vec<FoundFire> = found.into_iter().map(FoundFire::from).collect();
        let fires = EndedFire::in_batch(&found, writes);
        if fires.is_empty() {
            return Ok(0);
        }
        let children: Vec<(i64, i64, i64, i64, i64)> = sqlx::query_as(CHILDREN)
            .bind(parent_jobs(&fires))
            .bind(now.as_millis())
            .fetch_all(&mut **tx)
            .await?;
        let children: Vec<ChildJob> = children.into_iter().map(ChildJob::from).collect();
        let versions = children.iter().map(|child| (child.id, child.version));
        let jobs = self.definitions.get(tx, versions).await?;
        let mut starts = ChildStarts::new(&fires, &children, &jobs);
        settle_joins(tx, &mut starts).await?;
        if starts.is_empty() {
            return Ok(0);
        }
        let mut live = self.live_executors(tx, now).await?;
        let mut runs = starts.into_runs(&mut live, now);
        self.insert_and_count(tx, &mut runs).await
    }
}

/// Reads how the other parents of children with several ones stand.
async fn settle_joins(conn: &mut PgConnection, starts: &mut ChildStarts<'_>) -> Result<()> {
    let joins = starts.joins();
    if joins.is_empty() {
        return Ok(());
    }
    let (low, high) = days_of(joins.iter().map(|(flow, _)| *flow));
    let rows: Vec<ParentRow> = sqlx::query_as(PARENTS)
        .bind(column(&joins, |join| join.0))
        .bind(column(&joins, |join| join.1))
        .bind(low)
        .bind(high)
        .fetch_all(&mut *conn)
        .await?;
    let unfired = starts.read_parents(&rows);
    let ahead: Vec<(i64, i64)> = if unfired.is_empty() {
        Vec::new()
    } else {
        sqlx::query_as(AHEAD)
            .bind(column(&unfired, |parent| parent.0))
            .bind(column(&unfired, |parent| parent.1))
            .bind(low)
            .bind(high)
            .fetch_all(&mut *conn)
            .await?
    };
    starts.settle(&ahead);
    for joined in starts.joined_outputs().chunks(OUTPUTS_AT_ONCE) {
        let rows: Vec<OutputRow> = sqlx::query_as(OUTPUTS)
            .bind(column(joined, |join| join.0))
            .bind(column(joined, |join| join.1))
            .bind(low)
            .bind(high)
            .fetch_all(&mut *conn)
            .await?;
        starts.read_outputs(rows);
    }
    Ok(())
}
