//! Executors, and the attempts that they should hold.

use std::borrow::Cow;

use cueline_model::{
    AttemptId, ExecutorId, ExecutorLabels, GroupName, Heartbeat, JobId, RunId, Session, Timestamp,
    Weight,
};
use cueline_store::adapter::convert::{corrupt, parse_name, run_state, to_i64, to_u32, to_u64};
use cueline_store::adapter::heartbeats::{HeartbeatRow, latest_heartbeats};
use cueline_store::{Executor, JobAttempt, OutstandingAttempt};
use sqlx::Row as _;
use sqlx::postgres::{PgConnection, PgRow};

use crate::PgStore;
use crate::columns::column;
use crate::dispatch::attempt_id;
use crate::error::Result;

/// Arrays cannot contain lists of different lengths, so the capabilities of an executor are passed as one JSON text.
const RECORD_HEARTBEATS: &str = "
    INSERT INTO executor (group_name, name, incarnation, session, capabilities, capacity, labels, weight, held, running, draining, gone, refusal, last_heartbeat_at)
    SELECT e.group_name, e.name, e.incarnation, e.session, ARRAY(SELECT jsonb_array_elements_text(e.capabilities::jsonb)), e.capacity, e.labels, e.weight,
        e.held, e.running, e.draining, e.gone, e.refusal, $14
    FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::bigint[], $7::text[], $8::bigint[],
        $9::bigint[], $10::bigint[], $11::boolean[], $12::boolean[], $13::text[])
        e (group_name, name, incarnation, session, capabilities, capacity, labels, weight, held, running, draining, gone, refusal)
    ON CONFLICT (group_name, name) DO UPDATE SET incarnation = excluded.incarnation, session = excluded.session, capabilities = excluded.capabilities,
        capacity = excluded.capacity, labels = excluded.labels, weight = excluded.weight, held = excluded.held, running = excluded.running, draining = excluded.draining,
        gone = excluded.gone, refusal = excluded.refusal, last_heartbeat_at = greatest(executor.last_heartbeat_at, excluded.last_heartbeat_at)";

const ALL: &str = "
    SELECT group_name, name, incarnation, session, capabilities, capacity, labels, weight, held, running, draining, gone, refusal,
        last_heartbeat_at
    FROM executor ORDER BY group_name, name";

const OF_GROUP: &str = "
    SELECT group_name, name, incarnation, session, capabilities, capacity, labels, weight, held, running, draining, gone, refusal,
        last_heartbeat_at
    FROM executor WHERE group_name = $1 ORDER BY name";

/// The given executors that have sent no heartbeat since, and have no run in `dispatching`, `queued` or `running`.
const FORGET: &str = "
    DELETE FROM executor x
    USING unnest($1::text[], $2::text[], $3::bigint[]) e (group_name, name, last_heartbeat_at)
    WHERE x.group_name = e.group_name AND x.name = e.name AND x.last_heartbeat_at = e.last_heartbeat_at
        AND NOT EXISTS (SELECT 1 FROM run_live l JOIN job j ON j.id = l.job_id
                        WHERE l.state IN (1, 2, 3) AND l.executor = x.name
                            AND coalesce(l.published_group, j.group_name) = x.group_name)
    RETURNING x.group_name, x.name";

/// One scan by id, which stops at the limit. No index begins with the executor: each dispatch sets that column, and an
/// index on it would end the updates that stay on their page.
pub(crate) const OUTSTANDING: &str = "
    SELECT l.id, l.attempt, l.state, l.dispatched_at, l.queued_at, coalesce(l.published_group, j.group_name), l.executor
    FROM (SELECT id, job_id, attempt, state, dispatched_at, queued_at, published_group, executor FROM run_live r
          WHERE state IN (2, 3) AND id > $2 AND queued_at < $1 AND executor IS NOT NULL AND ($4::text IS NULL OR (executor = $4
              AND coalesce(published_group, (SELECT g.group_name FROM job g WHERE g.id = r.job_id)) = $5::text))
          ORDER BY id LIMIT $3) l
        JOIN job j ON j.id = l.job_id
    ORDER BY l.id";

