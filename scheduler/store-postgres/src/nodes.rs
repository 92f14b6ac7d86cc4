//! Scheduler nodes and their leases.

use cueline_model::Timestamp;
use cueline_store::adapter::new_run::{Fire, NewRun};
use cueline_store::{NodeId, RegisteredNode, RenewedLease, StoreError};
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::database::WriteTx;
use crate::error::Result;

/// Nodes register one at a time, so that only one of them is the first. The first number marks locks of Cueline.
const LOCK: &str = "SELECT pg_advisory_xact_lock(1131767116, 3)";

/// A name belongs to one process. A new node with the same name proves that the earlier one has ended.
const END_LEASES_OF_NAME: &str =
    "UPDATE node SET lease_until = $2 WHERE name = $1 AND lease_until > $2";
const COUNT_LIVE: &str = "SELECT count(*) FROM node WHERE lease_until > $1";
const INSERT: &str = "INSERT INTO node (name, lease_until) VALUES ($1, $2) RETURNING id";
/// The subqueries are about the other live nodes.
const RENEW_LEASE: &str = "
    UPDATE node SET lease_until = $2, reached_broker_at = $4 WHERE id = $1 AND lease_until > $3
    RETURNING (SELECT count(*) > 0 FROM node o WHERE o.id <> $1 AND o.lease_until > $3),
        (SELECT max(o.reached_broker_at) FROM node o WHERE o.id <> $1 AND o.lease_until > $3)";
const END_LEASE: &str = "UPDATE node SET lease_until = least(lease_until, $2) WHERE id = $1";

/// The lock lasts until the claiming transaction ends. Until then no other node marks this one as cleared.
const CLEARED: &str = "SELECT cleared FROM node WHERE id = $1 FOR KEY SHARE";
const SET_UNCLEARED: &str = "UPDATE node SET cleared = false WHERE id = $1";

const DELETE_OLD: &str = "DELETE FROM node WHERE lease_until < $1 AND cleared";

/// Skips a node that is claiming at this moment. The next call finds it.
const EXPIRED: &str = "
    SELECT id FROM node WHERE lease_until <= $1 AND id <> $2 AND NOT cleared ORDER BY id FOR UPDATE SKIP LOCKED";
const SET_CLEARED: &str = "
    UPDATE node SET cleared = true FROM unnest($1::bigint[]) e (id) WHERE node.id = e.id";
const UNCLAIM: &str = "
    UPDATE run_live SET claimed_by = NULL WHERE claimed_by = ANY ($1) AND state IN (0, 1)";

const STARTUP_JOBS: &str = "
    SELECT d.job_id, d.version, d.run_count FROM job j JOIN job_due d ON d.job_id = j.id
    WHERE j.startup AND j.deleted_at IS NULL AND d.enabled AND coalesce(d.paused_until <= $1, true)
    ORDER BY d.job_id FOR NO KEY UPDATE OF d";

/// How long the row of a node is kept after its lease ended.
const KEPT_MS: u64 = 24 * 3_600_000;

