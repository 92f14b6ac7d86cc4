//! Triggers jobs outside of their schedule.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cueline_model::{ExecutorName, Job, JobName, Route, RunId, Timestamp};
use cueline_store::adapter::audit::{AuditColumns, job_triggered};
use cueline_store::adapter::convert::without_nul;
use cueline_store::adapter::definitions::job_of;
use cueline_store::adapter::jobs::is_fixed_delay;
use cueline_store::adapter::live_executors::LiveExecutors;
use cueline_store::adapter::new_run::{Fire, NewRun};
use cueline_store::adapter::repeated_trigger::{
    FirstRunRow, require_same_request, runs_of_repeated,
};
use cueline_store::{
    ClaimedRun, NodeId, Precondition, Revision, StoreError, TriggerOutcome, TriggerRequest,
};
use sqlx::postgres::PgConnection;

use crate::columns::{column, to_i32};
use crate::database::WriteTx;
use crate::error::{Error, Result};
use crate::history::in_known_history;
use crate::partitions::Day;
use crate::{PgStore, new_runs, nodes};

/// Locks the job, so that requests for one job run one after the other. The key is read by a later statement, which
/// sees earlier requests. Also reads the clock, and whether the claims of the node have ended (see [`nodes::require`]).
pub(crate) const LOCK_JOB: &str = "
    SELECT d.job_id, d.version, coalesce($3, (extract(epoch FROM clock_timestamp()) * 1000)::bigint),
        (SELECT n.cleared FROM node n WHERE n.id = $2 FOR KEY SHARE)
    FROM job_due d WHERE d.job_id = (SELECT j.id FROM job j WHERE j.name = $1 AND j.deleted_at IS NULL) FOR NO KEY UPDATE OF d";

pub(crate) const FIND_KEY: &str =
    "SELECT first_run FROM trigger_key WHERE job_id = $1 AND key = $2";

/// The columns of [`FirstRunRow`].
pub(crate) const FIRST_RUN: &str = "SELECT params, fire_at, created_at FROM run WHERE id = $1";
pub(crate) const RUNS_OF_REQUEST: &str = "
    SELECT id FROM run WHERE fire_key = $1 AND job_id = $2 AND kind = 1 AND id >= $3 AND id < $4 ORDER BY shard_index";

