//! Runs that nobody alive works on: who takes them, and when the next is due.

use cueline_model::{ExecutorName, RunId, RunState, Shard, Timestamp};
use cueline_store::adapter::definitions::{as_sent, pick};
use cueline_store::{ClaimedRun, NodeId, StoreError};
use serde::Deserialize;
use sqlx::SqliteConnection;

use crate::SqliteStore;
use crate::database::commit;
use crate::error::failed;
use crate::nodes;
use crate::rows::{decode, int, kind, small, state, unsigned};

pub(crate) const WAITING: &str = "
    SELECT json_group_array(id)
    FROM (SELECT id FROM run WHERE claimed_by IS NULL AND state < 2 AND due_at <= ?1 ORDER BY due_at, id LIMIT ?2)";

/// Whether there is anything to claim, or a dead node whose claims end.
pub(crate) const ANY: &str = "
    SELECT EXISTS (SELECT 1 FROM run WHERE claimed_by IS NULL AND state < 2 AND due_at <= ?1)
        OR EXISTS (SELECT 1 FROM node n CROSS JOIN run r ON r.claimed_by = n.id
                   WHERE n.lease_until <= ?2 AND n.id <> ?3 AND r.state IN (0, 1) AND r.state < 10)";

/// What is `dispatching` and unclaimed may have been published by the node that died.
pub(crate) const CLAIM: &str = "
    UPDATE run SET claimed_by = ?2, maybe_published = (state = 1) WHERE id IN (SELECT value FROM json_each(?1))";

pub(crate) const READ: &str = "
    SELECT json_group_array(json_array(r.id, r.attempt, r.state, r.kind, r.fire_at, r.due_at, r.shard_index, r.shard_total,
        r.shard_item, r.params, r.executor, r.pinned, r.turn, r.maybe_published, r.sent_to_group, r.job_id, j.version))
    FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value CROSS JOIN job j ON j.id = r.job_id";

pub(crate) const NEXT: &str = "
    SELECT min(due) FROM (
        SELECT min(next_fire_at) AS due FROM job_due WHERE next_fire_at IS NOT NULL
        UNION ALL
        SELECT min(due_at) FROM run WHERE claimed_by IS NULL AND state < 2
        UNION ALL
        SELECT min(r.due_at) FROM node n CROSS JOIN run r ON r.claimed_by = n.id
        WHERE n.lease_until <= ?1 AND r.state IN (0, 1) AND r.state < 10)";

#[derive(Deserialize)]
struct Row {
    id: i64,
    attempt: i64,
    state: i64,
    kind: i64,
    fire_at: Timestamp,
    due_at: Timestamp,
    shard_index: i64,
    shard_total: i64,
    shard_item: Option<String>,
    params: Option<String>,
    executor: Option<ExecutorName>,
    pinned: i64,
    turn: i64,
    maybe_published: i64,
    sent_to_group: Option<String>,
    job_id: i64,
    version: i64,
}

impl SqliteStore {
    pub(crate) async fn claim(
        &self,
        node: NodeId,
        horizon_ms: u64,
        limit: usize,
    ) -> Result<Vec<ClaimedRun>, StoreError> {
        let fail = failed("claim waiting runs");
        if !self.is_any_waiting(node, horizon_ms).await? {
            return Ok(Vec::new());
        }
        let mut tx = self.db.write().await?;
        nodes::known(&mut tx, node).await?;
        let now = self.db.now();
        nodes::unclaim_dead(&mut tx, node, now).await?;
        let ids: String = sqlx::query_scalar(WAITING)
            .bind(now.plus_ms(horizon_ms).as_millis())
            .bind(int(limit))
            .fetch_one(&mut *tx)
            .await
            .map_err(&fail)?;
        let claimed = if ids == "[]" {
            Vec::new()
        } else {
            sqlx::query(CLAIM)
                .bind(&ids)
                .bind(node.0)
                .execute(&mut *tx)
                .await
                .map_err(&fail)?;
            self.read_waiting(&mut tx, ids).await?
        };
        commit(tx).await?;
        Ok(claimed)
    }

    /// Looks without writing: mostly there is nothing, and the one writer has more urgent things to do.
    async fn is_any_waiting(&self, node: NodeId, horizon_ms: u64) -> Result<bool, StoreError> {
        let mut conn = self.db.read().await?;
        nodes::known(&mut conn, node).await?;
        let now = self.db.now();
        let any: i64 = sqlx::query_scalar(ANY)
            .bind(now.plus_ms(horizon_ms).as_millis())
            .bind(now.as_millis())
            .bind(node.0)
            .fetch_one(&mut *conn)
            .await
            .map_err(failed("look for waiting runs"))?;
        Ok(any != 0)
    }

    /// Runs by id, in the order of `ids`, as the node that has claimed them needs them.
    pub(crate) async fn read_waiting(
        &self,
        conn: &mut SqliteConnection,
        ids: String,
    ) -> Result<Vec<ClaimedRun>, StoreError> {
        let text: String = sqlx::query_scalar(READ)
            .bind(ids)
            .fetch_one(&mut *conn)
            .await
            .map_err(failed("read claimed runs"))?;
        let rows: Vec<Row> = decode(&text)?;
        let versions: std::collections::HashMap<i64, i64> =
            rows.iter().map(|r| (r.job_id, r.version)).collect();
        let jobs = self.definitions.of(conn, versions.into_iter()).await?;
        rows.into_iter()
            // Without a readable definition nothing can be made of a run; it waits for one, and holds up no other.
            .filter(|row| jobs.contains_key(&row.job_id))
            .map(|row| {
                let maybe_published =
                    row.maybe_published == 1 && state(row.state)? == RunState::Dispatching;
                let sent_to = row.sent_to_group.filter(|_| maybe_published);
                Ok(ClaimedRun {
                    id: RunId(row.id),
                    attempt: small(row.attempt),
                    job: as_sent(pick(&jobs, row.job_id)?, sent_to.as_deref())?,
                    kind: kind(row.kind)?,
                    fire_at: row.fire_at,
                    due_at: row.due_at,
                    shard: Shard {
                        index: small(row.shard_index),
                        total: small(row.shard_total),
                        item: row.shard_item,
                    },
                    params: row.params,
                    executor: row.executor.filter(|_| row.pinned == 1 || maybe_published),
                    sequence: unsigned(row.turn),
                    maybe_published,
                })
            })
            .collect()
    }

    pub(crate) async fn next(&self) -> Result<Option<Timestamp>, StoreError> {
        let mut conn = self.db.read().await?;
        let due: Option<i64> = sqlx::query_scalar(NEXT)
            .bind(self.db.now().as_millis())
            .fetch_one(&mut *conn)
            .await
            .map_err(failed("find out when the next run is due"))?;
        Ok(due.map(Timestamp::from_millis))
    }
}
