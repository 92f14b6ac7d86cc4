//! Scheduler nodes and their leases.

use cueline_model::Timestamp;
use cueline_store::adapter::new_run::{Fire, NewRun};
use cueline_store::{NodeId, RegisteredNode, RenewedLease, StoreError};
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::database::WriteTx;
use crate::error::Result;
use crate::{SqliteStore, new_runs};

/// A name belongs to one process. A new node with the same name proves that the earlier one has ended.
const END_LEASES_OF_NAME: &str =
    "UPDATE node SET lease_until = min(lease_until, ?2) WHERE name = ?1";
const COUNT_LIVE: &str = "SELECT count(*) FROM node WHERE lease_until > ?1";
const INSERT: &str = "INSERT INTO node (name, lease_until) VALUES (?1, ?2) RETURNING id";
const RENEW_LEASE: &str = "
    UPDATE node SET lease_until = ?2, reached_broker_at = ?4 WHERE id = ?1 AND lease_until > ?3";
const OTHERS: &str = "
    SELECT count(*) > 0, max(reached_broker_at) FROM node WHERE id <> ?1 AND lease_until > ?2";
const END_LEASE: &str = "UPDATE node SET lease_until = min(lease_until, ?2) WHERE id = ?1";
const EXISTS: &str = "SELECT EXISTS (SELECT 1 FROM node WHERE id = ?1)";
const DELETE_OLD: &str = "
    DELETE FROM node WHERE lease_until < ?1
        AND NOT EXISTS (SELECT 1 FROM run WHERE state IN (0, 1) AND state < 10 AND claimed_by = node.id)";
const EXPIRED: &str = "SELECT json_group_array(id) FROM node WHERE lease_until <= ?1 AND id <> ?2";
const UNCLAIM: &str = "
    UPDATE run SET claimed_by = NULL
    WHERE state IN (0, 1) AND state < 10 AND claimed_by IN (SELECT value FROM json_each(?1))";
const STARTUP_JOBS: &str = "
    SELECT json_group_array(json_array(d.job_id, d.version, d.run_count))
    FROM job j CROSS JOIN job_due d ON d.job_id = j.id
    WHERE j.startup = 1 AND j.deleted_at IS NULL AND d.enabled = 1 AND coalesce(d.paused_until <= ?1, 1)";

/// How long the row of a node is kept after its lease ended.
const KEPT_MS: u64 = 24 * 3_600_000;

