//! Scheduler processes and their leases.

use cueline_model::{RunKind, Timestamp};
use cueline_store::{ErrorKind, NodeId, RegisteredNode, StoreError};
use sqlx::SqliteConnection;

use crate::SqliteStore;
use crate::database::commit;
use crate::error::failed;
use crate::live::Live;
use crate::new_run::{self, Fire, NewRun};
use crate::rows::{decode, encode, int};

/// A name belongs to one process: its new incarnation says that the old one is dead.
const SUPERSEDE: &str = "UPDATE node SET lease_until = min(lease_until, ?2) WHERE name = ?1";
const COUNT_ALIVE: &str = "SELECT count(*) FROM node WHERE lease_until > ?1";
const INSERT: &str = "INSERT INTO node (name, lease_until) VALUES (?1, ?2) RETURNING id";
const RENEW: &str = "UPDATE node SET lease_until = ?2 WHERE id = ?1 AND lease_until > ?3";
const RELEASE: &str = "UPDATE node SET lease_until = min(lease_until, ?2) WHERE id = ?1";
const EXISTS: &str = "SELECT count(*) FROM node WHERE id = ?1";
/// Long dead, and whatever they had claimed has been taken over.
const FORGET: &str = "
    DELETE FROM node WHERE lease_until < ?1
        AND NOT EXISTS (SELECT 1 FROM run WHERE state IN (0, 1) AND state < 10 AND claimed_by = node.id)";
const DEAD: &str = "SELECT json_group_array(id) FROM node WHERE lease_until <= ?1 AND id <> ?2";
const UNCLAIM: &str = "
    UPDATE run SET claimed_by = NULL
    WHERE state IN (0, 1) AND state < 10 AND claimed_by IN (SELECT value FROM json_each(?1))";
const STARTUP_JOBS: &str = "
    SELECT json_group_array(json_array(d.job_id, d.version, d.turn))
    FROM job j CROSS JOIN job_due d ON d.job_id = j.id
    WHERE j.startup = 1 AND j.deleted_at IS NULL AND d.enabled = 1";
pub(crate) const ADD_TURNS: &str = "
    UPDATE job_due SET turn = turn + (e.value ->> 1) FROM json_each(?1) e WHERE job_id = e.value ->> 0";

/// A node's row is kept this long after its lease ended.
const REMEMBERED_MS: u64 = 24 * 3_600_000;

impl SqliteStore {
    pub(crate) async fn register(
        &self,
        name: &str,
        lease_ms: u64,
    ) -> Result<RegisteredNode, StoreError> {
        let fail = failed("register a node");
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        sqlx::query(SUPERSEDE)
            .bind(name)
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        let alive: i64 = sqlx::query_scalar(COUNT_ALIVE)
            .bind(now.as_millis())
            .fetch_one(&mut *tx)
            .await
            .map_err(&fail)?;
        sqlx::query(FORGET)
            .bind(now.minus_ms(REMEMBERED_MS).as_millis())
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        let id = insert(&mut tx, name, now.plus_ms(lease_ms)).await?;
        let first = alive == 0;
        if first {
            self.run_startup_jobs(&mut tx, now).await?;
        }
        commit(tx).await?;
        Ok(RegisteredNode {
            node: NodeId(id),
            first,
        })
    }

    pub(crate) async fn rejoin(
        &self,
        old: NodeId,
        name: &str,
        lease_ms: u64,
    ) -> Result<NodeId, StoreError> {
        let fail = failed("register a node anew");
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        sqlx::query(SUPERSEDE)
            .bind(name)
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        sqlx::query(RELEASE)
            .bind(old.0)
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        let id = insert(&mut tx, name, now.plus_ms(lease_ms)).await?;
        commit(tx).await?;
        Ok(NodeId(id))
    }