/// One scan of the live runs, which stops at the limit.
pub(crate) const OF_JOBS: &str = "
    SELECT job_id, id, attempt, executor FROM run_live
    WHERE state IN (1, 2, 3) AND executor IS NOT NULL AND job_id = ANY($1::bigint[]) LIMIT $2";

pub(crate) const OVERDUE: &str = "
    SELECT id, attempt FROM run_live WHERE overdue_at < $1 AND state = 3 ORDER BY overdue_at, id LIMIT $2";

impl PgStore {
    pub(crate) async fn record_heartbeats(&self, heartbeats: &[Heartbeat]) -> Result<()> {
        if heartbeats.is_empty() {
            return Ok(());
        }
        let rows = latest_heartbeats(heartbeats);
        let mut tx = self.db.write().await?;
        sqlx::query(RECORD_HEARTBEATS)
            .bind(column(&rows, |h| h.group))
            .bind(column(&rows, |h| h.name))
            .bind(column(&rows, |h| h.incarnation.as_ref()))
            .bind(column(&rows, |h| h.session))
            .bind(column(&rows, capabilities))
            .bind(column(&rows, |h| h.capacity))
            .bind(column(&rows, labels))
            .bind(column(&rows, |h| h.weight))
            .bind(column(&rows, |h| h.held))
            .bind(column(&rows, |h| h.running))
            .bind(column(&rows, |h| h.draining))
            .bind(column(&rows, |h| h.gone))
            .bind(column(&rows, |h| h.refusal.as_deref()))
            .bind(tx.now.as_millis())
            .execute(&mut *tx)
            .await?;
        tx.commit().await
    }

    pub(crate) async fn executors(&self) -> Result<Vec<Executor>> {
        let mut conn = self.db.autocommit().await?;
        let rows = sqlx::query(ALL).fetch_all(&mut *conn).await?;
        conn.keep();
        rows.iter().map(executor).collect()
    }

    pub(crate) async fn forget_executors(
        &self,
        executors: &[(ExecutorId, Timestamp)],
    ) -> Result<Vec<ExecutorId>> {
        let mut tx = self.db.write().await?;
        let forgotten: Vec<(String, String)> = sqlx::query_as(FORGET)
            .bind(column(executors, |(id, _)| id.group.as_str()))
            .bind(column(executors, |(id, _)| id.name.as_str()))
            .bind(column(executors, |(_, at)| at.as_millis()))
            .fetch_all(&mut *tx)
            .await?;
        tx.commit().await?;
        forgotten
            .iter()
            .map(|(group, name)| executor_id(group, name))
            .collect()
    }

    pub(crate) async fn outstanding_attempts(
        &self,
        older_than_ms: u64,
        executor: Option<&ExecutorId>,
        after: Option<RunId>,
        limit: usize,
    ) -> Result<Vec<OutstandingAttempt>> {
        type Row = (i64, i32, i16, i64, i64, String, String);
        let mut conn = self.db.autocommit().await?;
        let now = self.db.now(&mut conn).await?;
        let rows: Vec<Row> = sqlx::query_as(OUTSTANDING)
            .bind(now.minus_ms(older_than_ms).as_millis())
            .bind(after.map_or(0, |run| run.0))
            .bind(to_i64(limit))
            .bind(executor.map(|e| e.name.as_str()))
            .bind(executor.map(|e| e.group.as_str()))
            .fetch_all(&mut *conn)
            .await?;
        conn.keep();
        rows.into_iter()
            .map(|row| {
                let (run, attempt, state, dispatched_at, queued_at, group, name) = row;
                Ok(OutstandingAttempt {
                    attempt: attempt_id((run, attempt)),
                    state: run_state(state)?,
                    dispatched_at: Timestamp::from_millis(dispatched_at),
                    queued_at: Timestamp::from_millis(queued_at),
                    executor: executor_id(&group, &name)?,
                })
            })
            .collect()
    }