impl SqliteStore {
    pub(crate) async fn register_node(&self, name: &str, lease_ms: u64) -> Result<RegisteredNode> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        sqlx::query(END_LEASES_OF_NAME)
            .bind(name)
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await?;
        let live: i64 = sqlx::query_scalar(COUNT_LIVE)
            .bind(now.as_millis())
            .fetch_one(&mut *tx)
            .await?;
        delete_old(&mut tx, now).await?;
        let node = insert(&mut tx, name, now.plus_ms(lease_ms)).await?;
        let first = live == 0;
        if first {
            self.run_startup_jobs(&mut tx, now).await?;
        }
        tx.commit().await?;
        Ok(RegisteredNode { node, first })
    }

    pub(crate) async fn rejoin_node(
        &self,
        old: NodeId,
        name: &str,
        lease_ms: u64,
    ) -> Result<NodeId> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        sqlx::query(END_LEASES_OF_NAME)
            .bind(name)
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await?;
        end_lease(&mut tx, old, now).await?;
        delete_old(&mut tx, now).await?;
        let node = insert(&mut tx, name, now.plus_ms(lease_ms)).await?;
        tx.commit().await?;
        Ok(node)
    }

    async fn run_startup_jobs(&self, tx: &mut WriteTx, now: Timestamp) -> Result<()> {
        let Json(startup): Json<Vec<(i64, i64, i64)>> = sqlx::query_scalar(STARTUP_JOBS)
            .bind(now.as_millis())
            .fetch_one(&mut **tx)
            .await?;
        if startup.is_empty() {
            return Ok(());
        }
        let versions = startup.iter().map(|(id, version, _)| (*id, *version));
        let jobs = self.definitions.get(tx, versions).await?;
        let mut live = self.live_executors(tx, now).await?;
        let fire = Fire::at_startup(now);
        let mut runs: Vec<NewRun> = Vec::new();
        for (id, _, run_count) in startup {
            if let Some(job) = jobs.get(&id) {
                runs.extend(NewRun::of_fire(job, run_count, &mut live, &fire));
            }
        }
        new_runs::insert_and_count(tx, &mut runs, now).await?;
        Ok(())
    }

    pub(crate) async fn renew_lease(
        &self,
        node: NodeId,
        lease_ms: u64,
        reached_broker_at: Option<Timestamp>,
    ) -> Result<Option<RenewedLease>> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let renewed = sqlx::query(RENEW_LEASE)
            .bind(node.0)
            .bind(now.plus_ms(lease_ms).as_millis())
            .bind(now.as_millis())
            .bind(reached_broker_at.map(|at| at.min(now).as_millis()))
            .execute(&mut *tx)
            .await?
            .rows_affected();
        let (has_others, at): (bool, Option<i64>) = sqlx::query_as(OTHERS)
            .bind(node.0)
            .bind(now.as_millis())
            .fetch_one(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok((renewed == 1).then(|| RenewedLease {
            has_others,
            other_reached_broker_at: at.map(Timestamp::from_millis),
        }))
    }

    pub(crate) async fn release_lease(&self, node: NodeId) -> Result<()> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        end_lease(&mut tx, node, now).await?;
        sqlx::query(UNCLAIM)
            .bind(Json([node]))
            .execute(&mut *tx)
            .await?;
        tx.commit().await
    }
}

async fn insert(conn: &mut SqliteConnection, name: &str, lease_until: Timestamp) -> Result<NodeId> {
    let id: i64 = sqlx::query_scalar(INSERT)
        .bind(name)
        .bind(lease_until.as_millis())
        .fetch_one(conn)
        .await?;
    Ok(NodeId(id))
}

/// Deletes the rows of nodes whose lease ended long ago, and which have no claims.
async fn delete_old(conn: &mut SqliteConnection, now: Timestamp) -> Result<()> {
    sqlx::query(DELETE_OLD)
        .bind(now.minus_ms(KEPT_MS).as_millis())
        .execute(conn)
        .await?;
    Ok(())
}

async fn end_lease(conn: &mut SqliteConnection, node: NodeId, now: Timestamp) -> Result<()> {
    sqlx::query(END_LEASE)
        .bind(node.0)
        .bind(now.as_millis())
        .execute(conn)
        .await?;
    Ok(())
}

/// Whether the row of a node exists. A node without a row may not claim, because no other node would find its claims.
pub(crate) async fn exists(conn: &mut SqliteConnection, node: NodeId) -> Result<bool> {
    Ok(sqlx::query_scalar(EXISTS)
        .bind(node.0)
        .fetch_one(conn)
        .await?)
}

/// Returns an error for a node without a row.
pub(crate) async fn require(conn: &mut SqliteConnection, node: NodeId) -> Result<()> {
    if exists(conn, node).await? {
        return Ok(());
    }
    Err(StoreError::unregistered_node(node).into())
}

/// Ends the claims of expired nodes, except for `node`.
pub(crate) async fn unclaim_expired(
    conn: &mut SqliteConnection,
    node: NodeId,
    now: Timestamp,
) -> Result<()> {
    let expired: String = sqlx::query_scalar(EXPIRED)
        .bind(now.as_millis())
        .bind(node.0)
        .fetch_one(&mut *conn)
        .await?;
    if expired != "[]" {
        sqlx::query(UNCLAIM).bind(expired).execute(conn).await?;
    }
    Ok(())
}
