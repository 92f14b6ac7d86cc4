//! Writes new runs.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use cueline_model::{ExecutorName, JobId, RunId, RunState, Timestamp};
use cueline_store::NodeId;
use cueline_store::adapter::convert::without_nul;
use cueline_store::adapter::jobs::is_fixed_delay;
use cueline_store::adapter::new_run::NewRun;
use cueline_store::adapter::timeline::skip_message;
use serde::Serialize;
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::error::Result;

/// The highest id of any run so far, deleted ones included.
const LAST_ID: &str = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'run'), 0)";

/// For [plain](NewRun::is_plain) runs.
const INSERT_PLAIN: &str = "
    INSERT INTO run (id, job_id, kind, state, fire_key, fire_at, due_at, sequence, delays_next_fire, claimed_by, created_at)
    SELECT value ->> 0, value ->> 1, 0, 0, value ->> 2, value ->> 2, value ->> 3, value ->> 4, value ->> 5, ?2, ?3
    FROM jsonb_each(?1) WHERE true
    ON CONFLICT DO NOTHING";

const INSERT: &str = "
    INSERT INTO run (id, job_id, kind, state, fire_key, fire_at, due_at, sequence, delays_next_fire, claimed_by, created_at,
                     shard_index, shard_total, shard_item, executor, pinned, parent, params, message, skipped_since, ended_at)
    SELECT value ->> '$.id', value ->> '$.job', value ->> '$.kind', value ->> '$.state', value ->> '$.fire_key',
           value ->> '$.fire_at', value ->> '$.due_at', value ->> '$.sequence', value ->> '$.delays_next_fire',
           value ->> '$.claimed_by', ?2, value ->> '$.shard_index', value ->> '$.shard_total', value ->> '$.shard_item',
           value ->> '$.executor', value ->> '$.executor' IS NOT NULL, value ->> '$.parent', value ->> '$.params',
           value ->> '$.message', value ->> '$.skipped_since', CASE WHEN value ->> '$.state' >= 10 THEN ?2 END
    FROM json_each(?1) WHERE true
    ON CONFLICT DO NOTHING";

const WRITTEN: &str = "
    SELECT json_group_array(r.id) FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value";

const INSERT_SKIP_EVENTS: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT r.id, ?2, 1, 'skipped', r.message
    FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value
    WHERE r.state = 18";

const INSERT_NOTES: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT r.id, ?2, 1, 'left_out', e.value ->> 1
    FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value ->> 0";

const ADD_RUN_COUNTS: &str = "
    UPDATE job_due SET run_count = run_count + (e.value ->> 1) FROM json_each(?1) e WHERE job_id = e.value ->> 0";

/// A run as [`INSERT`] takes it.
#[derive(Serialize)]
struct RunRow<'a> {
    id: i64,
    job: JobId,
    kind: u8,
    state: u8,
    fire_key: Option<i64>,
    fire_at: Timestamp,
    due_at: Timestamp,
    sequence: i64,
    delays_next_fire: bool,
    claimed_by: Option<NodeId>,
    shard_index: u32,
    shard_total: u32,
    shard_item: Option<&'a str>,
    executor: Option<&'a str>,
    parent: Option<RunId>,
    params: Option<Cow<'a, str>>,
    message: Option<String>,
    skipped_since: Option<Timestamp>,
}

impl<'a> RunRow<'a> {
    fn new(run: &'a NewRun) -> Self {
        let state = match run.skipped {
            Some(_) => RunState::Skipped,
            None => RunState::Scheduled,
        };
        Self {
            id: run.id,
            job: run.job.id,
            kind: run.kind.code(),
            state: state.code(),
            fire_key: run.fire_key,
            fire_at: run.fire_at,
            due_at: run.due_at,
            sequence: run.sequence,
            delays_next_fire: is_fixed_delay(&run.job.spec),
            claimed_by: run.claimed_by,
            shard_index: run.shard.index,
            shard_total: run.shard.total,
            shard_item: run.shard.item.as_deref(),
            executor: run.executor.as_ref().map(ExecutorName::as_str),
            parent: run.parent,
            params: run.params.as_deref().map(without_nul),
            message: run.skipped.as_ref().map(skip_message),
            skipped_since: run.skipped.as_ref().map(|skipped| skipped.since),
        }
    }
}

