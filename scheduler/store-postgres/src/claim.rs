//! Claims runs that no live node has claimed, and finds the next due time.

use std::collections::HashMap;

use cueline_model::Timestamp;
use cueline_store::adapter::claimed::{
    ClaimedRow, ClaimedRuns, UNREADABLE_WAIT_MS, claimed_runs, jobs_of,
};
use cueline_store::adapter::convert::to_i64;
use cueline_store::{ClaimedRun, NodeId};
use sqlx::Row as _;
use sqlx::postgres::{PgConnection, PgRow};

use crate::columns::id_range;
use crate::error::Result;
use crate::{PgStore, nodes};

/// The time, whether runs wait, and whether claims of expired nodes have to end. An idle scheduler needs only this
/// statement, and a busy one looks for expired nodes by it. A node without a row is refused by the transaction.
pub(crate) const ANY_WAITING: &str = "
    SELECT c.now, EXISTS (SELECT FROM run_live l WHERE l.claimed_by IS NULL AND l.due_at <= c.now + $2)
            OR NOT EXISTS (SELECT FROM node n WHERE n.id = $3),
        EXISTS (SELECT FROM node n WHERE n.lease_until <= c.now AND n.id <> $3 AND NOT n.cleared)
    FROM (SELECT coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now) c";

/// An expired node may have published an unclaimed run that is `dispatching`. Runs that another node is claiming are
/// skipped.
pub(crate) const CLAIM: &str = "
    WITH waiting AS MATERIALIZED (
        SELECT id FROM run_live WHERE claimed_by IS NULL AND due_at <= $1 ORDER BY due_at, id LIMIT $2
        FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE run_live l SET claimed_by = $3, maybe_published = (l.state = 1)
    FROM waiting w WHERE l.id = w.id
    RETURNING l.id, l.due_at";

pub(crate) const READ: &str = "
    SELECT r.id, l.attempt, l.state, r.kind, r.fire_at, l.due_at, r.shard_index, r.shard_total, r.shard_item, r.params, l.executor,
        l.pinned, r.sequence, l.maybe_published, l.published_group, r.job_id, j.version, l.retries
    FROM run_live l JOIN run r ON r.id = l.id AND r.id BETWEEN $2 AND $3 JOIN job j ON j.id = r.job_id
    WHERE l.id = ANY ($1)";

/// Leaves runs to other nodes. A run that may be published keeps its state and its executor.
const RELEASE_UNREADABLE: &str = "
    UPDATE run_live SET claimed_by = NULL, due_at = greatest(due_at, $2) WHERE id = ANY ($1) AND state IN (0, 1)";

/// The runs of expired nodes are searched only until their claims have ended, which is rare and takes a moment.
pub(crate) const NEXT_DUE: &str = "
    SELECT least(
        (SELECT min(next_fire_at) FROM job_due WHERE next_fire_at IS NOT NULL),
        (SELECT min(due_at) FROM run_live WHERE claimed_by IS NULL),
        (SELECT min((SELECT min(l.due_at) FROM run_live l WHERE l.claimed_by = n.id AND l.state IN (0, 1)))
         FROM node n
         WHERE n.lease_until <= coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AND NOT n.cleared))";

impl PgStore {
    pub(crate) async fn claim_waiting(
        &self,
        node: NodeId,
        horizon_ms: u64,
        limit: usize,
    ) -> Result<Vec<ClaimedRun>> {
        let (now, is_any_waiting, is_any_expired) = self.look_for_waiting(node, horizon_ms).await?;
        if !is_any_waiting && !is_any_expired {
            return Ok(Vec::new());
        }
        let mut tx = self.db.write_at(now).await?;
        nodes::require(&mut tx, node).await?;
        if is_any_expired {
            nodes::unclaim_expired(&mut tx, node, now).await?;
        }
        let mut claimed: Vec<(i64, i64)> = sqlx::query_as(CLAIM)
            .bind(now.plus_ms(horizon_ms).as_millis())
            .bind(to_i64(limit))
            .bind(node.0)
            .fetch_all(&mut *tx)
            .await?;
        claimed.sort_unstable_by_key(|(id, due_at)| (*due_at, *id));
        let ids: Vec<i64> = claimed.into_iter().map(|(id, _)| id).collect();
        let claimed = self.read_claimed(&mut tx, &ids, now).await?;
        tx.commit().await?;
        Ok(claimed)
    }

    /// The answer of [`ANY_WAITING`].
    async fn look_for_waiting(
        &self,
        node: NodeId,
        horizon_ms: u64,
    ) -> Result<(Timestamp, bool, bool)> {
        let look = sqlx::query_as(ANY_WAITING)
            .bind(self.db.test_clock().map(Timestamp::as_millis))
            // The sum with the time must not overflow.
            .bind(to_i64(horizon_ms).min(i64::MAX / 2))
            .bind(node.0);
        let mut conn = self.db.autocommit().await?;
        let (now, waiting, expired): (i64, bool, bool) = look.fetch_one(&mut *conn).await?;
        conn.keep();
        Ok((Timestamp::from_millis(now), waiting, expired))
    }

    /// Reads claimed runs in the order of `ids`. Releases those whose definition this program cannot read.
    pub(crate) async fn read_claimed(
        &self,
        conn: &mut PgConnection,
        ids: &[i64],
        now: Timestamp,
    ) -> Result<Vec<ClaimedRun>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let (low, high) = id_range(ids.iter().copied());
        let rows = sqlx::query(READ)
            .bind(ids)
            .bind(low)
            .bind(high)
            .fetch_all(&mut *conn)
            .await?;
        let mut rows = rows.iter().map(claimed_row).collect::<Result<Vec<_>>>()?;
        let order: HashMap<i64, usize> = ids.iter().copied().zip(0..).collect();
        rows.sort_unstable_by_key(|row| order.get(&row.id));
        let jobs = self.definitions.get(&mut *conn, jobs_of(&rows)).await?;
        let ClaimedRuns { runs, unreadable } = claimed_runs(rows, &jobs)?;
        if !unreadable.is_empty() {
            sqlx::query(RELEASE_UNREADABLE)
                .bind(unreadable)
                .bind(now.plus_ms(UNREADABLE_WAIT_MS).as_millis())
                .execute(conn)
                .await?;
        }
        Ok(runs)
    }

    pub(crate) async fn next_due_at(&self) -> Result<Option<Timestamp>> {
        let mut conn = self.db.autocommit().await?;
        let due: Option<i64> = sqlx::query_scalar(NEXT_DUE)
            .bind(self.db.test_clock().map(Timestamp::as_millis))
            .fetch_one(&mut *conn)
            .await?;
        conn.keep();
        Ok(due.map(Timestamp::from_millis))
    }
}

/// A row of [`READ`].
fn claimed_row(row: &PgRow) -> Result<ClaimedRow> {
    let integer = |column: &str| row.try_get::<i32, _>(column).map(i64::from);
    let code = |column: &str| row.try_get::<i16, _>(column).map(i64::from);
    Ok(ClaimedRow {
        id: row.try_get("id")?,
        attempt: integer("attempt")?,
        state: code("state")?,
        kind: code("kind")?,
        fire_at: row.try_get("fire_at")?,
        due_at: row.try_get("due_at")?,
        shard_index: integer("shard_index")?,
        shard_total: integer("shard_total")?,
        shard_item: row.try_get("shard_item")?,
        params: row.try_get("params")?,
        executor: row.try_get("executor")?,
        pinned: row.try_get("pinned")?,
        sequence: row.try_get("sequence")?,
        maybe_published: row.try_get("maybe_published")?,
        published_group: row.try_get("published_group")?,
        job_id: row.try_get("job_id")?,
        job_version: row.try_get("version")?,
        retries: integer("retries")?,
    })
}
