//! Triggers jobs outside of their schedule.

use std::collections::BTreeSet;

use cueline_model::{ExecutorName, Route, RunId, Timestamp};
use cueline_store::adapter::audit::{AuditColumns, job_triggered};
use cueline_store::adapter::convert::without_nul;
use cueline_store::adapter::definitions::job_of;
use cueline_store::adapter::jobs::is_fixed_delay;
use cueline_store::adapter::live_executors::LiveExecutors;
use cueline_store::adapter::new_run::{Fire, NewRun};
use cueline_store::adapter::repeated_trigger::{
    FirstRunRow, require_same_request, runs_of_repeated,
};
use cueline_store::{ClaimedRun, NodeId, Revision, StoreError, TriggerOutcome, TriggerRequest};

use crate::columns::{column, to_i32};
use crate::database::WriteTx;
use crate::error::{Error, Result};
use crate::history::in_known_history;
use crate::partitions::Day;
use crate::{PgStore, new_runs, nodes};

mod plain;

pub(crate) use plain::TriggeredJobs;
#[cfg(test)]
pub(crate) use plain::WRITE_PLAIN;

/// Locks the job, so that requests for one job run one after the other. The key is read by a later statement, which
/// sees earlier requests. Also reads the clock, and whether the claims of the node have ended (see [`nodes::require`]).
pub(crate) const LOCK_JOB: &str = "
    SELECT d.job_id, d.version, d.run_count, coalesce($3, (extract(epoch FROM clock_timestamp()) * 1000)::bigint),
        (SELECT n.cleared FROM node n WHERE n.id = $2 FOR KEY SHARE)
    FROM job_due d WHERE d.job_id = (SELECT j.id FROM job j WHERE j.name = $1 AND j.deleted_at IS NULL) FOR NO KEY UPDATE OF d";

pub(crate) const FIND_KEY: &str =
    "SELECT first_run FROM trigger_key WHERE job_id = $1 AND key = $2";

/// The columns of [`FirstRunRow`].
pub(crate) const FIRST_RUN: &str = "SELECT params, fire_at, created_at FROM run WHERE id = $1";
pub(crate) const RUNS_OF_REQUEST: &str = "
    SELECT id FROM run WHERE fire_key = $1 AND job_id = $2 AND kind = 1 AND id >= $3 AND id < $4 ORDER BY shard_index";

/// Writes all rows of a request in one round trip, because a user waits for it. Ids ascend with the shards. Writes
/// nothing unless the history of the database is known.
pub(crate) const WRITE: &str = concat!(
    "
    WITH new AS MATERIALIZED (
        SELECT $1::bigint + nextval('run_number') AS id, e.shard, e.item, e.executor, e.position
        FROM unnest($2::integer[], $3::text[], $4::text[]) WITH ORDINALITY e (shard, item, executor, position)
        WHERE ",
    in_known_history!("$15"),
    "
    ), runs AS (
        INSERT INTO run (id, job_id, fire_key, fire_at, due_at, sequence, kind, shard_index, shard_total, shard_item, params, created_at)
        SELECT n.id, $5, (SELECT min(id) FROM new), $6, $6, $7::bigint + n.position - 1, 1, n.shard, $8, n.item, $9::text, $10 FROM new n
    ), live AS (
        INSERT INTO run_live (id, job_id, kind, state, due_at, claimed_by, delays_next_fire, executor, pinned, shard_index, fire_at)
        SELECT n.id, $5, 1, 0, $6, $11::bigint, $12, n.executor, n.executor IS NOT NULL, n.shard, $6 FROM new n
    ), counts AS (
        UPDATE job_due SET run_count = run_count + (SELECT count(*) FROM new) WHERE job_id = $5
    ), keys AS (
        INSERT INTO trigger_key (job_id, key, first_run)
        SELECT $5, $13::text, min(id) FROM new WHERE $13 IS NOT NULL HAVING min(id) IS NOT NULL
    ), events AS (
        INSERT INTO run_event (run_id, at, attempt, event, detail) SELECT n.id, $10, 1, 'triggered', 'triggered by ' || $14::text FROM new n
    ), audited AS (
        INSERT INTO audit (at, actor, address, action, action_object, namespace, group_name, object, result, detail, new_value)
        SELECT $10, $14::text, $16::text, $17::text, $18::text, $19::text, $20::text, $21::text, $22::text,
            CASE count(*) WHEN 1 THEN 'run ' || min(id) ELSE count(*) || ' runs, the first is ' || min(id) END, $23::text
        FROM new HAVING min(id) IS NOT NULL
    )
    SELECT id FROM new ORDER BY position"
);

impl PgStore {
    pub(crate) async fn trigger_claimed(
        &self,
        node: Option<NodeId>,
        request: &TriggerRequest,
    ) -> Result<(TriggerOutcome, Vec<ClaimedRun>)> {
        match self.trigger_plain(node, request).await? {
            Some(run) => Ok(triggered(vec![run])),
            None => self.trigger_in_transaction(node, request).await,
        }
    }

