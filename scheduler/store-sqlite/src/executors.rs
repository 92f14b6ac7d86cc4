//! Executors, and what they should hold.

use std::collections::BTreeSet;

use cueline_model::{AttemptId, ExecutorId, ExecutorName, GroupName, Heartbeat, RunId, Timestamp};
use cueline_store::{Executor, OutstandingAttempt, StoreError};
use serde::{Deserialize, Serialize};

use crate::SqliteStore;
use crate::database::commit;
use crate::error::failed;
use crate::rows::{clean, decode, encode, int, small, state, unsigned};

const BEAT: &str = "
    INSERT INTO executor (grp, name, incarnation, capabilities, capacity, held, running, draining, gone, last_heartbeat_at)
    SELECT value ->> '$.grp', value ->> '$.name', value ->> '$.incarnation', value -> '$.capabilities', value ->> '$.capacity',
        value ->> '$.held', value ->> '$.running', value ->> '$.draining', value ->> '$.gone', ?2
    FROM json_each(?1) WHERE true
    ON CONFLICT (grp, name) DO UPDATE SET incarnation = excluded.incarnation, capabilities = excluded.capabilities,
        capacity = excluded.capacity, held = excluded.held, running = excluded.running, draining = excluded.draining,
        gone = excluded.gone, last_heartbeat_at = excluded.last_heartbeat_at";

const ALL: &str = "
    SELECT json_group_array(json_array(grp, name, incarnation, json(capabilities), capacity, held, running, draining, gone, last_heartbeat_at))
    FROM (SELECT * FROM executor ORDER BY grp, name)";

/// Two walks by id, each of which stops at the limit: what is out is claimed by nobody.
pub(crate) const OUTSTANDING: &str = "
    WITH out(id, job_id, attempt, state, queued_at, sent_to_group, executor) AS (
        SELECT * FROM (
            SELECT id, job_id, attempt, state, queued_at, sent_to_group, executor FROM run
            WHERE state = 2 AND state < 10 AND claimed_by IS NULL AND id > ?2 AND queued_at < ?1 AND executor IS NOT NULL
            ORDER BY id LIMIT ?3)
        UNION ALL
        SELECT * FROM (
            SELECT id, job_id, attempt, state, queued_at, sent_to_group, executor FROM run
            WHERE state = 3 AND state < 10 AND claimed_by IS NULL AND id > ?2 AND queued_at < ?1 AND executor IS NOT NULL
            ORDER BY id LIMIT ?3))
    SELECT json_group_array(json_array(o.id, o.attempt, o.state, o.queued_at, coalesce(o.sent_to_group, j.grp), o.executor))
    FROM (SELECT * FROM out ORDER BY id LIMIT ?3) o CROSS JOIN job j ON j.id = o.job_id";

/// A worker whose clock is behind has started nothing before it was sent.
pub(crate) const OVERDUE: &str = "
    SELECT json_group_array(json_array(id, attempt))
    FROM (SELECT r.id, r.attempt FROM run r CROSS JOIN job j ON j.id = r.job_id
          WHERE r.state = 3 AND r.state < 10 AND max(r.started_at, coalesce(r.queued_at, r.started_at)) + j.longest_ms < ?1 ORDER BY r.id LIMIT ?2)";

#[derive(Serialize)]
struct BeatRow<'a> {
    grp: &'a GroupName,
    name: &'a ExecutorName,
    incarnation: std::borrow::Cow<'a, str>,
    capabilities: BTreeSet<std::borrow::Cow<'a, str>>,
    capacity: u32,
    held: i64,
    running: i64,
    draining: u8,
    gone: u8,
}

#[derive(Deserialize)]
struct Row {
    group: GroupName,
    name: ExecutorName,
    incarnation: String,
    capabilities: Vec<String>,
    capacity: i64,
    held: i64,
    running: i64,
    draining: i64,
    gone: i64,
    last_heartbeat_at: Timestamp,
}

#[derive(Deserialize)]
struct OutstandingRow(RunId, i64, i64, Timestamp, GroupName, ExecutorName);

impl SqliteStore {
    pub(crate) async fn write_beats(&self, beats: &[Heartbeat]) -> Result<(), StoreError> {
        if beats.is_empty() {
            return Ok(());
        }
        let rows: Vec<BeatRow<'_>> = beats
            .iter()
            .map(|beat| BeatRow {
                grp: &beat.executor.group,
                name: &beat.executor.name,
                incarnation: clean(&beat.incarnation),
                capabilities: beat.capabilities.iter().map(|c| clean(c)).collect(),
                capacity: beat.capacity,
                held: int(beat.held),
                running: int(beat.running),
                draining: u8::from(beat.draining),
                gone: u8::from(beat.gone),
            })
            .collect();
        let mut tx = self.db.write().await?;
        sqlx::query(BEAT)
            .bind(encode(&rows)?)
            .bind(self.db.now().as_millis())
            .execute(&mut *tx)
            .await
            .map_err(failed("store heartbeats"))?;
        commit(tx).await
    }

    pub(crate) async fn all_executors(&self) -> Result<Vec<Executor>, StoreError> {
        let mut conn = self.db.read().await?;
        let text: String = sqlx::query_scalar(ALL)
            .fetch_one(&mut *conn)
            .await
            .map_err(failed("list executors"))?;
        let rows: Vec<Row> = decode(&text)?;
        Ok(rows
            .into_iter()
            .map(|row| Executor {
                heartbeat: Heartbeat {
                    executor: ExecutorId {
                        group: row.group,
                        name: row.name,
                    },
                    incarnation: row.incarnation,
                    capabilities: row.capabilities,
                    capacity: small(row.capacity),
                    held: unsigned(row.held),
                    running: unsigned(row.running),
                    draining: row.draining == 1,
                    gone: row.gone == 1,
                },
                last_heartbeat_at: row.last_heartbeat_at,
            })
            .collect())
    }

    pub(crate) async fn held(
        &self,
        older_than_ms: u64,
        after: Option<RunId>,
        limit: usize,
    ) -> Result<Vec<OutstandingAttempt>, StoreError> {
        let mut conn = self.db.read().await?;
        let text: String = sqlx::query_scalar(OUTSTANDING)
            .bind(self.db.now().minus_ms(older_than_ms).as_millis())
            .bind(after.map_or(0, |run| run.0))
            .bind(int(limit))
            .fetch_one(&mut *conn)
            .await
            .map_err(failed("list what executors should hold"))?;
        let rows: Vec<OutstandingRow> = decode(&text)?;
        rows.into_iter()
            .map(
                |OutstandingRow(run, attempt, code, queued_at, group, name)| {
                    Ok(OutstandingAttempt {
                        attempt: AttemptId {
                            run,
                            attempt: small(attempt),
                        },
                        state: state(code)?,
                        queued_at,
                        executor: ExecutorId { group, name },
                    })
                },
            )
            .collect()
    }

    pub(crate) async fn too_long(
        &self,
        slack_ms: u64,
        limit: usize,
    ) -> Result<Vec<AttemptId>, StoreError> {
        let mut conn = self.db.read().await?;
        let text: String = sqlx::query_scalar(OVERDUE)
            .bind(self.db.now().minus_ms(slack_ms).as_millis())
            .bind(int(limit))
            .fetch_one(&mut *conn)
            .await
            .map_err(failed("list overdue runs"))?;
        let rows: Vec<(RunId, i64)> = decode(&text)?;
        Ok(rows
            .into_iter()
            .map(|(run, attempt)| AttemptId {
                run,
                attempt: small(attempt),
            })
            .collect())
    }
}
