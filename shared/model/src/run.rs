//! Runs: their states, the allowed transitions, and the ways in which attempts end.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// Identity of a run, assigned by the store. Ids ascend and are never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(pub i64);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The state of a run. Stores keep the numbers, so the numbers never change their meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum RunState {
    /// The run is stored. It waits for its due time, a retry or an executor.
    Scheduled = 0,
    /// The run has an executor, and its trigger is being published.
    Dispatching = 1,
    /// The broker has confirmed the trigger.
    Queued = 2,
    /// The executor has reported that the handler is running.
    Running = 3,
    /// The handler returned success.
    Succeeded = 10,
    /// The handler returned an error, or could not be started.
    Failed = 11,
    /// The attempt passed its time limit and was stopped.
    TimedOut = 12,
    /// The executor died while the run was running.
    Lost = 13,
    /// No executor was live within the dispatch deadline.
    Unroutable = 14,
    /// A user cancelled the run.
    Cancelled = 15,
    /// The block policy `discard` met a busy lane, or the lane's backlog was full.
    Discarded = 16,
    /// A newer trigger replaced the run under the block policy `cover`.
    Covered = 17,
    /// A misfire policy, a pause or a deletion prevented the run. Its message has the reason.
    Skipped = 18,
}

impl RunState {
    /// All states, in the order of a run's life.
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

    /// The terminal states that count as failure. They are retried and raise alarms.
    pub const FAILURES: [Self; 4] = [Self::Failed, Self::TimedOut, Self::Lost, Self::Unroutable];

    /// Whether the run has ended.
    pub const fn is_terminal(self) -> bool {
        self as u8 >= Self::Succeeded as u8
    }

    /// Whether the run ended in a way that counts as failure.
    pub fn is_failure(self) -> bool {
        Self::FAILURES.contains(&self)
    }

    /// The number of the state in stores.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The state with that number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.code() == code)
    }

    /// The word for the state in the API, the CLI and job files.
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

    /// Whether a guarded update may change this state to `next`. All other changes are refused, so a late or repeated
    /// message changes nothing.
    pub const fn may_become(self, next: Self) -> bool {
        use RunState as S;
        match self {
            S::Scheduled => matches!(
                next,
                S::Dispatching
                    | S::Unroutable
                    | S::Cancelled
                    | S::Skipped
                    | S::Failed
                    // Its lane is busy at an executor that takes no triggers now.
                    | S::Discarded
                    | S::Covered
            ),
            // A retry, a rerun or an unstarted trigger returns the run to `Scheduled`.
            S::Dispatching => {
                matches!(next, S::Scheduled | S::Queued | S::Running) || next.ends_attempt()
            }
            S::Queued => matches!(next, S::Scheduled | S::Running) || next.ends_attempt(),
            S::Running => matches!(next, S::Scheduled) || next.ends_attempt(),
            _ => false,
        }
    }

    /// Whether a report or the death of the executor can end an attempt in this state.
    const fn ends_attempt(self) -> bool {
        self.is_terminal() && !matches!(self, Self::Unroutable | Self::Skipped)
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What created a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum RunKind {
    /// A fire time of the job's schedule.
    Schedule = 0,
    /// A user or a trigger request.
    Manual = 1,
    /// The success of a parent job.
    Child = 2,
    /// The start of the scheduler (`@reboot`).
    Startup = 3,
    /// A fire time of a past window, on request.
    Backfill = 4,
}

impl RunKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::Schedule,
        Self::Manual,
        Self::Child,
        Self::Startup,
        Self::Backfill,
    ];

    /// The number of the kind in stores.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The kind with that number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// The word for the kind in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::Manual => "manual",
            Self::Child => "child",
            Self::Startup => "startup",
            Self::Backfill => "backfill",
        }
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeKind {
    /// The handler returned success.
    Succeeded,
    /// The handler returned an error, exited non-zero, is unknown, or is not allowed at this executor.
    Failed,
    /// The attempt passed its time limit and was stopped.
    TimedOut,
    /// The attempt was cancelled, before or while it ran.
    Cancelled,
    /// The attempt met a busy `discard` lane or a full backlog.
    Discarded,
    /// A newer trigger replaced the attempt in a `cover` lane.
    Covered,
    /// The attempt was started, and its executor died before it had an outcome.
    Lost,
    /// An executor returned the attempt unstarted, because it drains or may no longer run it.
    Returned,
    /// No executor was live within the dispatch deadline.
    Unroutable,
    /// The fire time was found too late, and the job does not run late.
    Skipped,
}

impl OutcomeKind {
    /// The state of the run if no further attempt follows. `None` for [`Returned`](Self::Returned), which another
    /// attempt always follows.
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

/// How an attempt ended, with details.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The kind of end.
    pub kind: OutcomeKind,
    /// When the handler started; absent if it never did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When the attempt ended.
    pub ended_at: Timestamp,
    /// The exit status of a script or command, or the HTTP status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_status: Option<i32>,
    /// Why the attempt did not succeed, for people; at most [`Outcome::MAX_TEXT_BYTES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What a successful handler returned; at most [`Outcome::MAX_TEXT_BYTES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

impl Outcome {
    /// The longest message or output that is kept. The worker cuts longer ones and says so in the attempt's log.
    pub const MAX_TEXT_BYTES: usize = 64 * 1024;

    /// Makes an outcome of `kind` at `at`, without details.
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

    /// Adds a message.
    #[must_use]
    pub fn because(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }
}
