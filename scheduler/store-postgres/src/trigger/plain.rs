//! Plain trigger requests, which are nearly all: now, without a key and a condition, for a job with one run in a fire.
//!
//! For a job that was triggered before, such a request is one statement, which is its own transaction. A user waits for it,
//! and so does the run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cueline_model::{Job, JobName, Route, Shard, Timestamp};
use cueline_store::adapter::audit::{AuditColumns, job_triggered};
use cueline_store::adapter::convert::without_nul;
use cueline_store::adapter::jobs::is_fixed_delay;
use cueline_store::adapter::live_executors::LiveExecutors;
use cueline_store::adapter::new_run::{Fire, NewRun};
use cueline_store::{NodeId, Precondition, TriggerRequest};

use super::failed_write;
use crate::PgStore;
use crate::error::{Error, Result};
use crate::history::in_known_history;
use crate::partitions::Day;

/// Writes nothing unless the job has this version, the history of the database is known, the time is within the day of the
/// id, and other nodes find the claims of this one. It waits for changes of the job, and then sees its new version.
pub(crate) const WRITE_PLAIN: &str = concat!(
    "
    WITH clock AS MATERIALIZED (
        SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now
    ), claimant AS MATERIALIZED (
        SELECT n.id FROM node n WHERE n.id = $2 AND NOT n.cleared FOR KEY SHARE
    ), job AS (
        UPDATE job_due d SET run_count = d.run_count + 1
        WHERE d.job_id = $3 AND d.version = $4 AND (SELECT c.now FROM clock c) BETWEEN $5 AND $6
            AND ($2::bigint IS NULL OR EXISTS (SELECT FROM claimant)) AND ",
    in_known_history!("$7"),
    "
        RETURNING d.run_count - 1 AS sequence
    ), new AS MATERIALIZED (
        SELECT $8::bigint + nextval('run_number') AS id, (SELECT c.now FROM clock c) AS now, j.sequence FROM job j
    ), runs AS (
        INSERT INTO run (id, job_id, fire_key, fire_at, due_at, sequence, kind, shard_index, shard_total, params, created_at)
        SELECT n.id, $3, n.id, n.now, n.now, n.sequence, 1, 0, 1, $9::text, n.now FROM new n
    ), live AS (
        INSERT INTO run_live (id, job_id, kind, state, due_at, claimed_by, delays_next_fire, pinned, shard_index, fire_at)
        SELECT n.id, $3, 1, 0, n.now, $2, $10, false, 0, n.now FROM new n
    ), events AS (
        INSERT INTO run_event (run_id, at, attempt, event, detail)
        SELECT n.id, n.now, 1, 'triggered', 'triggered by ' || $11::text FROM new n
    ), audited AS (
        INSERT INTO audit (at, actor, address, action, action_object, namespace, group_name, object, result, detail, new_value)
        SELECT n.now, $11::text, $12::text, $13::text, $14::text, $15::text, $16::text, $17::text, $18::text, 'run ' || n.id, $19::text
        FROM new n
    )
    SELECT id, sequence, now FROM new"
);

/// The most jobs in [`TriggeredJobs`]. It is cleared before it would exceed this number.
const MAX_REMEMBERED: usize = 10_000;

/// The jobs of earlier requests, with the day of each request.
#[derive(Debug, Default)]
pub(crate) struct TriggeredJobs(Mutex<HashMap<JobName, (Arc<Job>, Day)>>);

impl TriggeredJobs {
    fn get(&self, name: &JobName) -> Option<(Arc<Job>, Day)> {
        self.jobs().get(name).cloned()
    }

    pub(super) fn remember(&self, job: &Arc<Job>, day: Day) {
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

impl PgStore {
    /// The run of the request. `None` if the request or its job is not plain, or if the job was not triggered before in
    /// this version and on this day. Then nothing was written.
    pub(super) async fn trigger_plain(
        &self,
        node: Option<NodeId>,
        request: &TriggerRequest,
    ) -> Result<Option<NewRun>> {
        let is_plain = request.idempotency_key.is_none()
            && request.run_at.is_none()
            && request.condition == Precondition::None;
        let Some((job, day)) = self.triggered.get(&request.job).filter(|_| is_plain) else {
            return Ok(None);
        };
        let Some((first, last)) = day.times().filter(|_| job.spec.route != Route::Broadcast) else {
            return Ok(None);
        };
        // The statement decides on the time and the number.
        let fire = Fire::of_request(request, node, first);
        let mut runs = NewRun::of_fire(&job, 0, &mut LiveExecutors::default(), &fire);
        let Some(mut run) = runs.pop().filter(|run| run.shard == Shard::whole()) else {
            return Ok(None);
        };
        let Some(mut conn) = self.db.generic_plan_for_request().await? else {
            return Ok(None);
        };
        let audit = AuditColumns::from(&job_triggered(request, &job.spec.group));
        let written: std::result::Result<Option<(i64, i64, i64)>, _> = sqlx::query_as(WRITE_PLAIN)
            .bind(self.db.test_clock().map(Timestamp::as_millis))
            .bind(run.claimed_by.map(|node| node.0))
            .bind(job.id.0)
            .bind(job.version)
            .bind(first.as_millis())
            .bind(last.as_millis())
            .bind(self.history.get())
            .bind(day.id(0))
            .bind(run.params.as_deref().map(without_nul))
            .bind(is_fixed_delay(&job.spec))
            .bind(&audit.actor)
            .bind(audit.address.as_deref())
            .bind(&audit.action)
            .bind(&audit.action_object)
            .bind(audit.namespace.as_deref())
            .bind(audit.group_name.as_deref())
            .bind(&audit.object)
            .bind(audit.result)
            .bind(audit.new_value.as_deref())
            .fetch_optional(&mut *conn)
            .await;
        let written = written.map_err(|error| {
            // The partition of the day may be missing. A repetition in a transaction makes it.
            self.triggered.clear();
            failed_write(error, Error::autocommit)
        })?;
        conn.keep();
        Ok(written.map(|(id, sequence, now)| {
            let at = Timestamp::from_millis(now);
            (run.id, run.sequence, run.fire_at, run.due_at) = (id, sequence, at, at);
            run
        }))
    }
}
