//! Identity of runs and attempts across stores.
//!
//! Run ids start again in each store. A worker may serve a second store, or a restored one with a new id. It therefore
//! compares runs only together with their store.

use std::fmt;

use cueline_model::{AttemptId, RunId, StoreId};
use cueline_protocol::Trigger;

/// A run and its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RunKey {
    pub(crate) store: StoreId,
    pub(crate) run: RunId,
}

/// Shows the run id alone: log lines and messages name a run as its store does.
impl fmt::Display for RunKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.run.fmt(f)
    }
}

/// An attempt and its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct AttemptKey {
    pub(crate) run: RunKey,
    pub(crate) attempt: u32,
}

impl AttemptKey {
    pub(crate) const fn new(store: StoreId, id: AttemptId) -> Self {
        let run = RunKey { store, run: id.run };
        Self {
            run,
            attempt: id.attempt,
        }
    }

    pub(crate) fn of(trigger: &Trigger) -> Self {
        Self::new(trigger.store, trigger.attempt_id())
    }

    /// The identity within the store.
    pub(crate) const fn id(self) -> AttemptId {
        AttemptId {
            run: self.run.run,
            attempt: self.attempt,
        }
    }
}
