//! Runs whose cancellation came before their trigger.

use std::collections::{HashSet, VecDeque};

use crate::stores::RunKey;

/// The most that are remembered; past it the oldest is forgotten.
const MOST: usize = 10_000;

/// The newest cancellations of runs that were not here.
#[derive(Debug, Default)]
pub(super) struct Cancelled {
    runs: HashSet<RunKey>,
    order: VecDeque<RunKey>,
}

impl Cancelled {
    pub(super) fn remember(&mut self, run: RunKey) {
        if self.runs.insert(run) {
            self.order.push_back(run);
        }
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.runs.remove(&oldest);
        }
    }

    pub(super) fn contains(&self, run: RunKey) -> bool {
        self.runs.contains(&run)
    }
}
