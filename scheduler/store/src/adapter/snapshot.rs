//! Runs and their jobs before reports are applied to them.

use cueline_model::{Outcome, OutcomeKind, RunState};

/// A run before reports are applied to it.
#[derive(Debug, Clone)]
pub struct RunSnapshot {
    /// Identity of the run.
    pub id: i64,
    /// Its job.
    pub job_id: i64,
    /// Whether it was triggered by hand. A pause of the job then does not prevent another attempt.
    pub manual: bool,
    /// Its state.
    pub state: RunState,
    /// Number of the current attempt, from 1.
    pub attempt: u32,
    /// Retries used up.
    pub retries: u32,
    /// Reruns used up.
    pub reruns: u32,
    /// Whether its cancellation was requested.
    pub cancel_requested: bool,
    /// Its job; `None` if the job is deleted.
    pub job: Option<JobSnapshot>,
}

/// The job of a run before reports are applied.
#[derive(Debug, Clone)]
pub struct JobSnapshot {
    /// The current version.
    pub version: i64,
    /// Whether it is enabled.
    pub enabled: bool,
    /// Whether its next fire time counts from the end of a run.
    pub fixed_delay: bool,
    /// Whether other jobs run after it.
    pub has_children: bool,
}

impl RunSnapshot {
    fn job_is(&self, condition: impl Fn(&JobSnapshot) -> bool) -> bool {
        self.job.as_ref().is_some_and(condition)
    }

    /// Whether the run may get another attempt.
    pub(super) fn may_continue(&self) -> bool {
        self.job_is(|job| job.enabled || self.manual)
    }

    /// Whether the next fire time of the job counts from the end of the run.
    pub(super) fn delays_next_fire(&self) -> bool {
        self.job_is(|job| job.fixed_delay && job.enabled)
    }

    /// Whether other jobs run after the run's job.
    pub(super) fn has_children(&self) -> bool {
        self.job_is(|job| job.has_children)
    }

    /// Whether this end of the run reads or changes its job, so that the job has to be locked. A plain success needs no
    /// lock.
    pub fn end_involves_job(&self, outcome: &Outcome) -> bool {
        let plain = outcome.kind == OutcomeKind::Succeeded
            && !self.job_is(|job| job.fixed_delay || job.has_children);
        !self.state.is_terminal() && !plain
    }
}
