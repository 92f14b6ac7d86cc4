//! Executors, and the attempts that they should hold.

use cueline_model::{
    AttemptId, ExecutorId, ExecutorName, GroupName, Heartbeat, JobId, RunId, Timestamp,
};
use cueline_store::adapter::convert::{parse_name, run_state, to_i64};
use cueline_store::adapter::heartbeats::latest_heartbeats;
use cueline_store::{Executor, JobAttempt, OutstandingAttempt};
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::SqliteStore;
use crate::error::Result;

const RECORD_HEARTBEATS: &str = "
    INSERT INTO executor (group_name, name, incarnation, session, capabilities, capacity, labels, weight, held, running, draining, gone, refusal, last_heartbeat_at)
    SELECT value ->> '$.group', value ->> '$.name', value ->> '$.incarnation', value ->> '$.session', value -> '$.capabilities', value ->> '$.capacity',
        value -> '$.labels', value ->> '$.weight', value ->> '$.held', value ->> '$.running', value ->> '$.draining', value ->> '$.gone', value ->> '$.refusal', ?2
    FROM json_each(?1) WHERE true
    ON CONFLICT (group_name, name) DO UPDATE SET incarnation = excluded.incarnation, session = excluded.session, capabilities = excluded.capabilities,
        capacity = excluded.capacity, labels = excluded.labels, weight = excluded.weight, held = excluded.held, running = excluded.running, draining = excluded.draining,
        gone = excluded.gone, refusal = excluded.refusal, last_heartbeat_at = excluded.last_heartbeat_at";

/// The fields of [`Executor`].
const ALL: &str = "
    SELECT json_group_array(json_object('group', group_name, 'name', name, 'incarnation', incarnation, 'session', session, 'capabilities', json(capabilities),
        'capacity', capacity, 'labels', json(labels), 'weight', weight, 'held', held, 'running', running, 'draining', json(iif(draining, 'true', 'false')),
        'gone', json(iif(gone, 'true', 'false')), 'refusal', refusal, 'last_heartbeat_at', last_heartbeat_at))
    FROM (SELECT * FROM executor ORDER BY group_name, name)";

const OF_GROUP: &str = "
    SELECT json_group_array(json_object('group', group_name, 'name', name, 'incarnation', incarnation, 'session', session, 'capabilities', json(capabilities),
        'capacity', capacity, 'labels', json(labels), 'weight', weight, 'held', held, 'running', running, 'draining', json(iif(draining, 'true', 'false')),
        'gone', json(iif(gone, 'true', 'false')), 'refusal', refusal, 'last_heartbeat_at', last_heartbeat_at))
    FROM (SELECT * FROM executor WHERE group_name = ?1 ORDER BY name)";

/// The executors in ?1 that have sent no heartbeat since, and have no run in `dispatching`, `queued` or `running`.
const FORGET: &str = "
    DELETE FROM executor
    WHERE EXISTS (SELECT 1 FROM json_each(?1) e
                  WHERE e.value ->> 0 = executor.group_name AND e.value ->> 1 = executor.name
                      AND e.value ->> 2 = executor.last_heartbeat_at)
        AND NOT EXISTS (SELECT 1 FROM run r JOIN job j ON j.id = r.job_id
                        WHERE r.state IN (1, 2, 3) AND r.state < 10 AND r.executor = executor.name
                            AND coalesce(r.published_group, j.group_name) = executor.group_name)
    RETURNING group_name, name";

/// Two scans by id, which stop at the limit. A published run has no claim, so both use the index on state and claim.
pub(crate) const OUTSTANDING: &str = "
    WITH published(id, job_id, attempt, state, dispatched_at, queued_at, published_group, executor) AS (
        SELECT * FROM (
            SELECT id, job_id, attempt, state, dispatched_at, queued_at, published_group, executor FROM run
            WHERE state = 2 AND state < 10 AND claimed_by IS NULL AND id > ?2 AND queued_at < ?1 AND executor IS NOT NULL
                AND (?4 IS NULL OR (executor = ?4
                    AND coalesce(published_group, (SELECT g.group_name FROM job g WHERE g.id = run.job_id)) = ?5))
            ORDER BY id LIMIT ?3 + 0)
        UNION ALL
        SELECT * FROM (
            SELECT id, job_id, attempt, state, dispatched_at, queued_at, published_group, executor FROM run
            WHERE state = 3 AND state < 10 AND claimed_by IS NULL AND id > ?2 AND queued_at < ?1 AND executor IS NOT NULL
                AND (?4 IS NULL OR (executor = ?4
                    AND coalesce(published_group, (SELECT g.group_name FROM job g WHERE g.id = run.job_id)) = ?5))
            ORDER BY id LIMIT ?3 + 0))
    SELECT json_group_array(json_array(p.id, p.attempt, p.state, p.dispatched_at, p.queued_at,
        coalesce(p.published_group, j.group_name), p.executor))
    FROM (SELECT * FROM published ORDER BY id LIMIT ?3 + 0) p CROSS JOIN job j ON j.id = p.job_id";

