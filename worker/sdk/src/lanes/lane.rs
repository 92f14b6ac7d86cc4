//! One lane.

use std::collections::VecDeque;

use cueline_model::Block;

use super::request::{LaneKey, LaneRequest};
use crate::identity::RunKey;

/// A request that waits in a lane.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: LaneRequest,
    /// Number of the request over all lanes, in the order of arrival.
    pub(super) order: u64,
}

/// A lane that could start an attempt if the worker had capacity. The least one goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ReadyLane {
    /// 255 less the priority of the first request.
    pub(super) urgency: u8,
    /// A running number, taken when the lane became ready: equals take turns.
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
    pub(super) ready: Option<ReadyLane>,
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
    /// Takes over the policy of `request` unless the lane follows a newer version already.
    pub(super) fn adopt_policy(&mut self, request: &LaneRequest) {
        if request.version >= self.version {
            self.version = request.version;
            self.block = request.block;
            self.backlog = request.backlog;
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        !self.running.is_empty() || !self.waiting.is_empty()
    }

    fn free_slots(&self) -> usize {
        let slots = match self.block {
            Block::Cover if cueline_runtime::planted!("cover_before_end") => usize::MAX,
            Block::Parallel(n) => usize::try_from(n.max(1)).unwrap_or(usize::MAX),
            Block::Serial | Block::Discard | Block::Cover => 1,
        };
        slots.saturating_sub(self.running.len())
    }

    /// Whether the backlog has no room for another request. Requests that wait only for the worker's capacity do not
    /// count.
    pub(super) fn is_full(&self) -> bool {
        let backlog = usize::try_from(self.backlog).unwrap_or(usize::MAX);
        self.waiting.len() >= backlog.saturating_add(self.free_slots())
    }

    /// The request that the lane would start next, if its policy lets it start one.
    pub(super) fn startable(&self) -> Option<&LaneRequest> {
        if self.free_slots() == 0 {
            return None;
        }
        self.waiting.front().map(|waiting| &waiting.request)
    }

    /// Inserts a request. Those that wait are sorted by their places, for each policy. A trigger that was published or
    /// delivered late, or routed again, goes before the younger ones that still wait. Starts at the back, where most
    /// requests belong.
    pub(super) fn insert(&mut self, waiting: Waiting) {
        if cueline_runtime::planted!("order_swapped") {
            self.waiting.push_front(waiting);
            return;
        }
        let place = waiting.request.place();
        let mut earlier = self.waiting.iter();
        let earlier = earlier.rposition(|other| other.request.place() <= place);
        self.waiting.insert(earlier.map_or(0, |at| at + 1), waiting);
    }
}
