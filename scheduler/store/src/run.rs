//! Runs: results of reading and listing them.

use cueline_model::{
    ExecutorName, GroupName, JobId, JobName, LogLine, Namespace, RunId, RunKind, RunState, Shard,
    Timestamp,
};
use serde::{Deserialize, Serialize};

/// A run with all its columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Identity of the run.
    pub id: RunId,
    /// Its job.
    pub job_id: JobId,
    /// The name of the job.
    pub job: JobName,
    /// The group that the current attempt was published to; before that, the group of the job.
    pub group: GroupName,
    /// What created the run.
    pub kind: RunKind,
    /// Its state.
    pub state: RunState,
    /// Number of the current or last attempt, from 1.
    pub attempt: u32,
    /// Retries used up.
    pub retries: u32,
    /// The fire time.
    pub fire_at: Timestamp,
    /// When the current attempt is due.
    pub due_at: Timestamp,
    /// The part of the work that the run does.
    pub shard: Shard,
    /// The executor of the current or last attempt.
    pub executor: Option<ExecutorName>,
    /// Parameter text in place of the job's own.
    pub params: Option<String>,
    /// When the run was written.
    pub created_at: Timestamp,
    /// When the broker confirmed the current or last trigger.
    pub queued_at: Option<Timestamp>,
    /// When the handler of the current or last attempt started, by the executor's clock.
    pub started_at: Option<Timestamp>,
    /// When the run ended.
    pub ended_at: Option<Timestamp>,
    /// Exit status of the last attempt.
    pub exit_status: Option<i32>,
    /// Why the run ended as it did.
    pub message: Option<String>,
    /// What a successful handler returned.
    pub output: Option<String>,
    /// The part of the work that is done, from 0 to 1.
    pub progress: Option<f64>,
    /// Whether its cancellation was requested.
    pub cancel_requested: bool,
    /// The run whose success created it.
    pub parent: Option<RunId>,
}

/// A retry, a cancellation or another unusual event of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineEntry {
    /// When it happened, by the database's clock.
    pub at: Timestamp,
    /// The attempt that it is about.
    pub attempt: u32,
    /// One word: `retry`, `rerun`, `returned`, `republished`, `cancel`, `refused`, `skipped`, `left_out` or
    /// `triggered`.
    pub event: String,
    /// Details for the user.
    pub detail: String,
}

/// A run with its timeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunDetail {
    /// The run.
    #[serde(flatten)]
    pub run: Run,
    /// Its events, oldest first.
    pub timeline: Vec<TimelineEntry>,
}

/// Selects the runs to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Runs of jobs in this namespace; `None` for all namespaces. Without effect beside `job`, whose name is qualified.
    pub namespace: Option<Namespace>,
    /// Runs of jobs with this name, deleted jobs included; `None` for all jobs.
    pub job: Option<JobName>,
    /// Runs in one of these states; empty for all states.
    pub states: Vec<RunState>,
    /// Runs with a lower id. Pass the last id of a page to get the next page.
    pub before: Option<RunId>,
    /// The most runs to return.
    pub limit: usize,
}

/// A stored line of a run's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredLogLine {
    /// Position in the log of the whole run, ascending over its attempts. Pass the last one to read the lines after it.
    pub cursor: i64,
    /// The attempt that wrote the line.
    pub attempt: u32,
    /// The line.
    #[serde(flatten)]
    pub line: LogLine,
}

/// Counts over the whole store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreStats {
    /// Jobs that are not deleted.
    pub jobs: u64,
    /// Runs that have not ended, by state; states without runs are left out.
    pub live: Vec<(RunState, u64)>,
    /// How long the oldest `scheduled` run has been due, in milliseconds. `None` if none is due.
    pub oldest_due_ms: Option<u64>,
}
