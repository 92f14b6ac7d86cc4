//! What has to be known of runs and their jobs to apply reports to them.

use cueline_model::{Outcome, OutcomeKind, RunState};

/// What has to be known of a run to apply reports to it.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The run.
    pub id: i64,
    /// Its job.
    pub job_id: i64,
    /// Whether a person or a program triggered it: then a paused job does not keep it from another attempt.
    pub manual: bool,
    /// Its state.
    pub state: RunState,
    /// Its present attempt.
    pub attempt: u32,
    /// Retries used up.
    pub retries: u32,
    /// Reruns used up.
    pub reruns: u32,
    /// Whether its cancellation has been asked for.
    pub cancel_requested: bool,
    /// What is known of its job; `None` when that is deleted.
    pub of_job: Option<JobFacts>,
}

/// What has to be known of a run's job.
#[derive(Debug, Clone)]
pub struct JobFacts {
    /// The present version.
    pub version: i64,
    /// Whether it is enabled.
    pub enabled: bool,
    /// Whether it counts its delay from the end of a run.
    pub fixed_delay: bool,
    /// Whether other jobs come after it.
    pub has_children: bool,
}

impl Facts {
    fn job_is(&self, what: impl Fn(&JobFacts) -> bool) -> bool {
        self.of_job.as_ref().is_some_and(what)
    }

    pub(super) fn goes_on(&self) -> bool {
        self.job_is(|job| job.enabled || self.manual)
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.job_is(|job| job.fixed_delay && job.enabled)
    }

    pub(super) fn has_children(&self) -> bool {
        self.job_is(|job| job.has_children)
    }

    /// Whether what follows from such an end depends on the job.
    pub fn binds_job(&self, outcome: &Outcome) -> bool {
        let plain = outcome.kind == OutcomeKind::Succeeded
            && !self.job_is(|job| job.fixed_delay || job.has_children);
        !self.state.is_terminal() && !plain
    }
}

/// A line for a run's timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The run.
    pub run: i64,
    /// The attempt that it is about.
    pub attempt: u32,
    /// What happened, in one word.
    pub event: &'static str,
    /// More of it, for a person to read.
    pub detail: String,
}
