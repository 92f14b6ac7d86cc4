//! Reads, cancels and retries flow runs. All runs of a flow run are of one day.
//!
//! A cancellation locks the jobs that the flow run has reached and those after them. A transaction that starts a child
//! holds the lock of a parent. So no child starts beside the cancellation: it is either seen and cancelled, or the end of
//! its parent sees the request.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use cueline_model::{Actor, Job, JobName, Namespace, Route, RunId, Timestamp};
use cueline_store::adapter::audit::{flow_cancelled, flow_retried};
use cueline_store::adapter::convert::{parse_name, to_i64};
use cueline_store::adapter::flow_runs::{
    FlowMember, FlowMemberRow, flow_cancelled_message, flow_counts, jobs_of, members_of, origin,
    parts_of, run_ids, sorted_jobs, to_cancel, to_retry,
};
use cueline_store::{
    CancelledFlow, FlowCounts, FlowRun, FlowStore, MAX_FLOW_JOBS, MAX_FLOW_RUNS, MAX_SHOWN_RUNS,
    RetriedFlow, StoreError,
};
use sqlx::postgres::PgConnection;

use crate::children::days_of;
use crate::columns::{column, to_i32};
use crate::end_runs::end_runs;
use crate::error::Result;
use crate::partitions::{Day, share_old_days};
use crate::runs::read_runs;
use crate::{PgStore, audit, follow_ups};

/// The flow run of a run.
pub(crate) const FLOW_OF: &str = "
    SELECT CASE WHEN o.kind IN (1, 2) THEN o.fire_key ELSE
        (SELECT min(r.id) FROM run r WHERE r.fire_key = o.fire_key AND r.job_id = o.job_id AND r.kind = o.kind
            AND r.id BETWEEN $2 AND $3) END
    FROM run o WHERE o.id = $1";

/// The runs of flow runs, as `flow` and `run`.
macro_rules! members {
    () => {
        "SELECT e.flow, r.id AS run FROM unnest($1::bigint[]) e (flow)
            JOIN run r ON r.fire_key = e.flow AND r.kind IN (1, 2) AND r.id BETWEEN $2 AND $3
        UNION
        SELECT e.flow, r.id FROM unnest($1::bigint[]) e (flow)
            JOIN run o ON o.id = e.flow AND o.kind NOT IN (1, 2) AND o.id BETWEEN $2 AND $3
            JOIN run r ON r.fire_key = o.fire_key AND r.job_id = o.job_id AND r.kind = o.kind AND r.id BETWEEN $2 AND $3"
    };
}

/// Rows of [`FlowMemberRow`].
pub(crate) const MEMBERS: &str = concat!(
    "SELECT r.id, r.job_id, coalesce(l.state, r.state)::bigint, coalesce(l.attempt, r.attempt)::bigint,
        coalesce(l.cancel_requested, r.cancel_requested), r.kind::bigint, d.version, coalesce(d.enabled, false), d.paused_until, j.name, j.group_name
    FROM (",
    members!(),
    " ORDER BY run LIMIT $4) m JOIN run r ON r.id = m.run AND r.id BETWEEN $2 AND $3 JOIN job j ON j.id = r.job_id
        LEFT JOIN run_live l ON l.id = r.id LEFT JOIN job_due d ON d.job_id = r.job_id ORDER BY r.id"
);

pub(crate) const COUNTS: &str = concat!(
    "SELECT m.flow, coalesce(l.state, r.state)::bigint, count(*) FROM (",
    members!(),
    ") m JOIN run r ON r.id = m.run AND r.id BETWEEN $2 AND $3 LEFT JOIN run_live l ON l.id = r.id
    GROUP BY 1, 2 ORDER BY 1, 2"
);

/// The given jobs and those after them that are not deleted, the nearest first, with their versions.
pub(crate) const JOBS_AFTER: &str = "
    WITH RECURSIVE below (job) AS (
        SELECT e.id FROM unnest($1::bigint[]) e (id)
        UNION
        SELECT l.child_id FROM below b JOIN job_parent l ON l.parent_id = b.job)
    SELECT d.job_id, d.version FROM (SELECT job FROM below LIMIT $2) b JOIN job_due d ON d.job_id = b.job";

pub(crate) const PARENT_JOBS: &str = "
    SELECT j.name FROM job j WHERE j.deleted_at IS NULL AND EXISTS (SELECT FROM job_parent l WHERE l.parent_id = j.id)
        AND ($1::text IS NULL OR CASE WHEN strpos(j.name, '/') = 0 THEN 'default' ELSE split_part(j.name, '/', 1) END = $1)
    ORDER BY j.name LIMIT $2";

pub(crate) const END: &str = end_runs!(
    "",
    delete: "USING unnest($1::bigint[]) e (id) WHERE l.id = e.id AND l.state = 0",
    ends: "15::smallint AS end_state, l.started_at AS began_at, $2::bigint AS end_at, l.exit_status AS status,
        $3::text AS reason, NULL::text AS result",
    within: "AND run.id BETWEEN $4 AND $5",
    then: "SELECT id FROM done"
);

/// All of them, so that the rows of those that end have the request too.
pub(crate) const REQUEST: &str = "
    UPDATE run_live l SET cancel_requested = true FROM unnest($1::bigint[]) e (id) WHERE l.id = e.id";

/// Locks live runs, so that a concurrent release cannot change the states that the cancellation decides by.
pub(crate) const LOCK_LIVE: &str =
    "SELECT id FROM run_live WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE";

const INSERT_EVENTS: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT e.id, $3, e.attempt, 'cancel', $4 FROM unnest($1::bigint[], $2::integer[]) e (id, attempt)";

/// With the executor of the ended attempt: late reports about it have to come from there.
pub(crate) const INSERT_RETRY_EVENTS: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail, group_name, executor)
    SELECT r.id, $3, r.attempt, 'retried', e.detail, coalesce(r.published_group, j.group_name), r.executor
    FROM unnest($1::bigint[], $2::text[]) e (id, detail) JOIN run r ON r.id = e.id AND r.id BETWEEN $4 AND $5
        JOIN job j ON j.id = r.job_id";

