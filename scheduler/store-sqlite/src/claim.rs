//! Claims runs that no live node has claimed, and finds the next due time.

use cueline_model::Timestamp;
use cueline_store::adapter::claimed::{
    ClaimedRow, ClaimedRuns, UNREADABLE_WAIT_MS, claimed_runs, jobs_of,
};
use cueline_store::adapter::convert::to_i64;
use cueline_store::{ClaimedRun, NodeId};
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::error::Result;
use crate::{SqliteStore, nodes};

/// Whether a run can be claimed, or an expired node still has claims.
pub(crate) const ANY: &str = "
    SELECT EXISTS (SELECT 1 FROM run WHERE claimed_by IS NULL AND state < 2 AND due_at <= ?1)
        OR EXISTS (SELECT 1 FROM node n CROSS JOIN run r ON r.claimed_by = n.id
                   WHERE n.lease_until <= ?2 AND n.id <> ?3 AND r.state IN (0, 1) AND r.state < 10)";

pub(crate) const WAITING: &str = "
    SELECT json_group_array(id)
    FROM (SELECT id FROM run WHERE claimed_by IS NULL AND state < 2 AND due_at <= ?1 ORDER BY due_at, id LIMIT ?2 + 0)";

/// An expired node may have published an unclaimed run that is `dispatching`.
pub(crate) const CLAIM: &str = "
    UPDATE run SET claimed_by = ?2, maybe_published = (state = 1) WHERE id IN (SELECT value FROM json_each(?1))";

/// The columns of [`ClaimedRow`].
pub(crate) const READ: &str = "
    SELECT json_group_array(json_array(r.id, r.attempt, r.state, r.kind, r.fire_at, r.due_at, r.shard_index, r.shard_total,
        r.shard_item, r.params, r.executor, r.pinned, r.sequence, r.maybe_published, r.published_group, r.job_id, j.version, r.retries))
    FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value CROSS JOIN job j ON j.id = r.job_id";

/// Leaves runs to other nodes. A run that may be published keeps its state and its executor.
const RELEASE_UNREADABLE: &str = "
    UPDATE run SET claimed_by = NULL, due_at = max(due_at, ?2)
    WHERE id IN (SELECT value FROM json_each(?1)) AND state IN (0, 1)";

pub(crate) const NEXT_DUE: &str = "
    SELECT min(due) FROM (
        SELECT min(next_fire_at) AS due FROM job_due WHERE next_fire_at IS NOT NULL
        UNION ALL
        SELECT min(due_at) FROM run WHERE claimed_by IS NULL AND state < 2
        UNION ALL
        SELECT min(r.due_at) FROM node n CROSS JOIN run r ON r.claimed_by = n.id
        WHERE n.lease_until <= ?1 AND r.state IN (0, 1) AND r.state < 10)";

impl SqliteStore {
    pub(crate) async fn claim_waiting(
        &self,
        node: NodeId,
        horizon_ms: u64,
        limit: usize,
    ) -> Result<Vec<ClaimedRun>> {
        if !self.is_any_waiting(node, horizon_ms).await? {
            return Ok(Vec::new());
        }
        let mut tx = self.db.write().await?;
        nodes::require(&mut tx, node).await?;
        let now = self.db.now();
        nodes::unclaim_expired(&mut tx, node, now).await?;
        let ids: String = sqlx::query_scalar(WAITING)
            .bind(now.plus_ms(horizon_ms).as_millis())
            .bind(to_i64(limit))
            .fetch_one(&mut *tx)
            .await?;
        sqlx::query(CLAIM)
            .bind(&ids)
            .bind(node.0)
            .execute(&mut *tx)
            .await?;
        let claimed = self.read_claimed(&mut tx, ids, now).await?;
        tx.commit().await?;
        Ok(claimed)
    }

    /// Checks on a reading connection first. Usually no run waits, and the only writing connection has more urgent
    /// work.
    async fn is_any_waiting(&self, node: NodeId, horizon_ms: u64) -> Result<bool> {
        let mut conn = self.db.read().await?;
        nodes::require(&mut conn, node).await?;
        let now = self.db.now();
        let any: bool = sqlx::query_scalar(ANY)
            .bind(now.plus_ms(horizon_ms).as_millis())
            .bind(now.as_millis())
            .bind(node.0)
            .fetch_one(&mut *conn)
            .await?;
        Ok(any)
    }

    /// Reads claimed runs in the order of `ids`, a JSON list. Releases those whose definition this program cannot read.
    pub(crate) async fn read_claimed(
        &self,
        conn: &mut SqliteConnection,
        ids: String,
        now: Timestamp,
    ) -> Result<Vec<ClaimedRun>> {
        let Json(rows): Json<Vec<ClaimedRow>> = sqlx::query_scalar(READ)
            .bind(ids)
            .fetch_one(&mut *conn)
            .await?;
        let jobs = self.definitions.get(&mut *conn, jobs_of(&rows)).await?;
        let ClaimedRuns { runs, unreadable } = claimed_runs(rows, &jobs)?;
        if !unreadable.is_empty() {
            sqlx::query(RELEASE_UNREADABLE)
                .bind(Json(unreadable))
                .bind(now.plus_ms(UNREADABLE_WAIT_MS).as_millis())
                .execute(conn)
                .await?;
        }
        Ok(runs)
    }

    pub(crate) async fn next_due_at(&self) -> Result<Option<Timestamp>> {
        let due: Option<i64> = sqlx::query_scalar(NEXT_DUE)
            .bind(self.db.now().as_millis())
            .fetch_one(&mut *self.db.read().await?)
            .await?;
        Ok(due.map(Timestamp::from_millis))
    }
}