impl PgStore {
    pub(crate) async fn register_node(&self, name: &str, lease_ms: u64) -> Result<RegisteredNode> {
        self.watch_history().await?;
        let mut tx = self.db.write().await?;
        let now = tx.now;
        end_leases_of_name(&mut tx, name, now).await?;
        let live: i64 = sqlx::query_scalar(COUNT_LIVE)
            .bind(now.as_millis())
            .fetch_one(&mut *tx)
            .await?;
        delete_old(&mut tx, now).await?;
        let node = insert(&mut tx, name, now.plus_ms(lease_ms)).await?;
        let first = live == 0;
        if first {
            self.run_startup_jobs(&mut tx).await?;
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
        self.watch_history().await?;
        let mut tx = self.db.write().await?;
        let now = tx.now;
        end_leases_of_name(&mut tx, name, now).await?;
        end_lease(&mut tx, old, now).await?;
        delete_old(&mut tx, now).await?;
        let node = insert(&mut tx, name, now.plus_ms(lease_ms)).await?;
        tx.commit().await?;
        Ok(node)
    }

    async fn run_startup_jobs(&self, tx: &mut WriteTx) -> Result<()> {
        let now = tx.now;
        let startup: Vec<(i64, i64, i64)> = sqlx::query_as(STARTUP_JOBS)
            .bind(now.as_millis())
            .fetch_all(&mut **tx)
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
        self.insert_and_count(tx, &mut runs).await.map(drop)
    }

    /// Also notices a promoted or restored database while nothing fires.
    pub(crate) async fn renew_lease(
        &self,
        node: NodeId,
        lease_ms: u64,
        reached_broker_at: Option<Timestamp>,
    ) -> Result<Option<RenewedLease>> {
        self.watch_history().await?;
        let mut tx = self.db.write().await?;
        let now = tx.now;
        let renewed: Option<(bool, Option<i64>)> = sqlx::query_as(RENEW_LEASE)
            .bind(node.0)
            .bind(now.plus_ms(lease_ms).as_millis())
            .bind(now.as_millis())
            .bind(reached_broker_at.map(|at| at.min(now).as_millis()))
            .fetch_optional(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(renewed.map(|(has_others, at)| RenewedLease {
            has_others,
            other_reached_broker_at: at.map(Timestamp::from_millis),
        }))
    }

    /// The next claim by any node finds the claims of this one, like those of expired nodes.
    pub(crate) async fn release_lease(&self, node: NodeId) -> Result<()> {
        let mut tx = self.db.write().await?;
        let now = tx.now;
        end_lease(&mut tx, node, now).await?;
        tx.commit().await
    }
}

async fn end_leases_of_name(conn: &mut PgConnection, name: &str, now: Timestamp) -> Result<()> {
    sqlx::query(LOCK).execute(&mut *conn).await?;
    sqlx::query(END_LEASES_OF_NAME)
        .bind(name)
        .bind(now.as_millis())
        .execute(conn)
        .await?;
    Ok(())
}

/// Deletes the rows of nodes whose lease ended long ago, and which have no claims.
async fn delete_old(conn: &mut PgConnection, now: Timestamp) -> Result<()> {
    sqlx::query(DELETE_OLD)
        .bind(now.minus_ms(KEPT_MS).as_millis())
        .execute(conn)
        .await?;
    Ok(())
}

async fn end_lease(conn: &mut PgConnection, node: NodeId, now: Timestamp) -> Result<()> {
    sqlx::query(END_LEASE)
        .bind(node.0)
        .bind(now.as_millis())
        .execute(conn)
        .await?;
    Ok(())
}

async fn insert(conn: &mut PgConnection, name: &str, lease_until: Timestamp) -> Result<NodeId> {
    let id: i64 = sqlx::query_scalar(INSERT)
        .bind(name)
        .bind(lease_until.as_millis())
        .fetch_one(conn)
        .await?;
    Ok(NodeId(id))
}

/// Returns an error for a node without a row, because no other node would find its claims.
pub(crate) async fn require(conn: &mut PgConnection, node: NodeId) -> Result<()> {
    let cleared: Option<bool> = sqlx::query_scalar(CLEARED)
        .bind(node.0)
        .fetch_optional(&mut *conn)
        .await?;
    match cleared {
        Some(false) => Ok(()),
        Some(true) => set_uncleared(conn, node).await,
        None => Err(StoreError::unregistered_node(node).into()),
    }
}

/// For a node that claims after its lease has expired. Marks it, so that other nodes find its new claims.
pub(crate) async fn set_uncleared(conn: &mut PgConnection, node: NodeId) -> Result<()> {
    sqlx::query(SET_UNCLEARED)
        .bind(node.0)
        .execute(conn)
        .await?;
    Ok(())
}

/// Ends the claims of expired nodes, except for `node`.
pub(crate) async fn unclaim_expired(
    conn: &mut PgConnection,
    node: NodeId,
    now: Timestamp,
) -> Result<()> {
    let expired: Vec<i64> = sqlx::query_scalar(EXPIRED)
        .bind(now.as_millis())
        .bind(node.0)
        .fetch_all(&mut *conn)
        .await?;
    if expired.is_empty() {
        return Ok(());
    }
    for statement in [UNCLAIM, SET_CLEARED] {
        sqlx::query(statement)
            .bind(&expired)
            .execute(&mut *conn)
            .await?;
    }
    Ok(())
}
