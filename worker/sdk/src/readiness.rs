//! Tells the process around a worker why the worker takes no triggers, for a health page.

use std::sync::Arc;

use crate::status::WorkerStatus;

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
}
