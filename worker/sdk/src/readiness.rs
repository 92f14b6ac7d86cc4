//! Tells the process around a worker why the worker takes no triggers, and what it does, for a health page and metrics.

use std::sync::Arc;

use crate::status::WorkerStatus;
use crate::times::WorkerTimes;

/// What a worker does at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkerCounts {
    /// Attempts that the worker has taken and that have not ended, running ones included.
    pub held: u64,
    /// Attempts that run.
    pub running: u64,
    /// Attempts that wait in lanes.
    pub waiting: u64,
    /// Lanes in which an attempt runs or waits.
    pub busy_lanes: u64,
    /// Lanes that could start an attempt if one of the slots for running attempts were free.
    pub waiting_lanes: u64,
    /// Triggers received since the start of the worker, repeated ones included.
    pub received: u64,
    /// Those of them that the broker may have delivered before.
    pub redelivered: u64,
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
        self.0.problem().or_else(|| self.overdue())
    }

    /// Heartbeats do not say this, because the next one that is stored renews the lease.
    fn overdue(&self) -> Option<String> {
        let is_overdue = self.0.is_lease_overdue();
        is_overdue.then(|| {
            let why = self.0.send_failure();
            let why = why.unwrap_or_else(|| "no heartbeat has returned to it".to_owned());
            format!("the worker's broker lease is overdue: {why}")
        })
    }

    /// What the worker does, as of the last turn of its event loop.
    pub fn counts(&self) -> WorkerCounts {
        WorkerCounts {
            held: self.0.held() as u64,
            running: self.0.running() as u64,
            waiting: self.0.waiting() as u64,
            busy_lanes: self.0.busy_lanes() as u64,
            waiting_lanes: self.0.waiting_lanes() as u64,
            received: self.0.received(),
            redelivered: self.0.redelivered(),
            heartbeats: self.0.last_heartbeat(),
            draining: self.0.is_draining(),
        }
    }

    /// How long the steps of attempts took since the start of the worker.
    pub fn times(&self) -> WorkerTimes {
        self.0.times.counts()
    }
}