/// Writes all rows of a request in one round trip, because a user waits for it. Ids ascend with the shards. Returns the id
/// of each run, the number of earlier runs of the job, and the time.
///
/// Writes nothing unless the job has this version, the history of the database is known, the time is within the day of
/// the ids, and other nodes find the claims of this one. The caller may have locked and checked that, or may not.
pub(crate) const WRITE: &str = concat!(
    "
    WITH job AS MATERIALIZED (
        SELECT d.run_count, coalesce($7::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now
        FROM job_due d WHERE d.job_id = $5 AND d.version = $10 FOR NO KEY UPDATE OF d
    ), claimant AS MATERIALIZED (
        SELECT n.id FROM node n WHERE n.id = $11 AND NOT n.cleared FOR KEY SHARE
    ), new AS MATERIALIZED (
        SELECT $1::bigint + nextval('run_number') AS id, (SELECT j.now FROM job j) AS now, (SELECT j.run_count FROM job j) AS run_count,
            coalesce($6::bigint, (SELECT j.now FROM job j)) AS at, e.shard, e.item, e.executor, e.position
        FROM unnest($2::integer[], $3::text[], $4::text[]) WITH ORDINALITY e (shard, item, executor, position)
        WHERE (SELECT j.now FROM job j) BETWEEN $24::bigint AND $25::bigint AND ($11::bigint IS NULL OR EXISTS (SELECT FROM claimant))
            AND ",
    in_known_history!("$15"),
    "
    ), runs AS (
        INSERT INTO run (id, job_id, fire_key, fire_at, due_at, sequence, kind, shard_index, shard_total, shard_item, params, created_at)
        SELECT n.id, $5, (SELECT min(id) FROM new), n.at, n.at, n.run_count + n.position - 1, 1, n.shard, $8, n.item, $9::text, n.now
        FROM new n
    ), live AS (
        INSERT INTO run_live (id, job_id, kind, state, due_at, claimed_by, delays_next_fire, executor, pinned, shard_index, fire_at)
        SELECT n.id, $5, 1, 0, n.at, $11::bigint, $12, n.executor, n.executor IS NOT NULL, n.shard, n.at FROM new n
    ), counts AS (
        UPDATE job_due SET run_count = run_count + (SELECT count(*) FROM new) WHERE job_id = $5 AND EXISTS (SELECT FROM new)
    ), keys AS (
        INSERT INTO trigger_key (job_id, key, first_run)
        SELECT $5, $13::text, min(id) FROM new WHERE $13 IS NOT NULL HAVING min(id) IS NOT NULL
    ), events AS (
        INSERT INTO run_event (run_id, at, attempt, event, detail) SELECT n.id, n.now, 1, 'triggered', 'triggered by ' || $14::text FROM new n
    ), audited AS (
        INSERT INTO audit (at, actor, address, action, action_object, namespace, group_name, object, result, detail, new_value)
        SELECT min(now), $14::text, $16::text, $17::text, $18::text, $19::text, $20::text, $21::text, $22::text,
            CASE count(*) WHEN 1 THEN 'run ' || min(id) ELSE count(*) || ' runs, the first is ' || min(id) END, $23::text
        FROM new HAVING min(id) IS NOT NULL
    )
    SELECT id, run_count, now FROM new ORDER BY position"
);

/// The most jobs in [`TriggeredJobs`]. It is cleared before it would exceed this number.
const MAX_REMEMBERED: usize = 10_000;

/// The jobs of earlier requests, with the day of each request. A request for one of them needs no transaction that reads
/// before it writes: its statement writes nothing if the version or the day is another one by now.
#[derive(Debug, Default)]
pub(crate) struct TriggeredJobs(Mutex<HashMap<JobName, (Arc<Job>, Day)>>);

impl TriggeredJobs {
    fn get(&self, name: &JobName) -> Option<(Arc<Job>, Day)> {
        self.jobs().get(name).cloned()
    }

    fn remember(&self, job: &Arc<Job>, day: Day) {
        let mut jobs = self.jobs();
        if jobs.len() >= MAX_REMEMBERED {
            jobs.clear();
        }
        jobs.insert(job.spec.name.clone(), (Arc::clone(job), day));
    }

    /// Forgets all jobs. Call it when the database may have lost versions, because it issues them again.
    pub(crate) fn clear(&self) {
        self.jobs().clear();
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<JobName, (Arc<Job>, Day)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is written besides the runs, and on which conditions.
struct Write<'a> {
    key: Option<&'a str>,
    audit: &'a AuditColumns,
    /// `None` for the time of the database's clock.
    now: Option<Timestamp>,
    /// The requested time. `None` for the present.
    run_at: Option<Timestamp>,
    day: Day,
    /// The times at which the ids of that day may be allocated.
    between: (Timestamp, Timestamp),
}

impl PgStore {
    pub(crate) async fn trigger_claimed(
        &self,
        node: Option<NodeId>,
        request: &TriggerRequest,
    ) -> Result<(TriggerOutcome, Vec<ClaimedRun>)> {
        match self.trigger_at_once(node, request).await? {
            Some(runs) => Ok(triggered(runs)),
            None => self.trigger_in_transaction(node, request).await,
        }
    }

    /// Writes a plain request for a job of earlier requests by one statement, which is its own transaction. `None` if
    /// that is not possible; then nothing was written.
    async fn trigger_at_once(
        &self,
        node: Option<NodeId>,
        request: &TriggerRequest,
    ) -> Result<Option<Vec<NewRun>>> {
        let is_plain = request.idempotency_key.is_none()
            && request.run_at.is_none()
            && request.condition == Precondition::None;
        let Some((job, day)) = self.triggered.get(&request.job).filter(|_| is_plain) else {
            return Ok(None);
        };
        let (Some(between), true) = (day.times(), job.spec.route != Route::Broadcast) else {
            return Ok(None);
        };
        let Some(mut request_conn) = self.db.generic_plan_for_request().await? else {
            return Ok(None);
        };
        // The statement sets the times and the first number.
        let fire = Fire::of_request(request, node, between.0);
        let mut runs = NewRun::of_fire(&job, 0, &mut LiveExecutors::default(), &fire);
        let write = Write {
            key: None,
            audit: &AuditColumns::from(&job_triggered(request, &job.spec.group)),
            now: self.db.test_clock(),
            run_at: None,
            day,
            between,
        };
        let written = write_runs(
            &mut request_conn.conn,
            self.history.get(),
            &mut runs,
            &write,
        )
        .await;
        let is_written = written.map_err(|error| {
            // The partition of the day may be missing, which only a repetition in a transaction finds out.
            self.triggered.clear();
            failed_write(error, Error::autocommit)
        })?;
        Ok(is_written.then_some(runs))
    }

    async fn trigger_in_transaction(
        &self,
        node: Option<NodeId>,
        request: &TriggerRequest,
    ) -> Result<(TriggerOutcome, Vec<ClaimedRun>)> {
        let mut tx = self.db.begin_generic_plan().await?;
        let found: Option<(i64, i64, i64, Option<bool>)> = sqlx::query_as(LOCK_JOB)
            .bind(request.job.as_str())
            .bind(node.map(|node| node.0))
            .bind(self.db.test_clock().map(Timestamp::as_millis))
            .fetch_optional(&mut *tx)
            .await?;
        let (job_id, version, now, cleared) =
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
        let mut runs = NewRun::of_fire(&job, 0, &mut live, &fire);
        let day = Day::of(now);
        self.db
            .ensure_partitions(BTreeSet::from([day]), now)
            .await?;
        let write = Write {
            key: key.as_deref(),
            audit: &AuditColumns::from(&job_triggered(request, &job.spec.group)),
            now: Some(now),
            run_at: request.run_at,
            day,
            between: (now, now),
        };
        let written = write_runs(&mut tx, self.history.get(), &mut runs, &write).await;
        let is_written = written.map_err(|error| failed_write(error, Error::from))?;
        if !is_written && !runs.is_empty() {
            return Err(Error::UnknownHistory);
        }
        tx.commit().await?;
        self.triggered.remember(&job, day);
        Ok(triggered(runs))
    }

    /// The runs of the request whose first run this is.
    async fn runs_of_request(&self, job: i64, first_run: i64) -> Result<Vec<RunId>> {
        let (low, end) = Day::of_run(first_run).ids();
        let runs: Vec<i64> = sqlx::query_scalar(RUNS_OF_REQUEST)
            .bind(first_run)
            .bind(job)
            .bind(low)
            .bind(end)
            .fetch_all(&mut *self.db.autocommit().await?)
            .await?;
        let runs = runs.into_iter().map(RunId).collect();
        Ok(runs_of_repeated(first_run, runs))
    }
}

/// Allocates ids and writes the runs of one request. Returns whether it did.
async fn write_runs(
    conn: &mut PgConnection,
    history: Option<String>,
    runs: &mut [NewRun],
    write: &Write<'_>,
) -> std::result::Result<bool, sqlx::Error> {
    let Some(first) = runs.first() else {
        return Ok(false);
    };
    let audit = write.audit;
    let written: Vec<(i64, i64, i64)> = sqlx::query_as(WRITE)
        .bind(write.day.id(0))
        .bind(column(runs, |r| to_i32(r.shard.index)))
        .bind(column(runs, |r| r.shard.item.as_deref()))
        .bind(column(runs, |r| {
            r.executor.as_ref().map(ExecutorName::as_str)
        }))
        .bind(first.job.id.0)
        .bind(write.run_at.map(Timestamp::as_millis))
        .bind(write.now.map(Timestamp::as_millis))
        .bind(to_i32(first.shard.total))
        .bind(first.params.as_deref().map(without_nul))
        .bind(first.job.version)
        .bind(first.claimed_by.map(|node| node.0))
        .bind(is_fixed_delay(&first.job.spec))
        .bind(write.key)
        .bind(&audit.actor)
        .bind(history)
        .bind(audit.address.as_deref())
        .bind(&audit.action)
        .bind(&audit.action_object)
        .bind(audit.namespace.as_deref())
        .bind(audit.group_name.as_deref())
        .bind(&audit.object)
        .bind(audit.result)
        .bind(audit.new_value.as_deref())
        .bind(write.between.0.as_millis())
        .bind(write.between.1.as_millis())
        .fetch_all(conn)
        .await?;
    let is_written = !written.is_empty();
    for (run, (id, run_count, now)) in runs.iter_mut().zip(written) {
        let at = write.run_at.unwrap_or(Timestamp::from_millis(now));
        run.id = id;
        run.sequence += run_count;
        (run.fire_at, run.due_at) = (at, at);
    }
    Ok(is_written)
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
