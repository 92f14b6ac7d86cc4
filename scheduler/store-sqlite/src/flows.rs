//! Reads, cancels and retries flow runs.

use std::sync::Arc;

use async_trait::async_trait;
use cueline_model::{Actor, Job, JobName, Namespace, RunId, Timestamp};
use cueline_store::adapter::audit::{flow_cancelled, flow_retried};
use cueline_store::adapter::convert::to_i64;
use cueline_store::adapter::flow_runs::{
    FlowMember, FlowMemberRow, flow_cancelled_message, flow_counts, jobs_of, members_of, origin,
    parts_of, run_ids, sorted_jobs, to_cancel, to_retry,
};
use cueline_store::{
    CancelledFlow, FlowCounts, FlowRun, FlowStore, MAX_FLOW_JOBS, MAX_FLOW_RUNS, MAX_SHOWN_RUNS,
    RetriedFlow, StoreError,
};
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::error::Result;
use crate::runs::read_runs;
use crate::{SqliteStore, audit};

/// The flow run of a run.
pub(crate) const FLOW_OF: &str = "
    SELECT CASE WHEN o.kind IN (1, 2) THEN o.fire_key ELSE
        (SELECT min(r.id) FROM run r WHERE r.fire_key = o.fire_key AND r.job_id = o.job_id AND r.kind = o.kind) END
    FROM run o WHERE o.id = ?1";

/// The runs of flow runs, as `flow` and `run`.
macro_rules! members {
    () => {
        "SELECT e.value AS flow, r.id AS run FROM json_each(?1) e CROSS JOIN run r ON r.fire_key = e.value AND r.kind IN (1, 2)
        UNION
        SELECT e.value, r.id FROM json_each(?1) e CROSS JOIN run o ON o.id = e.value AND o.kind NOT IN (1, 2)
            CROSS JOIN run r ON r.fire_key = o.fire_key AND r.job_id = o.job_id AND r.kind = o.kind"
    };
}

/// Rows of [`FlowMemberRow`].
pub(crate) const MEMBERS: &str = concat!(
    "SELECT r.id, r.job_id, r.state, r.attempt, r.cancel_requested, r.kind, d.version, coalesce(d.enabled, 0), d.paused_until, j.name, j.group_name FROM (",
    members!(),
    " ORDER BY run LIMIT ?2) m CROSS JOIN run r ON r.id = m.run CROSS JOIN job j ON j.id = r.job_id LEFT JOIN job_due d ON d.job_id = r.job_id ORDER BY r.id"
);

pub(crate) const COUNTS: &str = concat!(
    "SELECT json_group_array(json_array(flow, state, runs)) FROM (SELECT m.flow, r.state, count(*) AS runs FROM (",
    members!(),
    ") m CROSS JOIN run r ON r.id = m.run GROUP BY m.flow, r.state ORDER BY m.flow, r.state)"
);

/// The given jobs and those after them that are not deleted, the nearest first, with their versions.
pub(crate) const JOBS_AFTER: &str = "
    WITH RECURSIVE below (job) AS (
        SELECT value FROM json_each(?1)
        UNION
        SELECT l.child_id FROM below b CROSS JOIN job_parent l ON l.parent_id = b.job
        LIMIT ?2)
    SELECT json_group_array(json_array(d.job_id, d.version)) FROM below b CROSS JOIN job_due d ON d.job_id = b.job";

pub(crate) const PARENT_JOBS: &str = "
    SELECT json_group_array(name) FROM (
        SELECT j.name FROM job j WHERE j.deleted_at IS NULL AND EXISTS (SELECT 1 FROM job_parent l WHERE l.parent_id = j.id)
            AND (?1 IS NULL OR CASE instr(j.name, '/') WHEN 0 THEN 'default' ELSE substr(j.name, 1, instr(j.name, '/') - 1) END = ?1)
        ORDER BY j.name LIMIT ?2)";

const END: &str = "
    UPDATE run SET state = 15, ended_at = ?2, claimed_by = NULL, cancel_requested = 1, message = ?3
    WHERE id IN (SELECT value FROM json_each(?1)) AND state = 0";

