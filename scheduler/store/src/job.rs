//! Jobs: results of applying, listing and auditing them.

use std::sync::Arc;

use cueline_model::{
    AccessScope, GroupName, Job, JobId, JobName, Namespace, RunId, RunState, Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::list::{LabelFilter, NameFilter, Order};
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

/// Selects the jobs to list. An empty list of values does not filter; of several values, one must match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// Jobs in this namespace; `None` for all namespaces.
    pub namespace: Option<Namespace>,
    /// Only jobs of groups in these scopes; `None` for all.
    pub within: Option<Vec<AccessScope>>,
    /// Jobs with one of these qualified names.
    pub names: Vec<NameFilter>,
    /// Jobs of one of these groups.
    pub groups: Vec<GroupName>,
    /// Jobs with all of these labels.
    pub labels: Vec<LabelFilter>,
    /// Jobs whose schedule is running (`true`) or paused.
    pub enabled: Option<bool>,
    /// The order of the list.
    pub sort: JobSort,
    /// Where the page begins; `None` for the first page. It belongs to `sort`.
    pub after: Option<JobPosition>,
    /// The most jobs to return.
    pub limit: usize,
}

/// The order of a list of jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobSort {
    /// By the bytes of the qualified name.
    Name(Order),
    /// By the next fire time, then by id. Jobs without one come last in both directions.
    NextFire(Order),
}

impl Default for JobSort {
    fn default() -> Self {
        Self::Name(Order::Ascending)
    }
}

/// The last job that was looked at for a page. It has numbers only, so it tells nothing about a job that its reader may
/// not know of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobPosition {
    /// The next fire time, in a list that is sorted by it.
    pub next_fire: Option<Timestamp>,
    /// The id of the job. The store knows the name of each id, also after the job was deleted.
    pub id: JobId,
}

/// A page of jobs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobList {
    /// The jobs, in the order of the list.
    pub jobs: Vec<JobSummary>,
    /// Where the next page begins; `None` on the last page.
    pub next: Option<JobPosition>,
}

/// One expected fire time of a past window, and the run that accounts for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// The fire time.
    pub fire_at: Timestamp,
    /// The run that accounts for it. `None` means that the fire time is lost, which must not happen to an enabled job, unless
    /// `pruned` is set.
    pub run: Option<RunId>,
    /// The shard index of the run.
    pub shard: Option<u32>,
    /// The state of the run.
    pub state: Option<RunState>,
    /// There is no run any more, because runs of this time were deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pruned: bool,
}