/// Only ended runs get another attempt by hand.
pub(crate) const RETRY: &str = "
    WITH back AS (
        UPDATE run SET state = NULL, unsuccessful_state = NULL, cancel_requested = false, queued_at = NULL, started_at = NULL,
            ended_at = NULL, exit_status = NULL, progress = NULL, published_group = NULL, message = NULL, output = NULL
        FROM unnest($1::bigint[], $2::boolean[]) e (id, pinned)
        WHERE run.id = e.id AND run.id BETWEEN $4 AND $5 AND run.state IS NOT NULL
        RETURNING run.id, run.job_id, run.kind, run.attempt, run.executor, run.shard_index, run.fire_at, e.pinned)
    INSERT INTO run_live (id, job_id, kind, state, due_at, attempt, executor, pinned, shard_index, fire_at)
    SELECT id, job_id, kind, 0, $3, attempt + 1, executor, pinned, shard_index, fire_at FROM back";

impl PgStore {
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
        if flows.is_empty() {
            return Ok(Vec::new());
        }
        let flows: Vec<i64> = column(flows, |flow| flow.0);
        let (low, high) = days_of(flows.iter().copied());
        let rows: Vec<(i64, i64, i64)> = sqlx::query_as(COUNTS)
            .bind(flows)
            .bind(low)
            .bind(high)
            .fetch_all(&mut *self.db.read().await?)
            .await?;
        Ok(flow_counts(rows)?)
    }

    async fn list_parent_jobs(
        &self,
        namespace: Option<&Namespace>,
        limit: usize,
    ) -> Result<Vec<JobName>> {
        let names: Vec<String> = sqlx::query_scalar(PARENT_JOBS)
            .bind(namespace.map(Namespace::as_str))
            .bind(to_i64(limit))
            .fetch_all(&mut *self.db.read().await?)
            .await?;
        names.iter().map(|name| Ok(parse_name(name)?)).collect()
    }

    async fn cancel_flow_run(&self, run: RunId, by: &Actor) -> Result<CancelledFlow> {
        let mut tx = self.db.write().await?;
        let now = tx.now;
        let id = flow_of(&mut tx, run).await?;
        let reached = jobs_of(&members(&mut tx, id).await?);
        let below: Vec<(i64, i64)> = sqlx::query_as(JOBS_AFTER)
            .bind(reached)
            .bind(i64::MAX)
            .fetch_all(&mut *tx)
            .await?;
        follow_ups::lock_jobs(&mut tx, column(&below, |(job, _)| *job)).await?;
        let members = self.lock_live(&mut tx, id).await?;
        let (waiting, published) = to_cancel(&members);
        let outcome = CancelledFlow {
            id,
            ended: run_ids(&waiting),
            requested: run_ids(&published),
        };
        let all: Vec<FlowMember> = waiting.iter().chain(&published).cloned().collect();
        if all.is_empty() {
            return Ok(outcome);
        }
        let message = flow_cancelled_message(id, by);
        let (low, high) = days_of([id.0]);
        sqlx::query(REQUEST)
            .bind(column(&all, |member| member.part.run.0))
            .execute(&mut *tx)
            .await?;
        sqlx::query(END)
            .bind(column(&waiting, |member| member.part.run.0))
            .bind(now.as_millis())
            .bind(&message)
            .bind(low)
            .bind(high)
            .execute(&mut *tx)
            .await?;
        sqlx::query(INSERT_EVENTS)
            .bind(column(&all, |member| member.part.run.0))
            .bind(column(&all, |member| to_i32(member.attempt)))
            .bind(now.as_millis())
            .bind(&message)
            .execute(&mut *tx)
            .await?;
        let ended: Vec<(i64, Timestamp)> = column(&waiting, |member| (member.job, now));
        self.schedule_fixed_delays(&mut tx, &ended).await?;
        if let Some(origin) = origin(id, &members) {
            audit::write(&mut tx, &[flow_cancelled(by, &outcome, origin)], now).await?;
        }
        tx.commit().await?;
        Ok(outcome)
    }

    async fn retry_flow_run(&self, run: RunId, by: &Actor) -> Result<RetriedFlow> {
        let mut tx = self.db.write().await?;
        let now = tx.now;
        let id = flow_of(&mut tx, run).await?;
        share_old_days(&mut tx, &BTreeSet::from([Day::of_run(id.0)]), now).await?;
        let reached = jobs_of(&members(&mut tx, id).await?);
        follow_ups::lock_jobs(&mut tx, reached).await?;
        let members = members(&mut tx, id).await?;
        let jobs = self.jobs_of_flow(&mut tx, &members).await?;
        let retried = to_retry(id, &members, &jobs, now)?;
        let outcome = RetriedFlow {
            id,
            runs: run_ids(&retried),
        };
        let is_pinned = |member: &FlowMember| {
            let mut jobs = jobs.iter();
            jobs.any(|job| job.id.0 == member.job && job.spec.route == Route::Broadcast)
        };
        let (low, high) = days_of([id.0]);
        sqlx::query(INSERT_RETRY_EVENTS)
            .bind(column(&retried, |member| member.part.run.0))
            .bind(column(&retried, |member| member.retried_detail(by)))
            .bind(now.as_millis())
            .bind(low)
            .bind(high)
            .execute(&mut *tx)
            .await?;
        sqlx::query(RETRY)
            .bind(column(&retried, |member| member.part.run.0))
            .bind(column(&retried, is_pinned))
            .bind(now.as_millis())
            .bind(low)
            .bind(high)
            .execute(&mut *tx)
            .await?;
        if let Some(origin) = origin(id, &members) {
            audit::write(&mut tx, &[flow_retried(by, &outcome, origin)], now).await?;
        }
        tx.commit().await?;
        Ok(outcome)
    }

    /// Locks the live runs of a flow run, and reads all its runs after that.
    async fn lock_live(&self, conn: &mut PgConnection, flow: RunId) -> Result<Vec<FlowMember>> {
        let before = members(conn, flow).await?;
        sqlx::query(LOCK_LIVE)
            .bind(column(&before, |member| member.part.run.0))
            .execute(&mut *conn)
            .await?;
        members(conn, flow).await
    }

    /// The jobs of these runs and those after them, sorted by id.
    async fn jobs_of_flow(
        &self,
        conn: &mut PgConnection,
        members: &[FlowMember],
    ) -> Result<Vec<Arc<Job>>> {
        let versions: Vec<(i64, i64)> = sqlx::query_as(JOBS_AFTER)
            .bind(jobs_of(members))
            .bind(to_i64(MAX_FLOW_JOBS))
            .fetch_all(&mut *conn)
            .await?;
        let jobs = self.definitions.get(conn, versions).await?;
        Ok(sorted_jobs(jobs))
    }
}