    pub(crate) async fn attempts_of_jobs(
        &self,
        jobs: &[JobId],
        limit: usize,
    ) -> Result<Vec<JobAttempt>> {
        let mut conn = self.db.autocommit().await?;
        let rows: Vec<(i64, i64, i32, String)> = sqlx::query_as(OF_JOBS)
            .bind(column(jobs, |job| job.0))
            .bind(to_i64(limit))
            .fetch_all(&mut *conn)
            .await?;
        conn.keep();
        rows.into_iter()
            .map(|(job, run, attempt, executor)| {
                Ok(JobAttempt {
                    job: JobId(job),
                    attempt: attempt_id((run, attempt)),
                    executor: parse_name(&executor)?,
                })
            })
            .collect()
    }

    pub(crate) async fn overdue_attempts(
        &self,
        slack_ms: u64,
        limit: usize,
    ) -> Result<Vec<AttemptId>> {
        let mut conn = self.db.autocommit().await?;
        let now = self.db.now(&mut conn).await?;
        let rows: Vec<(i64, i32)> = sqlx::query_as(OVERDUE)
            .bind(now.minus_ms(slack_ms).as_millis())
            .bind(to_i64(limit))
            .fetch_all(&mut *conn)
            .await?;
        conn.keep();
        Ok(rows.into_iter().map(attempt_id).collect())
    }
}

fn capabilities(heartbeat: &HeartbeatRow<'_>) -> String {
    let capabilities = heartbeat.capabilities.iter().map(Cow::as_ref);
    capabilities.collect::<serde_json::Value>().to_string()
}

fn labels(heartbeat: &HeartbeatRow<'_>) -> String {
    let labels = heartbeat.labels.iter();
    let labels: serde_json::Map<_, _> = labels
        .map(|(key, value)| (key.to_string(), value.as_ref().into()))
        .collect();
    serde_json::Value::Object(labels).to_string()
}

/// The executors of a group, sorted by name.
pub(crate) async fn of_group(conn: &mut PgConnection, group: &GroupName) -> Result<Vec<Executor>> {
    let rows = sqlx::query(OF_GROUP)
        .bind(group.as_str())
        .fetch_all(conn)
        .await?;
    rows.iter().map(executor).collect()
}

/// A row of [`ALL`].
fn executor(row: &PgRow) -> Result<Executor> {
    let count = |column: &str| row.try_get::<i64, _>(column);
    Ok(Executor {
        heartbeat: Heartbeat {
            executor: executor_id(row.try_get("group_name")?, row.try_get("name")?)?,
            incarnation: row.try_get("incarnation")?,
            session: Session(count("session")?),
            capabilities: row.try_get("capabilities")?,
            capacity: to_u32(count("capacity")?),
            labels: executor_labels(row.try_get("labels")?)?,
            weight: Weight::clamped(row.try_get::<i16, _>("weight")?.into()),
            held: to_u64(count("held")?),
            running: to_u64(count("running")?),
            draining: row.try_get("draining")?,
            gone: row.try_get("gone")?,
            refusal: row.try_get("refusal")?,
        },
        last_heartbeat_at: Timestamp::from_millis(count("last_heartbeat_at")?),
    })
}

/// Labels from their column.
pub(crate) fn executor_labels(text: &str) -> Result<ExecutorLabels> {
    Ok(serde_json::from_str(text).map_err(|e| corrupt("failed to read an executor", e))?)
}

/// An executor from its columns.
pub(crate) fn executor_id(group: &str, name: &str) -> Result<ExecutorId> {
    Ok(ExecutorId {
        group: parse_name(group)?,
        name: parse_name(name)?,
    })
}
