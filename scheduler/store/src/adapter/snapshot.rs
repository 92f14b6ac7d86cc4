//! Runs and their jobs before reports are applied to them.

use std::collections::BTreeMap;

use cueline_model::{ExecutorId, ExecutorName, Outcome, OutcomeKind, RunState, Timestamp};

use super::convert::{parse_name, to_u32};
use crate::StoreError;

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
    /// The executor that the current attempt was given to. While the run is `scheduled`, it is that of the attempt
    /// before.
    pub executor: Option<GivenTo>,
    /// Executors of earlier attempts; only of those that reports are about (see [`set_earlier_executors`]).
    pub earlier: BTreeMap<u32, ExecutorId>,
    /// Its job; `None` if the job is deleted.
    pub job: Option<JobSnapshot>,
}

/// What the store knows of the executor that an attempt was given to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GivenTo {
    /// The executor.
    Executor(ExecutorId),
    /// Its name within an unknown group. The run has ended, and its job may have moved to another group since: only runs
    /// that are live then keep the group of their publication.
    Name(ExecutorName),
}

impl GivenTo {
    /// Whether this may be that executor.
    pub(super) fn may_be(&self, executor: &ExecutorId) -> bool {
        match self {
            Self::Executor(known) => known == executor,
            Self::Name(name) => *name == executor.name,
        }
    }

    /// The executor, if its group is known.
    pub(super) fn executor(&self) -> Option<&ExecutorId> {
        match self {
            Self::Executor(executor) => Some(executor),
            Self::Name(_) => None,
        }
    }
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
    /// Which ends of it may start other jobs.
    pub children: Children,
    /// When the last pause of its scope ends.
    pub paused_until: Option<Timestamp>,
    /// Whether its last runs have failed, and an alarm rule asks how many.
    pub failing: bool,
}

/// Which ends of a job may start other jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Children {
    /// None: no job runs after it.
    #[default]
    None,
    /// Successes.
    AfterSuccess,
    /// Successes and failures.
    AfterFailure,
}

impl Children {
    /// From the stored code. A code of a newer program counts as that of most ends.
    pub fn from_code(code: i64) -> Self {
        match code {
            0 => Self::None,
            1 => Self::AfterSuccess,
            _ => Self::AfterFailure,
        }
    }
}

impl RunSnapshot {
    fn job_is(&self, condition: impl Fn(&JobSnapshot) -> bool) -> bool {
        self.job.as_ref().is_some_and(condition)
    }

    /// Whether the run may get another attempt.
    pub(super) fn may_continue(&self, now: Timestamp) -> bool {
        let is_paused = |job: &JobSnapshot| job.paused_until.is_some_and(|until| now < until);
        self.job_is(|job| self.manual || (job.enabled && !is_paused(job)))
    }

    /// Whether the next fire time of the job counts from the end of the run.
    pub(super) fn delays_next_fire(&self) -> bool {
        self.job_is(|job| job.fixed_delay && job.enabled)
    }

    /// Whether other jobs run after the run's job.
    pub fn has_children(&self) -> bool {
        self.job_is(|job| job.children != Children::None)
    }

    /// Whether a success of the run ends a streak of failures.
    pub(super) fn is_of_failing_job(&self) -> bool {
        self.job_is(|job| job.failing)
    }

    /// Whether this end of the run may start other jobs. Nothing follows a run whose cancellation was requested. A
    /// success may be the last end of a fire that failed.
    pub(super) fn may_start_children(&self, end: RunState) -> bool {
        let starts = |job: &JobSnapshot| match job.children {
            Children::None => false,
            Children::AfterSuccess => end == RunState::Succeeded,
            Children::AfterFailure => end == RunState::Succeeded || end.is_failure(),
        };
        !self.cancel_requested && self.job_is(starts)
    }

    /// Whether this end of the run reads or changes its job, so that the job has to be locked. A plain success needs no
    /// lock.
    pub fn end_involves_job(&self, outcome: &Outcome) -> bool {
        let plain = outcome.kind == OutcomeKind::Succeeded
            && !self.job_is(|job| job.fixed_delay || job.children != Children::None || job.failing);
        !self.state.is_terminal() && !plain
    }
}

/// The executor with this group and name, if the attempt has one. Without a group, the run has ended.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) for a name that is not valid.
pub fn executor_of_row(
    group: Option<&str>,
    name: Option<&str>,
) -> Result<Option<GivenTo>, StoreError> {
    let Some(name) = name else {
        return Ok(None);
    };
    Ok(Some(match group {
        Some(group) => GivenTo::Executor(executor(group, name)?),
        None => GivenTo::Name(parse_name(name)?),
    }))
}

fn executor(group: &str, name: &str) -> Result<ExecutorId, StoreError> {
    Ok(ExecutorId {
        group: parse_name(group)?,
        name: parse_name(name)?,
    })
}

/// Adds the executors of earlier attempts to their runs. Rows: run, attempt, group, name.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) for a name that is not valid.
pub fn set_earlier_executors(
    runs: &mut [RunSnapshot],
    rows: &[(i64, i64, String, String)],
) -> Result<(), StoreError> {
    for (id, attempt, group, name) in rows {
        let executor = executor(group, name)?;
        for run in runs.iter_mut().filter(|run| run.id == *id) {
            run.earlier.insert(to_u32(*attempt), executor.clone());
        }
    }
    Ok(())
}