async fn flow_of(conn: &mut PgConnection, run: RunId) -> Result<RunId> {
    let (low, high) = days_of([run.0]);
    let flow: Option<i64> = sqlx::query_scalar(FLOW_OF)
        .bind(run.0)
        .bind(low)
        .bind(high)
        .fetch_optional(conn)
        .await?;
    Ok(flow.map(RunId).ok_or_else(|| StoreError::no_run(run))?)
}

async fn members(conn: &mut PgConnection, flow: RunId) -> Result<Vec<FlowMember>> {
    let (low, high) = days_of([flow.0]);
    let rows: Vec<FlowMemberRow> = sqlx::query_as(MEMBERS)
        .bind(vec![flow.0])
        .bind(low)
        .bind(high)
        .bind(to_i64(MAX_FLOW_RUNS + 1))
        .fetch_all(conn)
        .await?;
    Ok(members_of(flow, rows)?)
}

type Answer<T> = std::result::Result<T, StoreError>;

#[async_trait]
impl FlowStore for PgStore {
    async fn flow_run(&self, run: RunId) -> Answer<FlowRun> {
        self.read("read a flow run", || self.read_flow(run)).await
    }

    async fn flow_counts(&self, flows: &[RunId]) -> Answer<Vec<FlowCounts>> {
        self.read("count the runs of flow runs", || self.count_flows(flows))
            .await
    }

    async fn parent_jobs(
        &self,
        namespace: Option<&Namespace>,
        limit: usize,
    ) -> Answer<Vec<JobName>> {
        self.read("list jobs with children", || {
            self.list_parent_jobs(namespace, limit)
        })
        .await
    }

    async fn cancel_flow(&self, run: RunId, by: &Actor) -> Answer<CancelledFlow> {
        self.write("cancel a flow run", || self.cancel_flow_run(run, by))
            .await
    }

    async fn retry_flow(&self, run: RunId, by: &Actor) -> Answer<RetriedFlow> {
        self.write("retry a flow run", || self.retry_flow_run(run, by))
            .await
    }
}
