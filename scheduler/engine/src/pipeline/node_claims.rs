//! What this node has claimed and not yet published.
//!
//! Each claimed run is in one of three places: on the wheel until it is prepared, pending until it is published, or
//! unroutable until an executor appears. One owner for all three, because they count together against the bound of
//! memory, and because a node whose claims are lost or uncertain forgets them together.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard};

use cueline_broker::Outgoing;
use cueline_model::Timestamp;
use cueline_runtime::Activator;
use cueline_store::{ClaimedRun, DispatchRequest, ErrorKind, NodeId, StoreError};

use super::wheel::Wheel;
use crate::lock::lock;

#[derive(Debug)]
pub(crate) struct NodeClaims {
    /// The id under which this node claims runs.
    node: AtomicI64,
    /// The store may hold claims that this node does not know.
    is_uncertain: AtomicBool,
    wheel: Mutex<Wheel<ClaimedRun>>,
    pending: Mutex<Wheel<PendingPublish>>,
    unroutable: Mutex<Vec<ClaimedRun>>,
    /// Wakes the prepare stage.
    pub(crate) prepare: Activator,
    /// Wakes the publish stage.
    pub(crate) publish: Activator,
    /// Wakes the renewal of the node's lease.
    pub(crate) lease: Activator,
}

const NO_NODE: i64 = -1;

impl Default for NodeClaims {
    fn default() -> Self {
        Self {
            node: AtomicI64::new(NO_NODE),
            is_uncertain: AtomicBool::new(false),
            wheel: Mutex::default(),
            pending: Mutex::default(),
            unroutable: Mutex::default(),
            prepare: Activator::new(),
            publish: Activator::new(),
            lease: Activator::new(),
        }
    }
}

impl NodeClaims {
    /// The node's id; `None` until it is registered.
    pub(crate) fn node(&self) -> Option<NodeId> {
        match self.node.load(Ordering::Acquire) {
            NO_NODE => None,
            id => Some(NodeId(id)),
        }
    }

    pub(crate) fn set_node(&self, node: NodeId) {
        self.node.store(node.0, Ordering::Release);
    }

    /// After a failed call that may have claimed or marked runs. The node then drops its claims and claims anew,
    /// because no other node looks for the runs of a node that is alive.
    pub(crate) fn mark_uncertain(&self) {
        self.is_uncertain.store(true, Ordering::Release);
        self.lease.wake();
    }

    /// Passes on the result of a call that claims runs. A transient error may hide a claim.
    pub(crate) fn check<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(e) = &result
            && e.kind() == ErrorKind::Transient
        {
            self.mark_uncertain();
        }
        result
    }

    /// Whether the claims have become uncertain since the last call.
    pub(crate) fn take_uncertain(&self) -> bool {
        self.is_uncertain.swap(false, Ordering::AcqRel)
    }

    /// The number of claimed runs in memory.
    pub(crate) fn len(&self) -> usize {
        lock(&self.wheel).len() + lock(&self.pending).len() + lock(&self.unroutable).len()
    }

    /// Puts runs on the wheel and wakes the prepare stage.
    pub(crate) fn schedule(&self, runs: Vec<ClaimedRun>) {
        if runs.is_empty() {
            return;
        }
        let mut wheel = lock(&self.wheel);
        for run in runs {
            wheel.insert(run.due_at, run.job.spec.priority, run.id, run);
        }
        drop(wheel);
        self.prepare.wake();
    }

    pub(crate) fn wheel(&self) -> MutexGuard<'_, Wheel<ClaimedRun>> {
        lock(&self.wheel)
    }

    /// Adds triggers to those that wait for their due time.
    pub(crate) fn add_pending(&self, triggers: impl IntoIterator<Item = PendingPublish>) {
        let mut pending = lock(&self.pending);
        for trigger in triggers {
            let run = trigger.mark.attempt.run;
            pending.insert(trigger.due_at, trigger.priority, run, trigger);
        }
    }

    pub(crate) fn pending(&self) -> MutexGuard<'_, Wheel<PendingPublish>> {
        lock(&self.pending)
    }

    pub(crate) fn unroutable(&self) -> MutexGuard<'_, Vec<ClaimedRun>> {
        lock(&self.unroutable)
    }

    /// Lets the unroutable runs be routed again: an executor has appeared or gone.
    pub(crate) fn release_unroutable(&self) {
        let runs = std::mem::take(&mut *lock(&self.unroutable));
        self.schedule(runs);
    }

    /// Forgets all runs. Another claim, of this node or of another, finds them in the store.
    pub(crate) fn forget_all(&self) {
        lock(&self.wheel).clear();
        lock(&self.pending).clear();
        lock(&self.unroutable).clear();
    }
}

/// A trigger whose run is `dispatching` in the store, to be published when it is due.
#[derive(Debug)]
pub(crate) struct PendingPublish {
    /// Attempt, job version and executor, as marked in the store.
    pub(crate) mark: DispatchRequest,
    /// The mark may no longer stand. It has to be set again before the trigger is published.
    pub(crate) mark_uncertain: bool,
    /// An earlier publish had no answer, so the trigger may be in its queue. From then on it is published until the
    /// broker accepts it; it is never released to be routed again.
    pub(crate) maybe_published: bool,
    /// A trigger published after this instant is written anew, because its deadline has come too close.
    pub(crate) fresh_until: Timestamp,
    pub(crate) due_at: Timestamp,
    pub(crate) priority: u8,
    pub(crate) message: Outgoing,
}

impl PendingPublish {
    /// After a publish without an answer: the trigger may be in its queue, and its run may go on from there.
    pub(crate) fn unanswered(self) -> Self {
        Self {
            mark_uncertain: true,
            maybe_published: true,
            ..self
        }
    }
}
