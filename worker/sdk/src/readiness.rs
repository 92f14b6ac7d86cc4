//! Tells the process around a worker why the worker takes no triggers, and what it does, for a health page and metrics.

use std::sync::Arc;

use crate::status::WorkerStatus;

/// What a worker does at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkerCounts {
    /// Attempts that the worker has taken and that have not ended, running ones included.
    pub held: u64,
    /// Attempts that run.
    pub running: u64,
    /// Heartbeats since the start of the worker.
    pub heartbeats: u64,
    /// Whether the worker finishes its work and takes no more.
    pub draining: bool,
}

/// Whether a worker takes triggers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Readiness(Arc<WorkerStatus>);

impl Readiness {
    pub(crate) fn new(status: Arc<WorkerStatus>) -> Self {
        Self(status)
    }

    /// Why the worker takes no triggers, as of its last heartbeat. `None` if it takes them.
    pub fn problem(&self) -> Option<String> {
        self.0.problem()
    }

    /// What the worker does, as of the last turn of its event loop.
    pub fn counts(&self) -> WorkerCounts {
        WorkerCounts {
            held: self.0.held() as u64,
            running: self.0.running() as u64,
            heartbeats: self.0.last_heartbeat(),
            draining: self.0.is_draining(),
        }
    }
}
