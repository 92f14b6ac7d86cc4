//! Scheduler processes and their leases.

use std::collections::BTreeMap;

use cueline_model::{RunKind, Timestamp};
use cueline_store::{ErrorKind, NodeId, RegisteredNode, StoreError};
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::database::{Write, commit};
use crate::days::Day;
use crate::error::failed;
use crate::live::Live;
use crate::new_run::{Fire, NewRun};

/// Nodes register one after the other, so that only one is the first; the first number marks locks of Cueline.
const LOCK: &str = "SELECT pg_advisory_xact_lock(1131767116, 3)";

/// A name belongs to one process: its new incarnation says that the old one is dead.
const SUPERSEDE: &str = "
    UPDATE node SET lease_until = $2 WHERE name = $1 AND lease_until > $2";
const COUNT_ALIVE: &str = "SELECT count(*) FROM node WHERE lease_until > $1";
const INSERT: &str = "INSERT INTO node (name, lease_until) VALUES ($1, $2) RETURNING id";
const RENEW: &str = "UPDATE node SET lease_until = $2 WHERE id = $1 AND lease_until > $3";
const RELEASE: &str = "UPDATE node SET lease_until = least(lease_until, $2) WHERE id = $1";

/// The lock lasts as long as the transaction that claims: until then nobody marks the node as cleared.
const CLEARED: &str = "SELECT cleared FROM node WHERE id = $1 FOR KEY SHARE";
const CLAIMS_AGAIN: &str = "UPDATE node SET cleared = false WHERE id = $1";

/// Long dead, and whatever they had claimed has been taken over.
const FORGET: &str = "DELETE FROM node WHERE lease_until < $1 AND cleared";

/// One that is claiming at this very moment is left to the next call.
const DEAD: &str = "
    SELECT id FROM node WHERE lease_until <= $1 AND id <> $2 AND NOT cleared ORDER BY id FOR UPDATE SKIP LOCKED";
const CLEAR: &str = "
    UPDATE node SET cleared = true FROM unnest($1::bigint[]) e (id) WHERE node.id = e.id";
pub(crate) const UNCLAIM: &str = "
    UPDATE run_live SET claimed_by = NULL WHERE claimed_by = ANY ($1) AND state IN (0, 1)";

const STARTUP_JOBS: &str = "
    SELECT d.job_id, d.version, d.turn FROM job j JOIN job_due d ON d.job_id = j.id
    WHERE j.startup AND j.deleted_at IS NULL AND d.enabled ORDER BY d.job_id FOR NO KEY UPDATE OF d";

pub(crate) const ADD_TURNS: &str = "
    UPDATE job_due SET turn = turn + e.turns FROM unnest($1::bigint[], $2::bigint[]) e (job_id, turns)
    WHERE job_due.job_id = e.job_id";

/// A node's row is kept this long after its lease ended.
const REMEMBERED_MS: u64 = 24 * 3_600_000;

impl PgStore {
    pub(crate) async fn register(
        &self,
        name: &str,
        lease_ms: u64,
    ) -> Result<RegisteredNode, StoreError> {
        let fail = failed("register a node");
        let mut tx = self.db.write().await?;
        let now = tx.now;
        supersede(&mut tx, name, now).await?;
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
            self.run_startup_jobs(&mut tx).await?;
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
        let mut tx = self.db.write().await?;
        let now = tx.now;
        supersede(&mut tx, name, now).await?;
        sqlx::query(RELEASE)
            .bind(old.0)
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await
            .map_err(failed("register a node anew"))?;
        let id = insert(&mut tx, name, now.plus_ms(lease_ms)).await?;
        commit(tx).await?;
        Ok(NodeId(id))
    }

    async fn run_startup_jobs(&self, write: &mut Write) -> Result<(), StoreError> {
        let now = write.now;
        let due: Vec<(i64, i64, i64)> = sqlx::query_as(STARTUP_JOBS)
            .fetch_all(&mut **write)
            .await
            .map_err(failed("read the startup jobs"))?;
        if due.is_empty() {
            return Ok(());
        }
        let versions = due.iter().map(|(id, version, _)| (*id, *version));
        let jobs = self.definitions.of(write, versions).await?;
        let mut live = Live::load(write, now, self.db.executor_dead_after_ms()).await?;
        let mut runs = Vec::new();
        let fire = Fire {
            kind: RunKind::Startup,
            key: now.as_millis(),
            day: Day::of(now),
            at: now,
            due_at: now,
            claimed_by: None,
            parent: None,
            params: None,
        };
        for (job, _, turn) in due {
            let Some(job) = jobs.get(&job) else { continue };
            runs.extend(NewRun::of_fire(job, turn, &mut live, &fire));
        }
        self.write_with_turns(write, &mut runs).await.map(drop)
    }

