//! Runs whose cancellation came before their trigger.

use std::collections::{HashSet, VecDeque};

use cueline_model::RunId;

/// The most that are remembered; past it the oldest is forgotten.
const MOST: usize = 10_000;

/// The newest cancellations of runs that were not here.
#[derive(Debug, Default)]
pub(super) struct Cancelled {
    runs: HashSet<RunId>,
    order: VecDeque<RunId>,
}

impl Cancelled {
    pub(super) fn remember(&mut self, run: RunId) {
        if self.runs.insert(run) {
            self.order.push_back(run);
        }
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.runs.remove(&oldest);
        }
    }

    pub(super) fn contains(&self, run: RunId) -> bool {
        self.runs.contains(&run)
    }
}
