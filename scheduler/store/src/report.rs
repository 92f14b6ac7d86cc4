//! Reports about attempts.

use cueline_model::{AttemptEvent, AttemptId, ExecutorName, Timestamp};

/// A report about one attempt, by an executor or by the scheduler itself.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptReport {
    /// The attempt.
    pub attempt: AttemptId,
    /// The executor that reports; `None` for the scheduler itself.
    pub executor: Option<ExecutorName>,
    /// What happened.
    pub event: AttemptEvent,
}

/// The changes by a batch of reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IngestSummary {
    /// Runs that reached a terminal state.
    pub ended: usize,
    /// Runs that get another attempt.
    pub rescheduled: usize,
    /// Reports without effect: late, repeated, or about an attempt that is over.
    pub ignored: usize,
    /// Child runs that were created.
    pub child_runs: usize,
    /// The earliest due time among new attempts, child runs and next fire times.
    pub next_due_at: Option<Timestamp>,
}