    async fn trigger_in_transaction(
        &self,
        node: Option<NodeId>,
        request: &TriggerRequest,
    ) -> Result<(TriggerOutcome, Vec<ClaimedRun>)> {
        let mut tx = self.db.begin_generic_plan().await?;
        let found: Option<(i64, i64, i64, i64, Option<bool>)> = sqlx::query_as(LOCK_JOB)
            .bind(request.job.as_str())
            .bind(node.map(|node| node.0))
            .bind(self.db.test_clock().map(Timestamp::as_millis))
            .fetch_optional(&mut *tx)
            .await?;
        let (job_id, version, run_count, now, cleared) =
            found.ok_or_else(|| StoreError::no_job(request.job.as_str()))?;
        let now = Timestamp::from_millis(now);
        let mut tx = WriteTx::new(tx, now);
        let key = request.idempotency_key.as_deref().map(without_nul);
        if let Some(key) = &key {
            let first: Option<i64> = sqlx::query_scalar(FIND_KEY)
                .bind(job_id)
                .bind(key.as_ref())
                .fetch_optional(&mut *tx)
                .await?;
            if let Some(first) = first {
                let row: Option<FirstRunRow> = sqlx::query_as(FIRST_RUN)
                    .bind(first)
                    .fetch_optional(&mut *tx)
                    .await?;
                if let Some(row) = row {
                    require_same_request(request, row)?;
                }
                // The keys of these runs never change, so reading them needs no lock.
                tx.roll_back().await;
                let runs = self.runs_of_request(job_id, first).await?;
                let duplicate = true;
                return Ok((TriggerOutcome { runs, duplicate }, Vec::new()));
            }
        }
        let revision = Revision {
            id: job_id,
            version,
        };
        let name = request.job.as_str();
        let condition = &request.condition;
        condition.require("trigger the job", name, Some(revision))?;
        let jobs = self.definitions.get(&mut tx, [(job_id, version)]).await?;
        let job = job_of(&jobs, job_id)?;
        let mut live = if job.spec.route == Route::Broadcast {
            self.live_executors(&mut tx, now).await?
        } else {
            LiveExecutors::default()
        };
        let fire = Fire::of_request(request, node.filter(|_| cleared.is_some()), now);
        if let (Some(node), Some(true)) = (fire.claimed_by, cleared) {
            nodes::set_uncleared(&mut tx, node).await?;
        }
        let mut runs = NewRun::of_fire(&job, run_count, &mut live, &fire);
        let entry = AuditColumns::from(&job_triggered(request, &job.spec.group));
        self.write_triggered(&mut tx, &mut runs, key.as_deref(), &entry)
            .await?;
        tx.commit().await?;
        self.triggered.remember(&job, Day::of(now));
        Ok(triggered(runs))
    }

    /// The runs of the request whose first run this is.
    async fn runs_of_request(&self, job: i64, first_run: i64) -> Result<Vec<RunId>> {
        let (low, end) = Day::of_run(first_run).ids();
        let mut conn = self.db.autocommit().await?;
        let runs: Vec<i64> = sqlx::query_scalar(RUNS_OF_REQUEST)
            .bind(first_run)
            .bind(job)
            .bind(low)
            .bind(end)
            .fetch_all(&mut *conn)
            .await?;
        conn.keep();
        let runs = runs.into_iter().map(RunId).collect();
        Ok(runs_of_repeated(first_run, runs))
    }

    /// Allocates ids and writes the runs of one request.
    async fn write_triggered(
        &self,
        tx: &mut WriteTx,
        runs: &mut [NewRun],
        key: Option<&str>,
        entry: &AuditColumns,
    ) -> Result<()> {
        let Some(first) = runs.first() else {
            return Ok(());
        };
        let now = tx.now;
        let day = Day::of(now);
        self.db
            .ensure_partitions(BTreeSet::from([day]), now)
            .await?;
        let ids: Vec<i64> = sqlx::query_scalar(WRITE)
            .bind(day.id(0))
            .bind(column(runs, |r| to_i32(r.shard.index)))
            .bind(column(runs, |r| r.shard.item.as_deref()))
            .bind(column(runs, |r| {
                r.executor.as_ref().map(ExecutorName::as_str)
            }))
            .bind(first.job.id.0)
            .bind(first.fire_at.as_millis())
            .bind(first.sequence)
            .bind(to_i32(first.shard.total))
            .bind(first.params.as_deref().map(without_nul))
            .bind(now.as_millis())
            .bind(first.claimed_by.map(|node| node.0))
            .bind(is_fixed_delay(&first.job.spec))
            .bind(key)
            .bind(&entry.actor)
            .bind(self.history.get())
            .bind(entry.address.as_deref())
            .bind(&entry.action)
            .bind(&entry.action_object)
            .bind(entry.namespace.as_deref())
            .bind(entry.group_name.as_deref())
            .bind(&entry.object)
            .bind(entry.result)
            .bind(entry.new_value.as_deref())
            .fetch_all(&mut **tx)
            .await
            .map_err(|error| failed_write(error, Error::from))?;
        if ids.len() < runs.len() {
            return Err(Error::UnknownHistory);
        }
        for (run, id) in runs.iter_mut().zip(ids) {
            run.id = id;
        }
        Ok(())
    }
}

fn failed_write(error: sqlx::Error, or: impl Fn(sqlx::Error) -> Error) -> Error {
    match error.as_database_error() {
        Some(refused) if refused.is_unique_violation() => new_runs::repeated_ids().into(),
        _ => or(error),
    }
}

/// The answer to a request that made these runs.
fn triggered(mut runs: Vec<NewRun>) -> (TriggerOutcome, Vec<ClaimedRun>) {
    let outcome = TriggerOutcome {
        runs: runs.iter().map(|run| RunId(run.id)).collect(),
        duplicate: false,
    };
    runs.retain(|run| run.claimed_by.is_some());
    (outcome, runs.into_iter().map(ClaimedRun::from).collect())
}
