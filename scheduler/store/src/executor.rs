//! Executors and the attempts that they hold.

use cueline_model::{
    AttemptId, ExecutorId, ExecutorName, Heartbeat, JobId, RunId, RunState, Timestamp,
};
use serde::{Deserialize, Serialize};

/// An executor as described by its last heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executor {
    /// The last heartbeat; its capabilities are sorted.
    #[serde(flatten)]
    pub heartbeat: Heartbeat,
    /// When that heartbeat was stored, by the database's clock.
    pub last_heartbeat_at: Timestamp,
}

/// A published attempt that has not ended. Its executor should hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutstandingAttempt {
    /// The attempt.
    pub attempt: AttemptId,
    /// `queued` or `running`.
    pub state: RunState,
    /// When it was marked `dispatching`, by the database's clock. Its trigger was published later, perhaps several times.
    pub dispatched_at: Timestamp,
    /// When the broker's last confirmation of its trigger was stored, by the database's clock. The executor may have
    /// started the attempt long before.
    pub queued_at: Timestamp,
    /// The executor that its trigger was published to.
    pub executor: ExecutorId,
}

/// An attempt of a job that an executor was given and that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobAttempt {
    /// The job.
    pub job: JobId,
    /// The attempt.
    pub attempt: AttemptId,
    /// Its executor.
    pub executor: ExecutorName,
}

/// A requested cancellation that has not taken effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingCancellation {
    /// The run.
    pub run: RunId,
    /// The executor that its trigger was published to.
    pub executor: ExecutorId,
}
