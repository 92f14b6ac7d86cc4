//! Reports about attempts.

use std::collections::BTreeMap;

use cueline_model::{AttemptEvent, AttemptId, ExecutorId, JobId, RunState, Timestamp};

/// A report about one attempt, by an executor or by the scheduler itself.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptReport {
    /// The attempt.
    pub attempt: AttemptId,
    /// The executor that reports; `None` for the scheduler itself. The caller has verified it.
    pub executor: Option<ExecutorId>,
    /// What happened.
    pub event: AttemptEvent,
}

/// The changes by a batch of reports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IngestSummary {
    /// Runs that reached a terminal state.
    pub ended: usize,
    /// Those runs by their terminal state. States without runs are left out.
    pub ended_in: BTreeMap<RunState, usize>,
    /// Runs that get another attempt.
    pub rescheduled: usize,
    /// Reports without effect: late, repeated, or about an attempt that is over.
    pub ignored: usize,
    /// Positions of reports by an executor that the attempt was not given to, ascending. They changed nothing (G16).
    pub foreign: Vec<usize>,
    /// Child runs that were created.
    pub child_runs: usize,
    /// Jobs with attempts that ended. A job may be listed several times.
    pub ended_jobs: Vec<JobId>,
    /// The earliest due time among new attempts, child runs and next fire times.
    pub next_due_at: Option<Timestamp>,
}