    pub(crate) async fn renew(&self, node: NodeId, lease_ms: u64) -> Result<bool, StoreError> {
        let mut tx = self.db.write().await?;
        let now = tx.now;
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

    /// What it had claimed is found with that of other dead nodes by whoever claims next.
    pub(crate) async fn release(&self, node: NodeId) -> Result<(), StoreError> {
        let mut tx = self.db.write().await?;
        let now = tx.now;
        sqlx::query(RELEASE)
            .bind(node.0)
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await
            .map_err(failed("release a node"))?;
        commit(tx).await
    }

    /// Writes runs made outside of the planner, and counts them as turns of their jobs; how many were not there before.
    pub(crate) async fn write_with_turns(
        &self,
        write: &mut Write,
        runs: &mut [NewRun],
    ) -> Result<usize, StoreError> {
        let left_out = self.insert(write, runs).await?;
        let mut turns: BTreeMap<i64, i64> = BTreeMap::new();
        for run in runs.iter().filter(|r| !left_out.contains(&r.id)) {
            *turns.entry(run.job.id.0).or_default() += 1;
        }
        let (jobs, turns): (Vec<i64>, Vec<i64>) = turns.into_iter().unzip();
        sqlx::query(ADD_TURNS)
            .bind(jobs)
            .bind(turns)
            .execute(&mut **write)
            .await
            .map_err(failed("count the turns of jobs"))?;
        Ok(runs.len() - left_out.len())
    }
}

/// Ends the leases of earlier nodes of that name, one registration at a time.
async fn supersede(conn: &mut PgConnection, name: &str, now: Timestamp) -> Result<(), StoreError> {
    let fail = failed("register a node");
    sqlx::query(LOCK).execute(&mut *conn).await.map_err(&fail)?;
    sqlx::query(SUPERSEDE)
        .bind(name)
        .bind(now.as_millis())
        .execute(conn)
        .await
        .map(drop)
        .map_err(&fail)
}

async fn insert(
    conn: &mut PgConnection,
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

/// Refuses a node that was never registered, or so long ago that it is forgotten: nobody would find what it claims.
pub(crate) async fn known(conn: &mut PgConnection, node: NodeId) -> Result<(), StoreError> {
    let fail = failed("look up a node");
    let cleared: Option<bool> = sqlx::query_scalar(CLEARED)
        .bind(node.0)
        .fetch_optional(&mut *conn)
        .await
        .map_err(&fail)?;
    match cleared {
        Some(false) => Ok(()),
        Some(true) => claims_again(conn, node).await,
        None => Err(StoreError::new(
            ErrorKind::Conflict,
            format!("failed to claim for node {}: it is not registered", node.0),
        )),
    }
}

/// A node claims although its lease is over: what it claims has to be found again.
pub(crate) async fn claims_again(conn: &mut PgConnection, node: NodeId) -> Result<(), StoreError> {
    sqlx::query(CLAIMS_AGAIN)
        .bind(node.0)
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("look up a node"))
}

/// Takes the claims from nodes whose lease ran out, `node` itself left out.
pub(crate) async fn unclaim_dead(
    conn: &mut PgConnection,
    node: NodeId,
    now: Timestamp,
) -> Result<(), StoreError> {
    let fail = failed("take over the runs of dead nodes");
    let dead: Vec<i64> = sqlx::query_scalar(DEAD)
        .bind(now.as_millis())
        .bind(node.0)
        .fetch_all(&mut *conn)
        .await
        .map_err(&fail)?;
    if dead.is_empty() {
        return Ok(());
    }
    for statement in [UNCLAIM, CLEAR] {
        sqlx::query(statement)
            .bind(&dead)
            .execute(&mut *conn)
            .await
            .map_err(&fail)?;
    }
    Ok(())
}
