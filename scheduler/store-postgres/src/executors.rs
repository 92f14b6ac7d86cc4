//! Executors, and what they should hold.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use cueline_model::{AttemptId, ExecutorId, Heartbeat, RunId, Timestamp};
use cueline_store::{Executor, OutstandingAttempt, StoreError};
use sqlx::FromRow;

use crate::PgStore;
use crate::database::commit;
use crate::error::failed;
use crate::rows::{clean, int, name, small, state, unsigned};

/// Lists within a list do not go in as arrays: the capabilities of one executor are one JSON text.
const BEAT: &str = "
    INSERT INTO executor (grp, name, incarnation, capabilities, capacity, held, running, draining, gone, last_heartbeat_at)
    SELECT e.grp, e.name, e.incarnation, ARRAY(SELECT jsonb_array_elements_text(e.capabilities::jsonb)), e.capacity, e.held, e.running,
        e.draining, e.gone, $10
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::boolean[],
        $9::boolean[]) e (grp, name, incarnation, capabilities, capacity, held, running, draining, gone)
    ON CONFLICT (grp, name) DO UPDATE SET incarnation = excluded.incarnation, capabilities = excluded.capabilities,
        capacity = excluded.capacity, held = excluded.held, running = excluded.running, draining = excluded.draining,
        gone = excluded.gone, last_heartbeat_at = greatest(executor.last_heartbeat_at, excluded.last_heartbeat_at)";

const ALL: &str = "
    SELECT grp, name, incarnation, capabilities, capacity, held, running, draining, gone, last_heartbeat_at
    FROM executor ORDER BY grp, name";

pub(crate) const OUTSTANDING: &str = "
    SELECT l.id, l.attempt, l.state, l.queued_at, coalesce(l.sent_to_group, j.grp), l.executor
    FROM (SELECT id, job_id, attempt, state, queued_at, sent_to_group, executor FROM run_live
          WHERE state IN (2, 3) AND id > $2 AND queued_at < $1 AND executor IS NOT NULL ORDER BY id LIMIT $3) l
        JOIN job j ON j.id = l.job_id
    ORDER BY l.id";

/// A worker whose clock is behind has started nothing before it was sent.
pub(crate) const OVERDUE: &str = "
    SELECT l.id, l.attempt FROM run_live l JOIN job j ON j.id = l.job_id
    WHERE l.state = 3 AND greatest(l.started_at, l.queued_at) + j.longest_ms < $1 ORDER BY l.id LIMIT $2";

#[derive(FromRow)]
struct Row {
    grp: String,
    name: String,
    incarnation: String,
    capabilities: Vec<String>,
    capacity: i64,
    held: i64,
    running: i64,
    draining: bool,
    gone: bool,
    last_heartbeat_at: i64,
}

/// What an executor announces, sorted, as one text.
fn capabilities(beat: &Heartbeat) -> String {
    let sorted: BTreeSet<_> = beat.capabilities.iter().map(|c| clean(c)).collect();
    let list: serde_json::Value = sorted.into_iter().map(Cow::into_owned).collect();
    list.to_string()
}

impl PgStore {
    pub(crate) async fn write_beats(&self, beats: &[Heartbeat]) -> Result<(), StoreError> {
        if beats.is_empty() {
            return Ok(());
        }
        // The last of each executor, in an order that is the same in all transactions.
        let last: BTreeMap<(&str, &str), &Heartbeat> = beats
            .iter()
            .map(|beat| {
                (
                    (beat.executor.group.as_str(), beat.executor.name.as_str()),
                    beat,
                )
            })
            .collect();
        let beats: Vec<&Heartbeat> = last.values().copied().collect();
        let mut tx = self.db.write().await?;
        let now = tx.now.as_millis();
        sqlx::query(BEAT)
            .bind(last.keys().map(|k| k.0).collect::<Vec<_>>())
            .bind(last.keys().map(|k| k.1).collect::<Vec<_>>())
            .bind(
                beats
                    .iter()
                    .map(|b| clean(&b.incarnation))
                    .collect::<Vec<_>>(),
            )
            .bind(beats.iter().map(|b| capabilities(b)).collect::<Vec<_>>())
            .bind(
                beats
                    .iter()
                    .map(|b| i64::from(b.capacity))
                    .collect::<Vec<_>>(),
            )
            .bind(beats.iter().map(|b| int(b.held)).collect::<Vec<_>>())
            .bind(beats.iter().map(|b| int(b.running)).collect::<Vec<_>>())
            .bind(beats.iter().map(|b| b.draining).collect::<Vec<_>>())
            .bind(beats.iter().map(|b| b.gone).collect::<Vec<_>>())
            .bind(now)
            .execute(&mut *tx)
            .await
            .map_err(failed("store heartbeats"))?;
        commit(tx).await
    }

    pub(crate) async fn all_executors(&self) -> Result<Vec<Executor>, StoreError> {
        let mut conn = self.db.glance().await?;
        let rows: Vec<Row> = sqlx::query_as(ALL)
            .fetch_all(&mut *conn)
            .await
            .map_err(failed("list executors"))?;
        rows.into_iter()
            .map(|row| {
                Ok(Executor {
                    heartbeat: Heartbeat {
                        executor: ExecutorId {
                            group: name(&row.grp)?,
                            name: name(&row.name)?,
                        },
                        incarnation: row.incarnation,
                        capabilities: row.capabilities,
                        capacity: small(row.capacity),
                        held: unsigned(row.held),
                        running: unsigned(row.running),
                        draining: row.draining,
                        gone: row.gone,
                    },
                    last_heartbeat_at: Timestamp::from_millis(row.last_heartbeat_at),
                })
            })
            .collect()
    }

    pub(crate) async fn held(
        &self,
        older_than_ms: u64,
        after: Option<RunId>,
        limit: usize,
    ) -> Result<Vec<OutstandingAttempt>, StoreError> {
        let mut conn = self.db.glance().await?;
        let now = self.db.now(&mut conn).await?;
        let rows: Vec<(i64, i32, i16, i64, String, String)> = sqlx::query_as(OUTSTANDING)
            .bind(now.minus_ms(older_than_ms).as_millis())
            .bind(after.map_or(0, |run| run.0))
            .bind(int(limit))
            .fetch_all(&mut *conn)
            .await
            .map_err(failed("list what executors should hold"))?;
        rows.into_iter()
            .map(|(run, attempt, code, queued_at, group, executor)| {
                Ok(OutstandingAttempt {
                    attempt: AttemptId {
                        run: RunId(run),
                        attempt: small(attempt),
                    },
                    state: state(code)?,
                    queued_at: Timestamp::from_millis(queued_at),
                    executor: ExecutorId {
                        group: name(&group)?,
                        name: name(&executor)?,
                    },
                })
            })
            .collect()
    }

    pub(crate) async fn too_long(
        &self,
        slack_ms: u64,
        limit: usize,
    ) -> Result<Vec<AttemptId>, StoreError> {
        let mut conn = self.db.glance().await?;
        let now = self.db.now(&mut conn).await?;
        let rows: Vec<(i64, i32)> = sqlx::query_as(OVERDUE)
            .bind(now.minus_ms(slack_ms).as_millis())
            .bind(int(limit))
            .fetch_all(&mut *conn)
            .await
            .map_err(failed("list overdue runs"))?;
        Ok(rows
            .into_iter()
            .map(|(run, attempt)| AttemptId {
                run: RunId(run),
                attempt: small(attempt),
            })
            .collect())
    }
}