/// The live runs by the index on state and claim. One scan for all jobs, which stops at the limit.
pub(crate) const OF_JOBS: &str = "
    SELECT json_group_array(json_array(job_id, id, attempt, executor))
    FROM (SELECT job_id, id, attempt, executor FROM run
          WHERE state IN (1, 2, 3) AND state < 10 AND executor IS NOT NULL AND job_id IN (SELECT value FROM json_each(?1))
          LIMIT ?2 + 0)";

pub(crate) const OVERDUE: &str = "
    SELECT json_group_array(json_array(id, attempt))
    FROM (SELECT id, attempt FROM run WHERE overdue_at < ?1 AND overdue_at IS NOT NULL AND ended_at IS NULL AND state = 3
          ORDER BY overdue_at, id LIMIT ?2 + 0)";

impl SqliteStore {
    pub(crate) async fn record_heartbeats(&self, heartbeats: &[Heartbeat]) -> Result<()> {
        if heartbeats.is_empty() {
            return Ok(());
        }
        let mut tx = self.db.write().await?;
        sqlx::query(RECORD_HEARTBEATS)
            .bind(Json(latest_heartbeats(heartbeats)))
            .bind(self.db.now().as_millis())
            .execute(&mut *tx)
            .await?;
        tx.commit().await
    }

    pub(crate) async fn executors(&self) -> Result<Vec<Executor>> {
        let Json(executors) = sqlx::query_scalar(ALL)
            .fetch_one(&mut *self.db.read().await?)
            .await?;
        Ok(executors)
    }

    pub(crate) async fn forget_executors(
        &self,
        executors: &[(ExecutorId, Timestamp)],
    ) -> Result<Vec<ExecutorId>> {
        let rows: Vec<_> = executors
            .iter()
            .map(|(id, last_heartbeat_at)| (&id.group, &id.name, last_heartbeat_at))
            .collect();
        let mut tx = self.db.write().await?;
        let forgotten: Vec<(String, String)> = sqlx::query_as(FORGET)
            .bind(Json(rows))
            .fetch_all(&mut *tx)
            .await?;
        tx.commit().await?;
        forgotten
            .iter()
            .map(|(group, name)| {
                Ok(ExecutorId {
                    group: parse_name(group)?,
                    name: parse_name(name)?,
                })
            })
            .collect()
    }

    pub(crate) async fn outstanding_attempts(
        &self,
        older_than_ms: u64,
        executor: Option<&ExecutorId>,
        after: Option<RunId>,
        limit: usize,
    ) -> Result<Vec<OutstandingAttempt>> {
        type Row = (
            RunId,
            u32,
            i64,
            Timestamp,
            Timestamp,
            GroupName,
            ExecutorName,
        );
        let Json(rows): Json<Vec<Row>> = sqlx::query_scalar(OUTSTANDING)
            .bind(self.db.now().minus_ms(older_than_ms).as_millis())
            .bind(after.map_or(0, |run| run.0))
            .bind(to_i64(limit))
            .bind(executor.map(|e| e.name.as_str()))
            .bind(executor.map(|e| e.group.as_str()))
            .fetch_one(&mut *self.db.read().await?)
            .await?;
        rows.into_iter()
            .map(|row| {
                let (run, attempt, state, dispatched_at, queued_at, group, name) = row;
                Ok(OutstandingAttempt {
                    attempt: AttemptId { run, attempt },
                    state: run_state(state)?,
                    dispatched_at,
                    queued_at,
                    executor: ExecutorId { group, name },
                })
            })
            .collect()
    }

    pub(crate) async fn attempts_of_jobs(
        &self,
        jobs: &[JobId],
        limit: usize,
    ) -> Result<Vec<JobAttempt>> {
        let Json(rows): Json<Vec<(JobId, RunId, u32, ExecutorName)>> = sqlx::query_scalar(OF_JOBS)
            .bind(Json(jobs))
            .bind(to_i64(limit))
            .fetch_one(&mut *self.db.read().await?)
            .await?;
        let found = rows
            .into_iter()
            .map(|(job, run, attempt, executor)| JobAttempt {
                job,
                attempt: AttemptId { run, attempt },
                executor,
            });
        Ok(found.collect())
    }

    pub(crate) async fn overdue_attempts(
        &self,
        slack_ms: u64,
        limit: usize,
    ) -> Result<Vec<AttemptId>> {
        let Json(rows): Json<Vec<(RunId, u32)>> = sqlx::query_scalar(OVERDUE)
            .bind(self.db.now().minus_ms(slack_ms).as_millis())
            .bind(to_i64(limit))
            .fetch_one(&mut *self.db.read().await?)
            .await?;
        let id = |(run, attempt)| AttemptId { run, attempt };
        Ok(rows.into_iter().map(id).collect())
    }
}

/// The executors of a group, sorted by name.
pub(crate) async fn of_group(
    conn: &mut SqliteConnection,
    group: &GroupName,
) -> Result<Vec<Executor>> {
    let Json(executors) = sqlx::query_scalar(OF_GROUP)
        .bind(group.as_str())
        .fetch_one(conn)
        .await?;
    Ok(executors)
}
