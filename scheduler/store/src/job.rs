//! Jobs: results of applying, listing and auditing them.

use std::sync::Arc;

use cueline_model::{Job, JobId, JobName, RunId, RunState, Timestamp};
use serde::{Deserialize, Serialize};

use crate::run::Run;

/// How applying a definition changes a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The job did not exist.
    Created,
    /// The stored definition differed.
    Updated,
    /// The stored definition was the same.
    Unchanged,
}

/// How [`Store::apply_jobs`](crate::Store::apply_jobs) changed one job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedJob {
    /// The name of the job.
    pub name: JobName,
    /// The id of the job; `None` for a job that a dry run would create.
    pub id: Option<JobId>,
    /// The version of the job: after the change, or the present one in a dry run. `None` for a job that a dry run would
    /// create.
    #[serde(default)]
    pub version: Option<i64>,
    /// The change.
    pub change: Change,
}

/// A job with the values that a list shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSummary {
    /// The job.
    #[serde(flatten)]
    pub job: Arc<Job>,
    /// The next fire time. `None` while paused, after the end of the schedule, and while a `fixed_delay` job runs.
    pub next_fire: Option<Timestamp>,
    /// The newest run that has started or ended.
    pub last: Option<Run>,
    /// Runs of the last 24 hours by state; states without runs are left out.
    pub day: Vec<(RunState, u64)>,
}

/// One expected fire time of a past window, and the run that accounts for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// The fire time.
    pub fire_at: Timestamp,
    /// The run that accounts for it. `None` means that the fire time is lost, which must not happen to an enabled job.
    pub run: Option<RunId>,
    /// The shard index of the run.
    pub shard: Option<u32>,
    /// The state of the run.
    pub state: Option<RunState>,
}