const REQUEST: &str = "
    UPDATE run SET cancel_requested = 1 WHERE id IN (SELECT value FROM json_each(?1)) AND state IN (1, 2, 3)";

const INSERT_EVENTS: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT r.id, ?2, r.attempt, 'cancel', ?3 FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value";

/// With the executor of the ended attempt: late reports about it have to come from there.
const INSERT_RETRY_EVENTS: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail, group_name, executor)
    SELECT r.id, ?2, r.attempt, 'retried', e.value ->> 1, coalesce(r.published_group, j.group_name), r.executor
    FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value ->> 0 CROSS JOIN job j ON j.id = r.job_id";

/// Only ended runs get another attempt by hand.
pub(crate) const RETRY: &str = "
    UPDATE run SET state = 0, attempt = attempt + 1, retries = 0, reruns = 0, due_at = ?2, claimed_by = NULL, maybe_published = 0,
        delays_next_fire = 0, cancel_requested = 0, dispatched_at = NULL, queued_at = NULL, started_at = NULL, overdue_at = NULL, ended_at = NULL,
        exit_status = NULL, progress = NULL, published_group = NULL, message = NULL, output = NULL
    WHERE id IN (SELECT value FROM json_each(?1)) AND state >= 10";

impl SqliteStore {
    async fn read_flow(&self, run: RunId) -> Result<FlowRun> {
        let mut tx = self.db.snapshot().await?;
        let id = flow_of(&mut tx, run).await?;
        let members = members(&mut tx, id).await?;
        let shown = members.iter().take(MAX_SHOWN_RUNS);
        let ids: Vec<i64> = shown.map(|member| member.part.run.0).collect();
        let mut runs = read_runs(&mut tx, &ids).await?;
        runs.reverse();
        let jobs = self.jobs_of_flow(&mut tx, &members).await?;
        Ok(FlowRun {
            id,
            parts: parts_of(&members),
            runs,
            jobs,
        })
    }

    async fn count_flows(&self, flows: &[RunId]) -> Result<Vec<FlowCounts>> {
        let Json(rows): Json<Vec<(i64, i64, i64)>> = sqlx::query_scalar(COUNTS)
            .bind(Json(flows))
            .fetch_one(&mut *self.db.read().await?)
            .await?;
        Ok(flow_counts(rows)?)
    }

    async fn list_parent_jobs(
        &self,
        namespace: Option<&Namespace>,
        limit: usize,
    ) -> Result<Vec<JobName>> {
        let Json(names): Json<Vec<JobName>> = sqlx::query_scalar(PARENT_JOBS)
            .bind(namespace.map(Namespace::as_str))
            .bind(to_i64(limit))
            .fetch_one(&mut *self.db.read().await?)
            .await?;
        Ok(names)
    }

