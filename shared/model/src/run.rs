//! Runs: their states, the transitions that are allowed, and how attempts end.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// Identity of a run, given by the store, ascending, never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(pub i64);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where a run is in its life. The numbers are what stores keep: they never change meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum RunState {
    /// Written down; waits for its due time, a retry's wait or an executor.
    Scheduled = 0,
    /// Routed; its trigger is being published.
    Dispatching = 1,
    /// The broker has confirmed its trigger.
    Queued = 2,
    /// Its handler is known to run.
    Running = 3,
    /// The handler returned success.
    Succeeded = 10,
    /// The handler returned an error, or could not be started.
    Failed = 11,
    /// The time limit passed and the attempt was stopped.
    TimedOut = 12,
    /// Its executor died while it ran.
    Lost = 13,
    /// No live executor within the dispatch deadline.
    Unroutable = 14,
    /// A person or the API cancelled it.
    Cancelled = 15,
    /// Block policy `discard` met a busy lane, or the lane's backlog was full.
    Discarded = 16,
    /// Block policy `cover`: a newer trigger replaced it.
    Covered = 17,
    /// A misfire policy or a pause said no; its message says why.
    Skipped = 18,
}

impl RunState {
    /// All states, in the order of life.
    pub const ALL: [Self; 13] = [
        Self::Scheduled,
        Self::Dispatching,
        Self::Queued,
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::TimedOut,
        Self::Lost,
        Self::Unroutable,
        Self::Cancelled,
        Self::Discarded,
        Self::Covered,
        Self::Skipped,
    ];

    /// The terminal states that count as failure: they are retried and raise alarms.
    pub const FAILURES: [Self; 4] = [Self::Failed, Self::TimedOut, Self::Lost, Self::Unroutable];

    /// Whether the run has ended.
    pub const fn is_terminal(self) -> bool {
        self as u8 >= Self::Succeeded as u8
    }

    /// Whether the run ended in a way that counts as failure.
    pub fn is_failure(self) -> bool {
        Self::FAILURES.contains(&self)
    }

    /// The number that stores keep.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The state with that number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.code() == code)
    }

    /// The word used in the API, the CLI and job files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Dispatching => "dispatching",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Lost => "lost",
            Self::Unroutable => "unroutable",
            Self::Cancelled => "cancelled",
            Self::Discarded => "discarded",
            Self::Covered => "covered",
            Self::Skipped => "skipped",
        }
    }

    /// Whether a guarded update may take a run from this state to `next`. Everything not listed is refused, so a
    /// late or repeated message changes nothing.
    pub const fn may_become(self, next: Self) -> bool {
        use RunState as S;
        match self {
            S::Scheduled => matches!(
                next,
                S::Dispatching | S::Unroutable | S::Cancelled | S::Skipped | S::Failed
            ),
            // Back to `Scheduled`: a retry, a rerun, or a trigger returned unstarted.
            S::Dispatching => {
                matches!(next, S::Scheduled | S::Queued | S::Running) || next.ends_attempt()
            }
            S::Queued => matches!(next, S::Scheduled | S::Running) || next.ends_attempt(),
            S::Running => matches!(next, S::Scheduled) || next.ends_attempt(),
            _ => false,
        }
    }

    /// Whether an executor's report (or its death) can end an attempt in this state.
    const fn ends_attempt(self) -> bool {
        self.is_terminal() && !matches!(self, Self::Unroutable | Self::Skipped)
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What made a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum RunKind {
    /// A fire time of the job's schedule.
    Schedule = 0,
    /// A person, the API or a trigger request.
    Manual = 1,
    /// The success of a parent job.
    Child = 2,
    /// The start of the scheduler (`@reboot`).
    Startup = 3,
}

impl RunKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Schedule, Self::Manual, Self::Child, Self::Startup];

    /// The number that stores keep.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The kind with that number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// The word used in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::Manual => "manual",
            Self::Child => "child",
            Self::Startup => "startup",
        }
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeKind {
    /// The handler returned success.
    Succeeded,
    /// The handler returned an error, exited non-zero, is unknown or not allowed here.
    Failed,
    /// The time limit passed and the attempt was stopped.
    TimedOut,
    /// It was cancelled, before or while it ran.
    Cancelled,
    /// It met a busy `discard` lane, or a full backlog.
    Discarded,
    /// A newer trigger replaced it in a `cover` lane.
    Covered,
    /// It was started, and its executor died before there was an outcome.
    Lost,
    /// Given back unstarted, by an executor that drains or may not run it any more.
    Returned,
    /// No executor was alive within the dispatch deadline.
    Unroutable,
    /// It was found too late, and its job would rather not run late.
    Skipped,
}

impl OutcomeKind {
    /// The run state that this outcome leads to when there is no further attempt; `None` for
    /// [`Returned`](Self::Returned), which always leads to one.
    pub const fn state(self) -> Option<RunState> {
        Some(match self {
            Self::Succeeded => RunState::Succeeded,
            Self::Failed => RunState::Failed,
            Self::TimedOut => RunState::TimedOut,
            Self::Cancelled => RunState::Cancelled,
            Self::Discarded => RunState::Discarded,
            Self::Covered => RunState::Covered,
            Self::Lost => RunState::Lost,
            Self::Unroutable => RunState::Unroutable,
            Self::Skipped => RunState::Skipped,
            Self::Returned => return None,
        })
    }
}

/// How an attempt ended, with what is worth keeping of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// How it ended.
    pub kind: OutcomeKind,
    /// When the handler started; absent when it never did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When the attempt ended.
    pub ended_at: Timestamp,
    /// Exit status of a script or command, or the HTTP status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_status: Option<i32>,
    /// Why it did not succeed, for a person to read; at most [`Outcome::MAX_TEXT_BYTES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What a successful handler returned; at most [`Outcome::MAX_TEXT_BYTES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

impl Outcome {
    /// The longest message or output that is kept; longer ones are cut by the worker, which says so in the log.
    pub const MAX_TEXT_BYTES: usize = 64 * 1024;

    /// An outcome of `kind` at `at`, without details.
    pub const fn new(kind: OutcomeKind, at: Timestamp) -> Self {
        Self {
            kind,
            started_at: None,
            ended_at: at,
            exit_status: None,
            message: None,
            output: None,
        }
    }

    /// The same with a message.
    #[must_use]
    pub fn because(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }
}