    async fn run_startup_jobs(
        &self,
        conn: &mut SqliteConnection,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let text: String = sqlx::query_scalar(STARTUP_JOBS)
            .fetch_one(&mut *conn)
            .await
            .map_err(failed("read the startup jobs"))?;
        let due: Vec<(i64, i64, i64)> = decode(&text)?;
        if due.is_empty() {
            return Ok(());
        }
        let versions = due.iter().map(|(id, version, _)| (*id, *version));
        let jobs = self.definitions.of(conn, versions).await?;
        let mut live = Live::load(conn, now, self.db.executor_dead_after_ms()).await?;
        let mut id = new_run::last_id(conn).await? + 1;
        let mut runs = Vec::new();
        let fire = Fire {
            kind: RunKind::Startup,
            key: Some(now.as_millis()),
            at: now,
            due_at: now,
            claimed_by: None,
            parent: None,
            params: None,
        };
        for (job, _, turn) in due {
            let Some(job) = jobs.get(&job) else { continue };
            let more = NewRun::of_fire(id, job, turn, &mut live, &fire);
            id += int(more.len());
            runs.extend(more);
        }
        write_with_turns(conn, &runs, now).await.map(drop)
    }

    pub(crate) async fn renew(&self, node: NodeId, lease_ms: u64) -> Result<bool, StoreError> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let renewed = sqlx::query(RENEW)
            .bind(node.0)
            .bind(now.plus_ms(lease_ms).as_millis())
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await
            .map_err(failed("renew a node's lease"))?
            .rows_affected();
        commit(tx).await?;
        Ok(renewed == 1)
    }

    pub(crate) async fn release(&self, node: NodeId) -> Result<(), StoreError> {
        let fail = failed("release a node");
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        sqlx::query(RELEASE)
            .bind(node.0)
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        sqlx::query(UNCLAIM)
            .bind(encode(&[node.0])?)
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        commit(tx).await
    }
}

async fn insert(
    conn: &mut SqliteConnection,
    name: &str,
    lease_until: Timestamp,
) -> Result<i64, StoreError> {
    sqlx::query_scalar(INSERT)
        .bind(name)
        .bind(lease_until.as_millis())
        .fetch_one(conn)
        .await
        .map_err(failed("register a node"))
}

/// Writes runs made outside of the planner and counts them as turns of their jobs; how many were not there before.
pub(crate) async fn write_with_turns(
    conn: &mut SqliteConnection,
    runs: &[NewRun],
    now: Timestamp,
) -> Result<usize, StoreError> {
    let left_out = new_run::insert(conn, runs, now).await?;
    let mut turns: std::collections::BTreeMap<i64, i64> = std::collections::BTreeMap::new();
    for run in runs.iter().filter(|r| !left_out.contains(&r.id)) {
        *turns.entry(run.job.id.0).or_default() += 1;
    }
    let turns: Vec<(i64, i64)> = turns.into_iter().collect();
    sqlx::query(ADD_TURNS)
        .bind(encode(&turns)?)
        .execute(conn)
        .await
        .map_err(failed("count the turns of jobs"))?;
    Ok(runs.len() - left_out.len())
}

/// Refuses a node that was never registered, or so long ago that it is forgotten: nobody would find what it claims.
pub(crate) async fn known(conn: &mut SqliteConnection, node: NodeId) -> Result<(), StoreError> {
    let found: i64 = sqlx::query_scalar(EXISTS)
        .bind(node.0)
        .fetch_one(conn)
        .await
        .map_err(failed("look up a node"))?;
    if found == 1 {
        return Ok(());
    }
    Err(StoreError::new(
        ErrorKind::Conflict,
        format!("failed to claim for node {}: it is not registered", node.0),
    ))
}

/// The node, if it may claim.
pub(crate) async fn may_claim(
    conn: &mut SqliteConnection,
    node: NodeId,
) -> Result<Option<NodeId>, StoreError> {
    match known(conn, node).await {
        Ok(()) => Ok(Some(node)),
        Err(e) if e.kind() == ErrorKind::Conflict => Ok(None),
        Err(e) => Err(e),
    }
}

/// Takes the claims from nodes whose lease ran out, `node` itself left out.
pub(crate) async fn unclaim_dead(
    conn: &mut SqliteConnection,
    node: NodeId,
    now: Timestamp,
) -> Result<(), StoreError> {
    let fail = failed("take over the runs of dead nodes");
    let dead: String = sqlx::query_scalar(DEAD)
        .bind(now.as_millis())
        .bind(node.0)
        .fetch_one(&mut *conn)
        .await
        .map_err(&fail)?;
    if dead == "[]" {
        return Ok(());
    }
    sqlx::query(UNCLAIM)
        .bind(dead)
        .execute(conn)
        .await
        .map(drop)
        .map_err(&fail)
}