    async fn cancel_flow_run(&self, run: RunId, by: &Actor) -> Result<CancelledFlow> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let id = flow_of(&mut tx, run).await?;
        let members = members(&mut tx, id).await?;
        let (waiting, published) = to_cancel(&members);
        let outcome = CancelledFlow {
            id,
            ended: run_ids(&waiting),
            requested: run_ids(&published),
        };
        if outcome.ended.is_empty() && outcome.requested.is_empty() {
            return Ok(outcome);
        }
        let message = flow_cancelled_message(id, by);
        sqlx::query(END)
            .bind(Json(&outcome.ended))
            .bind(now.as_millis())
            .bind(&message)
            .execute(&mut *tx)
            .await?;
        sqlx::query(REQUEST)
            .bind(Json(&outcome.requested))
            .execute(&mut *tx)
            .await?;
        let all: Vec<RunId> = outcome
            .ended
            .iter()
            .chain(&outcome.requested)
            .copied()
            .collect();
        sqlx::query(INSERT_EVENTS)
            .bind(Json(all))
            .bind(now.as_millis())
            .bind(&message)
            .execute(&mut *tx)
            .await?;
        let ended: Vec<(i64, Timestamp)> = waiting.iter().map(|m| (m.job, now)).collect();
        self.schedule_fixed_delays(&mut tx, &ended).await?;
        if let Some(origin) = origin(id, &members) {
            audit::write(&mut tx, &[flow_cancelled(by, &outcome, origin)], now).await?;
        }
        tx.commit().await?;
        Ok(outcome)
    }

    async fn retry_flow_run(&self, run: RunId, by: &Actor) -> Result<RetriedFlow> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let id = flow_of(&mut tx, run).await?;
        let members = members(&mut tx, id).await?;
        let jobs = self.jobs_of_flow(&mut tx, &members).await?;
        let retried = to_retry(id, &members, &jobs, now)?;
        let outcome = RetriedFlow {
            id,
            runs: run_ids(&retried),
        };
        let events: Vec<(i64, String)> = retried
            .iter()
            .map(|member| (member.part.run.0, member.retried_detail(by)))
            .collect();
        sqlx::query(INSERT_RETRY_EVENTS)
            .bind(Json(events))
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await?;
        sqlx::query(RETRY)
            .bind(Json(&outcome.runs))
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await?;
        if let Some(origin) = origin(id, &members) {
            audit::write(&mut tx, &[flow_retried(by, &outcome, origin)], now).await?;
        }
        tx.commit().await?;
        Ok(outcome)
    }

    /// The jobs of these runs and those after them, sorted by id.
    async fn jobs_of_flow(
        &self,
        conn: &mut SqliteConnection,
        members: &[FlowMember],
    ) -> Result<Vec<Arc<Job>>> {
        let Json(versions): Json<Vec<(i64, i64)>> = sqlx::query_scalar(JOBS_AFTER)
            .bind(Json(jobs_of(members)))
            .bind(to_i64(MAX_FLOW_JOBS))
            .fetch_one(&mut *conn)
            .await?;
        let jobs = self.definitions.get(conn, versions).await?;
        Ok(sorted_jobs(jobs))
    }
}

async fn flow_of(conn: &mut SqliteConnection, run: RunId) -> Result<RunId> {
    let flow: Option<i64> = sqlx::query_scalar(FLOW_OF)
        .bind(run.0)
        .fetch_optional(conn)
        .await?;
    Ok(flow.map(RunId).ok_or_else(|| StoreError::no_run(run))?)
}

async fn members(conn: &mut SqliteConnection, flow: RunId) -> Result<Vec<FlowMember>> {
    let rows: Vec<FlowMemberRow> = sqlx::query_as(MEMBERS)
        .bind(Json([flow]))
        .bind(to_i64(MAX_FLOW_RUNS + 1))
        .fetch_all(conn)
        .await?;
    Ok(members_of(flow, rows)?)
}

type Answer<T> = std::result::Result<T, StoreError>;

#[async_trait]
impl FlowStore for SqliteStore {
    async fn flow_run(&self, run: RunId) -> Answer<FlowRun> {
        let answer = self.read_flow(run).await;
        answer.map_err(|error| error.failed_to("read a flow run"))
    }

    async fn flow_counts(&self, flows: &[RunId]) -> Answer<Vec<FlowCounts>> {
        let answer = self.count_flows(flows).await;
        answer.map_err(|error| error.failed_to("count the runs of flow runs"))
    }

    async fn parent_jobs(
        &self,
        namespace: Option<&Namespace>,
        limit: usize,
    ) -> Answer<Vec<JobName>> {
        let answer = self.list_parent_jobs(namespace, limit).await;
        answer.map_err(|error| error.failed_to("list jobs with children"))
    }

    async fn cancel_flow(&self, run: RunId, by: &Actor) -> Answer<CancelledFlow> {
        let answer = self.cancel_flow_run(run, by).await;
        answer.map_err(|error| error.failed_to("cancel a flow run"))
    }

    async fn retry_flow(&self, run: RunId, by: &Actor) -> Answer<RetriedFlow> {
        let answer = self.retry_flow_run(run, by).await;
        answer.map_err(|error| error.failed_to("retry a flow run"))
    }
}
