//! Executors, and the attempts that they should hold.

use std::borrow::Cow;

use cueline_model::{AttemptId, ExecutorId, Heartbeat, RunId, Timestamp};
use cueline_store::adapter::convert::{parse_name, run_state, to_i64, to_u32, to_u64};
use cueline_store::adapter::heartbeats::{HeartbeatRow, latest_heartbeats};
use cueline_store::{Executor, OutstandingAttempt};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::PgStore;
use crate::columns::column;
use crate::dispatch::attempt_id;
use crate::error::Result;

/// Arrays cannot contain lists of different lengths, so the capabilities of an executor are passed as one JSON text.
const RECORD_HEARTBEATS: &str = "
    INSERT INTO executor (group_name, name, incarnation, capabilities, capacity, held, running, draining, gone, last_heartbeat_at)
    SELECT e.group_name, e.name, e.incarnation, ARRAY(SELECT jsonb_array_elements_text(e.capabilities::jsonb)), e.capacity, e.held,
        e.running, e.draining, e.gone, $10
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::boolean[],
        $9::boolean[]) e (group_name, name, incarnation, capabilities, capacity, held, running, draining, gone)
    ON CONFLICT (group_name, name) DO UPDATE SET incarnation = excluded.incarnation, capabilities = excluded.capabilities,
        capacity = excluded.capacity, held = excluded.held, running = excluded.running, draining = excluded.draining,
        gone = excluded.gone, last_heartbeat_at = greatest(executor.last_heartbeat_at, excluded.last_heartbeat_at)";

const ALL: &str = "
    SELECT group_name, name, incarnation, capabilities, capacity, held, running, draining, gone, last_heartbeat_at
    FROM executor ORDER BY group_name, name";

pub(crate) const OUTSTANDING: &str = "
    SELECT l.id, l.attempt, l.state, l.queued_at, coalesce(l.published_group, j.group_name), l.executor
    FROM (SELECT id, job_id, attempt, state, queued_at, published_group, executor FROM run_live
          WHERE state IN (2, 3) AND id > $2 AND queued_at < $1 AND executor IS NOT NULL ORDER BY id LIMIT $3) l
        JOIN job j ON j.id = l.job_id
    ORDER BY l.id";

/// An attempt counts as started when its trigger was queued or later, because the executor's clock may be behind.
pub(crate) const OVERDUE: &str = "
    SELECT l.id, l.attempt FROM run_live l JOIN job j ON j.id = l.job_id
    WHERE l.state = 3 AND greatest(l.started_at, l.queued_at) + j.max_attempt_ms < $1 ORDER BY l.id LIMIT $2";

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
            .bind(column(&rows, capabilities))
            .bind(column(&rows, |h| h.capacity))
            .bind(column(&rows, |h| h.held))
            .bind(column(&rows, |h| h.running))
            .bind(column(&rows, |h| h.draining))
            .bind(column(&rows, |h| h.gone))
            .bind(tx.now.as_millis())
            .execute(&mut *tx)
            .await?;
        tx.commit().await
    }

    pub(crate) async fn executors(&self) -> Result<Vec<Executor>> {
        let rows = sqlx::query(ALL)
            .fetch_all(&mut *self.db.autocommit().await?)
            .await?;
        rows.iter().map(executor).collect()
    }

    pub(crate) async fn outstanding_attempts(
        &self,
        older_than_ms: u64,
        after: Option<RunId>,
        limit: usize,
    ) -> Result<Vec<OutstandingAttempt>> {
        let mut conn = self.db.autocommit().await?;
        let now = self.db.now(&mut conn).await?;
        let rows: Vec<(i64, i32, i16, i64, String, String)> = sqlx::query_as(OUTSTANDING)
            .bind(now.minus_ms(older_than_ms).as_millis())
            .bind(after.map_or(0, |run| run.0))
            .bind(to_i64(limit))
            .fetch_all(&mut *conn)
            .await?;
        rows.into_iter()
            .map(|(run, attempt, state, queued_at, group, name)| {
                Ok(OutstandingAttempt {
                    attempt: attempt_id((run, attempt)),
                    state: run_state(state)?,
                    queued_at: Timestamp::from_millis(queued_at),
                    executor: executor_id(&group, &name)?,
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
        Ok(rows.into_iter().map(attempt_id).collect())
    }
}

fn capabilities(heartbeat: &HeartbeatRow<'_>) -> String {
    let capabilities = heartbeat.capabilities.iter().map(Cow::as_ref);
    capabilities.collect::<serde_json::Value>().to_string()
}

/// A row of [`ALL`].
fn executor(row: &PgRow) -> Result<Executor> {
    let count = |column: &str| row.try_get::<i64, _>(column);
    Ok(Executor {
        heartbeat: Heartbeat {
            executor: executor_id(row.try_get("group_name")?, row.try_get("name")?)?,
            incarnation: row.try_get("incarnation")?,
            capabilities: row.try_get("capabilities")?,
            capacity: to_u32(count("capacity")?),
            held: to_u64(count("held")?),
            running: to_u64(count("running")?),
            draining: row.try_get("draining")?,
            gone: row.try_get("gone")?,
        },
        last_heartbeat_at: Timestamp::from_millis(count("last_heartbeat_at")?),
    })
}

/// An executor from its columns.
pub(crate) fn executor_id(group: &str, name: &str) -> Result<ExecutorId> {
    Ok(ExecutorId {
        group: parse_name(group)?,
        name: parse_name(name)?,
    })
}