/// Allocates ids and writes the runs. A run is left out if its fire time and shard already have one. Returns the ids of
/// those left out.
pub(crate) async fn insert(
    conn: &mut SqliteConnection,
    runs: &mut [NewRun],
    now: Timestamp,
) -> Result<BTreeSet<i64>> {
    allocate_ids(conn, runs).await?;
    let (plain, special): (Vec<&NewRun>, Vec<&NewRun>) = runs.iter().partition(|r| r.is_plain());
    let mut written = 0;
    if let Some(first) = plain.first() {
        let rows: Vec<_> = plain
            .iter()
            .map(|r| {
                let delays = u8::from(is_fixed_delay(&r.job.spec));
                (r.id, r.job.id, r.fire_at, r.due_at, r.sequence, delays)
            })
            .collect();
        written += sqlx::query(INSERT_PLAIN)
            .bind(Json(rows))
            .bind(first.claimed_by.map(|node| node.0))
            .bind(now.as_millis())
            .execute(&mut *conn)
            .await?
            .rows_affected();
    }
    if !special.is_empty() {
        let rows: Vec<RunRow<'_>> = special.iter().map(|run| RunRow::new(run)).collect();
        written += sqlx::query(INSERT)
            .bind(Json(rows))
            .bind(now.as_millis())
            .execute(&mut *conn)
            .await?
            .rows_affected();
        insert_skip_events(conn, &special, now).await?;
        insert_notes(conn, &special, now).await?;
    }
    if written == runs.len() as u64 {
        return Ok(BTreeSet::new());
    }
    let ids: Vec<i64> = runs.iter().map(|run| run.id).collect();
    let Json(written): Json<BTreeSet<i64>> = sqlx::query_scalar(WRITTEN)
        .bind(Json(&ids))
        .fetch_one(conn)
        .await?;
    Ok(ids.into_iter().filter(|id| !written.contains(id)).collect())
}

/// Like [`insert`], for runs outside of the schedule. Adds them to the run counts of their jobs. Returns how many were
/// written.
pub(crate) async fn insert_and_count(
    conn: &mut SqliteConnection,
    runs: &mut [NewRun],
    now: Timestamp,
) -> Result<usize> {
    let left_out = insert(conn, runs, now).await?;
    let mut counts: BTreeMap<i64, i64> = BTreeMap::new();
    for run in runs.iter().filter(|run| !left_out.contains(&run.id)) {
        *counts.entry(run.job.id.0).or_default() += 1;
    }
    sqlx::query(ADD_RUN_COUNTS)
        .bind(Json(counts.into_iter().collect::<Vec<_>>()))
        .execute(conn)
        .await?;
    Ok(runs.len() - left_out.len())
}

/// Ids ascend in the order of the list.
async fn allocate_ids(conn: &mut SqliteConnection, runs: &mut [NewRun]) -> Result<()> {
    let last_id: i64 = sqlx::query_scalar(LAST_ID).fetch_one(conn).await?;
    let first_id = last_id + 1;
    for (run, id) in runs.iter_mut().zip(first_id..) {
        run.id = id;
        run.fire_key.get_or_insert(first_id);
    }
    Ok(())
}

async fn insert_skip_events(
    conn: &mut SqliteConnection,
    runs: &[&NewRun],
    now: Timestamp,
) -> Result<()> {
    let ids: Vec<i64> = runs
        .iter()
        .filter(|run| run.skipped.is_some())
        .map(|run| run.id)
        .collect();
    if !ids.is_empty() {
        sqlx::query(INSERT_SKIP_EVENTS)
            .bind(Json(ids))
            .bind(now.as_millis())
            .execute(conn)
            .await?;
    }
    Ok(())
}

/// Names what the runs leave out: silent executors of a broadcast fire, outputs that are too long.
async fn insert_notes(conn: &mut SqliteConnection, runs: &[&NewRun], now: Timestamp) -> Result<()> {
    let notes: Vec<(i64, &str)> = runs
        .iter()
        .filter_map(|run| Some((run.id, run.left_out.as_deref()?)))
        .collect();
    if !notes.is_empty() {
        sqlx::query(INSERT_NOTES)
            .bind(Json(notes))
            .bind(now.as_millis())
            .execute(conn)
            .await?;
    }
    Ok(())
}
