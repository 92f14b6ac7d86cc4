//! Runs that nobody alive works on: who takes them, and when the next is due.

use std::collections::HashMap;

use cueline_model::{RunId, RunState, Shard, Timestamp};
use cueline_store::adapter::definitions::{as_sent, pick};
use cueline_store::{ClaimedRun, NodeId, StoreError};
use sqlx::FromRow;
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::database::commit;
use crate::error::failed;
use crate::nodes;
use crate::rows::{bounds, int, kind, name, small, state, unsigned};

/// What is `dispatching` and unclaimed may have been published by the node that died. What another node is claiming is passed over.
pub(crate) const CLAIM: &str = "
    WITH waiting AS MATERIALIZED (
        SELECT id FROM run_live WHERE claimed_by IS NULL AND due_at <= $1 ORDER BY due_at, id LIMIT $2
        FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE run_live l SET claimed_by = $3, maybe_published = (l.state = 1)
    FROM waiting w WHERE l.id = w.id
    RETURNING l.id, l.due_at";

pub(crate) const READ: &str = "
    SELECT r.id, l.attempt, l.state, r.kind, r.fire_at, l.due_at, r.shard_index, r.shard_total, r.shard_item, r.params, l.executor,
        l.pinned, r.turn, l.maybe_published, l.sent_to_group, r.job_id, j.version
    FROM run_live l JOIN run r ON r.id = l.id AND r.id BETWEEN $2 AND $3 JOIN job j ON j.id = r.job_id
    WHERE l.id = ANY ($1)";

/// Runs of a dead node are looked for once per node that has died and not yet been cleared: rarely, and then for a moment.
pub(crate) const NEXT: &str = "
    SELECT least(
        (SELECT min(next_fire_at) FROM job_due WHERE next_fire_at IS NOT NULL),
        (SELECT min(due_at) FROM run_live WHERE claimed_by IS NULL),
        (SELECT min((SELECT min(l.due_at) FROM run_live l WHERE l.claimed_by = n.id AND l.state IN (0, 1)))
         FROM node n WHERE n.lease_until <= $1 AND NOT n.cleared))";

#[derive(FromRow)]
struct Row {
    id: i64,
    attempt: i32,
    state: i16,
    kind: i16,
    fire_at: i64,
    due_at: i64,
    shard_index: i32,
    shard_total: i32,
    shard_item: Option<String>,
    params: Option<String>,
    executor: Option<String>,
    pinned: bool,
    turn: i64,
    maybe_published: bool,
    sent_to_group: Option<String>,
    job_id: i64,
    version: i64,
}

impl PgStore {
    pub(crate) async fn claim(
        &self,
        node: NodeId,
        horizon_ms: u64,
        limit: usize,
    ) -> Result<Vec<ClaimedRun>, StoreError> {
        let mut tx = self.db.write().await?;
        let now = tx.now;
        nodes::known(&mut tx, node).await?;
        nodes::unclaim_dead(&mut tx, node, now).await?;
        let mut claimed: Vec<(i64, i64)> = sqlx::query_as(CLAIM)
            .bind(now.plus_ms(horizon_ms).as_millis())
            .bind(int(limit))
            .bind(node.0)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed("claim waiting runs"))?;
        claimed.sort_unstable_by_key(|(id, due_at)| (*due_at, *id));
        let ids: Vec<i64> = claimed.into_iter().map(|(id, _)| id).collect();
        let claimed = self.read_waiting(&mut tx, &ids).await?;
        commit(tx).await?;
        Ok(claimed)
    }

    /// Runs by id, in the order of `ids`, as the node that has claimed them needs them.
    pub(crate) async fn read_waiting(
        &self,
        conn: &mut PgConnection,
        ids: &[i64],
    ) -> Result<Vec<ClaimedRun>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let (low, high) = bounds(ids.iter().copied());
        let mut rows: Vec<Row> = sqlx::query_as(READ)
            .bind(ids)
            .bind(low)
            .bind(high)
            .fetch_all(&mut *conn)
            .await
            .map_err(failed("read claimed runs"))?;
        let places: HashMap<i64, usize> =
            ids.iter().enumerate().map(|(at, id)| (*id, at)).collect();
        rows.sort_unstable_by_key(|row| places.get(&row.id));
        let versions: HashMap<i64, i64> = rows.iter().map(|r| (r.job_id, r.version)).collect();
        let jobs = self.definitions.of(conn, versions.into_iter()).await?;
        rows.into_iter()
            // Without a readable definition nothing can be made of a run; it waits for one, and holds up no other.
            .filter(|row| jobs.contains_key(&row.job_id))
            .map(|row| {
                let maybe_published =
                    row.maybe_published && state(row.state)? == RunState::Dispatching;
                let executor = row.executor.filter(|_| row.pinned || maybe_published);
                let sent_to = row.sent_to_group.filter(|_| maybe_published);
                Ok(ClaimedRun {
                    id: RunId(row.id),
                    attempt: small(row.attempt),
                    job: as_sent(pick(&jobs, row.job_id)?, sent_to.as_deref())?,
                    kind: kind(row.kind)?,
                    fire_at: Timestamp::from_millis(row.fire_at),
                    due_at: Timestamp::from_millis(row.due_at),
                    shard: Shard {
                        index: small(row.shard_index),
                        total: small(row.shard_total),
                        item: row.shard_item,
                    },
                    params: row.params,
                    executor: executor.as_deref().map(name).transpose()?,
                    sequence: unsigned(row.turn),
                    maybe_published,
                })
            })
            .collect()
    }

    pub(crate) async fn next(&self) -> Result<Option<Timestamp>, StoreError> {
        let mut conn = self.db.glance().await?;
        let now = self.db.now(&mut conn).await?;
        let due: Option<i64> = sqlx::query_scalar(NEXT)
            .bind(now.as_millis())
            .fetch_one(&mut *conn)
            .await
            .map_err(failed("find out when the next run is due"))?;
        Ok(due.map(Timestamp::from_millis))
    }
}
