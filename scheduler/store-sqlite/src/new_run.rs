//! Writing new runs.

use std::sync::Arc;

use cueline_model::{ExecutorName, Job, JobId, RunId, RunKind, RunState, Shard, Timestamp, expand};
use cueline_store::adapter::jobs::is_fixed_delay;
use cueline_store::adapter::skipped::why;
use cueline_store::{ClaimedRun, NodeId, PlannedRun, SkippedFires, StoreError};
use serde::Serialize;
use sqlx::SqliteConnection;

use crate::error::failed;
use crate::live::Live;
use crate::rows::{clean, encode, unsigned};

const LAST_ID: &str = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'run'), 0)";

/// Runs of a schedule without shards, pins or reasons: nearly all of them.
const INSERT_PLAIN: &str = "
    INSERT INTO run (id, job_id, kind, state, fire_key, fire_at, due_at, turn, awaited, claimed_by, created_at)
    SELECT value ->> 0, value ->> 1, 0, 0, value ->> 2, value ->> 2, value ->> 3, value ->> 4, value ->> 5, ?2, ?3
    FROM json_each(?1) WHERE true
    ON CONFLICT DO NOTHING";

const INSERT: &str = "
    INSERT INTO run (id, job_id, kind, state, fire_key, fire_at, due_at, turn, awaited, claimed_by, created_at,
                     shard_index, shard_total, shard_item, executor, pinned, parent, params, message, skipped_since, ended_at)
    SELECT value ->> '$.id', value ->> '$.job', value ->> '$.kind', value ->> '$.state', value ->> '$.key',
           value ->> '$.fire_at', value ->> '$.due_at', value ->> '$.turn', value ->> '$.awaited', value ->> '$.claimed_by',
           ?2, value ->> '$.shard_index', value ->> '$.shard_total', value ->> '$.shard_item', value ->> '$.executor',
           value ->> '$.executor' IS NOT NULL, value ->> '$.parent', value ->> '$.params', value ->> '$.message',
           value ->> '$.skipped_since', CASE WHEN value ->> '$.state' >= 10 THEN ?2 END
    FROM json_each(?1) WHERE true
    ON CONFLICT DO NOTHING";

const WRITTEN: &str = "
    SELECT json_group_array(r.id) FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value";

const EVENTS_OF_SKIPPED: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT r.id, ?2, 1, 'skipped', r.message
    FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value
    WHERE r.state = 18";

/// A run to write.
#[derive(Debug, Clone)]
pub(crate) struct NewRun {
    pub(crate) id: i64,
    pub(crate) job: Arc<Job>,
    pub(crate) kind: RunKind,
    pub(crate) fire_key: i64,
    pub(crate) fire_at: Timestamp,
    pub(crate) due_at: Timestamp,
    pub(crate) shard: Shard,
    pub(crate) executor: Option<ExecutorName>,
    pub(crate) turn: i64,
    pub(crate) claimed_by: Option<NodeId>,
    pub(crate) parent: Option<RunId>,
    pub(crate) params: Option<String>,
    pub(crate) skipped: Option<SkippedFires>,
}

#[derive(Serialize)]
struct Row<'a> {
    id: i64,
    job: JobId,
    kind: u8,
    state: u8,
    key: i64,
    fire_at: Timestamp,
    due_at: Timestamp,
    turn: i64,
    awaited: u8,
    claimed_by: Option<NodeId>,
    shard_index: u32,
    shard_total: u32,
    shard_item: Option<&'a str>,
    executor: Option<&'a str>,
    parent: Option<RunId>,
    params: Option<std::borrow::Cow<'a, str>>,
    message: Option<String>,
    skipped_since: Option<Timestamp>,
}

#[derive(Serialize)]
struct PlainRow(i64, JobId, Timestamp, Timestamp, i64, u8);

/// What the runs of one fire have in common.
#[derive(Debug, Clone)]
pub(crate) struct Fire {
    pub(crate) kind: RunKind,
    /// `None`: the id of its first run.
    pub(crate) key: Option<i64>,
    pub(crate) at: Timestamp,
    pub(crate) due_at: Timestamp,
    /// `None`: they wait for a node.
    pub(crate) claimed_by: Option<NodeId>,
    pub(crate) parent: Option<RunId>,
    pub(crate) params: Option<String>,
}

impl From<NewRun> for ClaimedRun {
    /// At its first attempt, of which nothing has been published.
    fn from(run: NewRun) -> Self {
        Self {
            id: RunId(run.id),
            attempt: 1,
            job: run.job,
            kind: run.kind,
            fire_at: run.fire_at,
            due_at: run.due_at,
            shard: run.shard,
            params: run.params,
            executor: run.executor,
            sequence: unsigned(run.turn),
            maybe_published: false,
        }
    }
}

impl NewRun {
    /// A run that the planner wants; its id is still to be given.
    pub(crate) fn planned(job: &Arc<Job>, turn: i64, node: NodeId, plan: PlannedRun) -> Self {
        Self {
            id: 0,
            job: Arc::clone(job),
            kind: RunKind::Schedule,
            fire_key: plan.fire_at.as_millis(),
            fire_at: plan.fire_at,
            due_at: plan.due_at,
            shard: plan.shard,
            executor: plan.executor,
            turn,
            claimed_by: plan.skipped.is_none().then_some(node),
            parent: None,
            params: None,
            skipped: plan.skipped,
        }
    }

