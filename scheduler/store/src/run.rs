//! Runs: results of reading and listing them.

use cueline_model::{
    AccessScope, ExecutorName, GroupName, JobId, JobName, LogLine, Namespace, RunId, RunKind,
    RunState, Shard, Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::list::{LabelFilter, Order};

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
    /// The run whose end created it.
    pub parent: Option<RunId>,
}

/// A retry, a cancellation or another unusual event of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineEntry {
    /// When it happened, by the database's clock.
    pub at: Timestamp,
    /// The attempt that it is about.
    pub attempt: u32,
    /// One word: `retry`, `rerun`, `returned`, `republished`, `cancel`, `refused`, `skipped`, `left_out`, `flow_stopped`,
    /// `retried` or `triggered`.
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

/// Selects the runs to list. An empty list of values does not filter; of several values, one must match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Runs of jobs in this namespace; `None` for all namespaces.
    pub namespace: Option<Namespace>,
    /// Only runs of jobs in groups of these scopes; `None` for all.
    pub within: Option<Vec<AccessScope>>,
    /// Runs of jobs with one of these names, deleted jobs included.
    pub jobs: Vec<JobName>,
    /// Runs of jobs that are in one of these groups now. Deleted jobs stay in their last group.
    pub groups: Vec<GroupName>,
    /// Runs of jobs whose present definition has all of these labels.
    pub labels: Vec<LabelFilter>,
    /// Runs in one of these states.
    pub states: Vec<RunState>,
    /// Runs of one of these kinds.
    pub kinds: Vec<RunKind>,
    /// Runs whose current or last attempt was given to an executor with one of these names.
    pub executors: Vec<ExecutorName>,
    /// Runs that were written at this time or later.
    pub since: Option<Timestamp>,
    /// Runs that were written before this time.
    pub until: Option<Timestamp>,
    /// The direction of the list, which is sorted by id.
    pub order: Order,
    /// Runs behind this one in the order of the list.
    pub after: Option<RunId>,
    /// The most runs to return.
    pub limit: usize,
}

/// A page of runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunList {
    /// The runs, in the order of the list.
    pub runs: Vec<Run>,
    /// Pass it as [`after`](RunFilter::after) for the next page. `None` on the last page.
    pub next: Option<RunId>,
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
