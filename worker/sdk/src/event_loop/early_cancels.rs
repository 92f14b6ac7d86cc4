//! Runs that were cancelled before their trigger came.

use std::collections::{HashSet, VecDeque};

use crate::identity::RunKey;

/// The most runs that are remembered. At the limit the oldest one is forgotten.
const LIMIT: usize = 10_000;

/// The newest cancellations of runs that the worker does not hold.
#[derive(Debug, Default)]
pub(super) struct EarlyCancels {
    runs: HashSet<RunKey>,
    order: VecDeque<RunKey>,
}

impl EarlyCancels {
    pub(super) fn insert(&mut self, run: RunKey) {
        if self.runs.insert(run) {
            self.order.push_back(run);
        }
        if self.order.len() > LIMIT
            && let Some(oldest) = self.order.pop_front()
        {
            self.runs.remove(&oldest);
        }
    }

    pub(super) fn contains(&self, run: RunKey) -> bool {
        self.runs.contains(&run)
    }
}