    /// The runs, one for each shard, that a fire outside of the planner makes. `first_id` is the id of the first.
    pub(crate) fn of_fire(
        first_id: i64,
        job: &Arc<Job>,
        first_turn: i64,
        live: &mut Live,
        fire: &Fire,
    ) -> Vec<Self> {
        expand(&job.spec.route, &live.candidates(&job.spec))
            .into_iter()
            .zip(0_i64..)
            .map(|(shard, n)| Self {
                id: first_id + n,
                job: Arc::clone(job),
                kind: fire.kind,
                fire_key: fire.key.unwrap_or(first_id),
                fire_at: fire.at,
                due_at: fire.due_at,
                shard: shard.shard,
                executor: shard.executor,
                turn: first_turn + n,
                claimed_by: fire.claimed_by,
                parent: fire.parent,
                params: fire.params.clone(),
                skipped: None,
            })
            .collect()
    }

    fn is_plain(&self) -> bool {
        self.kind == RunKind::Schedule
            && self.shard.total == 1
            && self.shard.item.is_none()
            && self.executor.is_none()
            && self.skipped.is_none()
            && self.params.is_none()
    }

    fn awaited(&self) -> u8 {
        u8::from(is_fixed_delay(&self.job.spec))
    }

    fn row(&self) -> Row<'_> {
        let state = if self.skipped.is_some() {
            RunState::Skipped
        } else {
            RunState::Scheduled
        };
        Row {
            id: self.id,
            job: self.job.id,
            kind: self.kind.code(),
            state: state.code(),
            key: self.fire_key,
            fire_at: self.fire_at,
            due_at: self.due_at,
            turn: self.turn,
            awaited: self.awaited(),
            claimed_by: self.claimed_by,
            shard_index: self.shard.index,
            shard_total: self.shard.total,
            shard_item: self.shard.item.as_deref(),
            executor: self.executor.as_ref().map(ExecutorName::as_str),
            parent: self.parent,
            params: self.params.as_deref().map(clean),
            message: self.skipped.as_ref().map(why),
            skipped_since: self.skipped.as_ref().map(|s| s.since),
        }
    }
}

/// The highest id that a run ever had.
pub(crate) async fn last_id(conn: &mut SqliteConnection) -> Result<i64, StoreError> {
    sqlx::query_scalar(LAST_ID)
        .fetch_one(conn)
        .await
        .map_err(failed("allocate run ids"))
}

/// Writes runs, leaving out those whose fire time and shard have a run already; the ids of those left out.
pub(crate) async fn insert(
    conn: &mut SqliteConnection,
    runs: &[NewRun],
    now: Timestamp,
) -> Result<Vec<i64>, StoreError> {
    if runs.is_empty() {
        return Ok(Vec::new());
    }
    let fail = failed("write runs");
    let (plain, special): (Vec<&NewRun>, Vec<&NewRun>) = runs.iter().partition(|r| r.is_plain());
    let mut written = 0;
    if let Some(first) = plain.first() {
        let rows: Vec<PlainRow> = plain
            .iter()
            .map(|r| PlainRow(r.id, r.job.id, r.fire_at, r.due_at, r.turn, r.awaited()))
            .collect();
        written += sqlx::query(INSERT_PLAIN)
            .bind(encode(&rows)?)
            .bind(first.claimed_by.map(|n| n.0))
            .bind(now.as_millis())
            .execute(&mut *conn)
            .await
            .map_err(&fail)?
            .rows_affected();
    }
    if !special.is_empty() {
        let rows: Vec<Row<'_>> = special.iter().map(|r| r.row()).collect();
        written += sqlx::query(INSERT)
            .bind(encode(&rows)?)
            .bind(now.as_millis())
            .execute(&mut *conn)
            .await
            .map_err(&fail)?
            .rows_affected();
        note_skipped(conn, &special, now).await?;
    }
    if written == runs.len() as u64 {
        return Ok(Vec::new());
    }
    let ids: Vec<i64> = runs.iter().map(|r| r.id).collect();
    let text: String = sqlx::query_scalar(WRITTEN)
        .bind(encode(&ids)?)
        .fetch_one(conn)
        .await
        .map_err(&fail)?;
    let there: std::collections::HashSet<i64> = crate::rows::decode(&text)?.into_iter().collect();
    Ok(ids.into_iter().filter(|id| !there.contains(id)).collect())
}

async fn note_skipped(
    conn: &mut SqliteConnection,
    runs: &[&NewRun],
    now: Timestamp,
) -> Result<(), StoreError> {
    let ids: Vec<i64> = runs
        .iter()
        .filter(|r| r.skipped.is_some())
        .map(|r| r.id)
        .collect();
    if ids.is_empty() {
        return Ok(());
    }
    sqlx::query(EVENTS_OF_SKIPPED)
        .bind(encode(&ids)?)
        .bind(now.as_millis())
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("write the timeline of skipped runs"))
}
