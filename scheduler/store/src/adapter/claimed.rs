//! Reads claimed runs from rows.

use std::collections::HashMap;

use cueline_model::{RunId, RunState, Shard, Timestamp};
use serde::Deserialize;

use super::convert::{flag, parse_name, run_kind, run_state, to_u32, to_u64};
use super::definitions::{JobsById, in_published_group, job_of};
use crate::{ClaimedRun, StoreError};

/// The columns of a claimed run, in the order in which statements return them.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "named like the columns of the tables")]
pub struct ClaimedRow {
    pub id: i64,
    pub attempt: i64,
    pub state: i64,
    pub kind: i64,
    pub fire_at: i64,
    pub due_at: i64,
    pub shard_index: i64,
    pub shard_total: i64,
    pub shard_item: Option<String>,
    pub params: Option<String>,
    pub executor: Option<String>,
    #[serde(deserialize_with = "flag")]
    pub pinned: bool,
    pub sequence: i64,
    #[serde(deserialize_with = "flag")]
    pub maybe_published: bool,
    pub published_group: Option<String>,
    pub job_id: i64,
    pub job_version: i64,
    pub retries: i64,
}

/// The jobs of claimed runs, with their versions.
pub fn jobs_of(rows: &[ClaimedRow]) -> HashMap<i64, i64> {
    rows.iter()
        .map(|row| (row.job_id, row.job_version))
        .collect()
}

/// How long a run is left to other nodes after a node could not read its definition, in milliseconds. Each of its
/// claims then costs one look in this time.
pub const UNREADABLE_WAIT_MS: u64 = 10_000;

/// Claimed runs, by whether this program can read their definitions.
#[derive(Debug, Default)]
pub struct ClaimedRuns {
    /// The runs to dispatch, in the order of their rows.
    pub runs: Vec<ClaimedRun>,
    /// The ids of the others. The adapter releases them for [`UNREADABLE_WAIT_MS`], because a live node that keeps them
    /// would withhold them from nodes that can read the definition.
    pub unreadable: Vec<i64>,
}

/// Claimed runs with their jobs.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) for values that no version of this program writes.
pub fn claimed_runs(rows: Vec<ClaimedRow>, jobs: &JobsById) -> Result<ClaimedRuns, StoreError> {
    let mut claimed = ClaimedRuns::default();
    for row in rows {
        if jobs.contains_key(&row.job_id) {
            claimed.runs.push(claimed_run(row, jobs)?);
        } else {
            claimed.unreadable.push(row.id);
        }
    }
    Ok(claimed)
}

fn claimed_run(row: ClaimedRow, jobs: &JobsById) -> Result<ClaimedRun, StoreError> {
    let maybe_published = row.maybe_published && run_state(row.state)? == RunState::Dispatching;
    let group = row.published_group.filter(|_| maybe_published);
    let executor = row.executor.filter(|_| row.pinned || maybe_published);
    Ok(ClaimedRun {
        id: RunId(row.id),
        attempt: to_u32(row.attempt),
        job: in_published_group(job_of(jobs, row.job_id)?, group.as_deref())?,
        kind: run_kind(row.kind)?,
        fire_at: Timestamp::from_millis(row.fire_at),
        due_at: Timestamp::from_millis(row.due_at),
        shard: Shard {
            index: to_u32(row.shard_index),
            total: to_u32(row.shard_total),
            item: row.shard_item,
        },
        params: row.params,
        executor: executor.as_deref().map(parse_name).transpose()?,
        sequence: to_u64(row.sequence),
        maybe_published,
        lane_at: Timestamp::from_millis(if row.retries == 0 {
            row.fire_at
        } else {
            row.due_at
        }),
    })
}
