//! One lane.

use std::collections::VecDeque;

use cueline_model::Block;

use super::{Arrival, LaneKey};
use crate::stores::{AttemptKey, RunKey};

/// An attempt that waits in a lane.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub(super) id: AttemptKey,
    /// Counts arrivals, over all lanes.
    pub(super) order: u64,
    pub(super) priority: u8,
}

/// A lane that could start something if there were room. Sorted by who goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ready {
    /// Less is more urgent.
    pub(super) urgency: u8,
    /// Since when, as a running number: equals take turns.
    pub(super) ticket: u64,
    pub(super) lane: LaneKey,
}

/// The state of one lane.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) version: i64,
    pub(super) block: Block,
    pub(super) backlog: u32,
    pub(super) running: Vec<RunKey>,
    pub(super) waiting: VecDeque<Waiting>,
    pub(super) ready: Option<Ready>,
}

impl Default for Lane {
    fn default() -> Self {
        Self {
            version: i64::MIN,
            block: Block::Serial,
            backlog: 0,
            running: Vec::new(),
            waiting: VecDeque::new(),
            ready: None,
        }
    }
}

impl Lane {
    /// Takes over the policy of `arrival` unless it is older than what the lane follows already.
    pub(super) fn adopt(&mut self, arrival: &Arrival) {
        if arrival.version >= self.version {
            self.version = arrival.version;
            self.block = arrival.block;
            self.backlog = arrival.backlog;
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        !self.running.is_empty() || !self.waiting.is_empty()
    }

    fn slots(&self) -> usize {
        let most = match self.block {
            Block::Parallel(n) => usize::try_from(n.max(1)).unwrap_or(usize::MAX),
            Block::Serial | Block::Discard | Block::Cover => 1,
        };
        most.saturating_sub(self.running.len())
    }

    /// Whether one more would be too many. What waits only for the worker's room does not count against the lane.
    pub(super) fn is_full(&self) -> bool {
        let backlog = usize::try_from(self.backlog).unwrap_or(usize::MAX);
        self.waiting.len() >= backlog.saturating_add(self.slots())
    }

    /// What the lane would start next, if it may start anything.
    pub(super) fn startable(&self) -> Option<&Waiting> {
        if self.slots() == 0 {
            return None;
        }
        self.waiting.front()
    }

    /// Nearly always at the end; only a newer attempt that had to wait for its predecessor goes further to the front.
    pub(super) fn insert_in_order(&mut self, waiting: Waiting) {
        let at = self.waiting.partition_point(|w| w.order < waiting.order);
        self.waiting.insert(at, waiting);
    }
}
