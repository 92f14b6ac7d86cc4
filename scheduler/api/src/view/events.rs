//! The events of streams.

use cueline_model::{ExecutorName, GroupName, JobId, JobName, RunId, RunKind, RunState, Timestamp};
use serde::{Deserialize, Serialize};

/// What happened to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunChange {
    /// It was written. It may have gone on or ended meanwhile: the state tells.
    Created,
    /// It is in another live state, or at another attempt.
    Changed,
    /// It has ended. Nothing follows.
    Ended,
    /// It was deleted before it was published. Nothing follows.
    Deleted,
}

/// The data of an `event: run`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEvent {
    /// What happened.
    pub change: RunChange,
    /// The run.
    pub id: RunId,
    /// The id of its job.
    pub job_id: JobId,
    /// The name of its job.
    pub job: JobName,
    /// The group of its job.
    pub group: GroupName,
    /// What created it.
    pub kind: RunKind,
    /// Its state; of a deleted run the last known one.
    pub state: RunState,
    /// Number of the current or last attempt.
    pub attempt: u32,
    /// The fire time.
    pub fire_at: Timestamp,
    /// The executor of the current or last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<ExecutorName>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

/// What happened to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobChange {
    /// It was created.
    Created,
    /// Its definition was changed.
    Updated,
    /// Its schedule was stopped.
    Paused,
    /// Its schedule was started.
    Resumed,
    /// It belongs to another group now. The event is for readers of the group that it had.
    Moved,
    /// It was deleted.
    Deleted,
}

/// The data of an `event: job`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEvent {
    /// What happened.
    pub change: JobChange,
    /// The job.
    pub id: JobId,
    /// Its name.
    pub name: JobName,
    /// Its group; of a job that has moved the group that it had.
    pub group: GroupName,
    /// The version of its definition.
    pub version: i64,
    /// Whether its schedule is on.
    pub enabled: bool,
}

/// What happened to an executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutorChange {
    /// It has sent its first heartbeat.
    Appeared,
    /// It is in another state, was started again, or runs other handlers.
    Changed,
    /// The store has forgotten it, after a long silence.
    Forgotten,
}

/// Whether an executor can take triggers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutorState {
    /// It can.
    Alive,
    /// It has stopped accepting triggers.
    Draining,
    /// A scheduler gives it none.
    Refused,
    /// It has sent no heartbeat for 15 s.
    Silent,
    /// It has stopped in order.
    Stopped,
}

impl ExecutorState {
    /// All states.
    pub const ALL: [Self; 5] = [
        Self::Alive,
        Self::Draining,
        Self::Refused,
        Self::Silent,
        Self::Stopped,
    ];

    /// The word for the state.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Draining => "draining",
            Self::Refused => "refused",
            Self::Silent => "silent",
            Self::Stopped => "stopped",
        }
    }
}

/// The data of an `event: executor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorEvent {
    /// What happened.
    pub change: ExecutorChange,
    /// Its group.
    pub group: GroupName,
    /// Its name.
    pub name: ExecutorName,
    /// Whether it can take triggers.
    pub state: ExecutorState,
    /// Identifies one start of its process.
    pub incarnation: String,
    /// The most handlers that it runs at once.
    pub capacity: u32,
    /// When its last heartbeat was stored.
    pub last_heartbeat_at: Timestamp,
}

/// The data of an `event: ready`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Whether the stream continues after the event that the request named. If not, changes may lie in between.
    pub resumed: bool,
}

/// The data of an `event: lagged`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lagged {
    /// The number of lost events, those included that the stream's filter would have left out.
    pub missed: u64,
}

/// The data of an `event: overflow`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overflow {
    /// The number of runs or jobs that are watched.
    pub watched: u64,
}

/// The data of the `event: end` of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndOfLog {
    /// The terminal state of the run.
    pub state: RunState,
}
