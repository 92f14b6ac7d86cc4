//! What this node has claimed and not yet published.
//!
//! Each claimed run is in one of six places. It is on the wheel until it is prepared, pending until it is published,
//! unroutable until an executor appears, or it waits for its lane, for a limit or for room. One struct holds all six. They
//! share one memory limit. A node whose claims are lost or uncertain clears them together.

mod lane_waits;
mod limit_waits;
mod pending;
mod room_waits;
pub(crate) mod wheel;

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard};

use cueline_broker::QueueId;
use cueline_model::{AttemptId, JobId, MisfirePolicy, RunKind, Timestamp};
use cueline_runtime::Activator;
use cueline_store::{ClaimedRun, ErrorKind, HeldClaims, NodeId, StoreError};

use self::lane_waits::LaneWaits;
use self::limit_waits::LimitWaits;
pub(crate) use self::pending::PendingPublish;
use self::pending::PendingPublishes;
use self::room_waits::RoomWaits;
use self::wheel::Wheel;
use crate::lock::lock;

#[derive(Debug)]
pub(crate) struct NodeClaims {
    /// The id under which this node claims runs.
    node: AtomicI64,
    /// A store call failed with an unknown result. The store may hold claims that are missing here.
    is_uncertain: AtomicBool,
    wheel: Mutex<Wheel<ClaimedRun>>,
    pending: Mutex<PendingPublishes>,
    unroutable: Mutex<Vec<ClaimedRun>>,
    lane_waits: Mutex<LaneWaits>,
    limit_waits: Mutex<LimitWaits>,
    room_waits: Mutex<RoomWaits>,
    pub(crate) wake_prepare: Activator,
    pub(crate) wake_publish: Activator,
    /// The renewal also drops uncertain claims and claims again.
    pub(crate) wake_lease_renewal: Activator,
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
            lane_waits: Mutex::default(),
            limit_waits: Mutex::default(),
            room_waits: Mutex::default(),
            wake_prepare: Activator::new(),
            wake_publish: Activator::new(),
            wake_lease_renewal: Activator::new(),
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

    /// Other nodes may take over what was marked under an earlier id. So the triggers that a running turn has added since
    /// the claims were forgotten are marked again before they are published.
    pub(crate) fn set_node(&self, node: NodeId) {
        self.node.store(node.0, Ordering::Release);
        lock(&self.pending).mark_again();
    }

    /// Call this when a store call failed and may still have claimed or marked runs. The node then drops all claims
    /// and claims again. No other node takes over the runs of a live node.
    pub(crate) fn set_uncertain(&self) {
        self.is_uncertain.store(true, Ordering::Release);
        self.wake_lease_renewal.wake();
    }

    /// Returns the result of a call that claims runs unchanged. A transient error makes the claims uncertain, because
    /// the store may have committed before the error.
    pub(crate) fn note_uncertain_result<T>(
        &self,
        result: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if let Err(e) = &result
            && e.kind() == ErrorKind::Transient
        {
            self.set_uncertain();
        }
        result
    }

    /// Whether the claims have become uncertain since the last call. Clears the flag.
    pub(crate) fn take_uncertain(&self) -> bool {
        self.is_uncertain.swap(false, Ordering::AcqRel)
    }

    /// The number of claimed runs in memory.
    pub(crate) fn claimed_count(&self) -> usize {
        self.waiting() + lock(&self.pending).len() + lock(&self.unroutable).len()
    }

    /// The number of claimed runs that were not routed yet, and of those that wait for a lane, a limit or room.
    fn waiting(&self) -> usize {
        let lane_waits = lock(&self.lane_waits).len();
        let room_waits = lock(&self.room_waits).len();
        let limit_waits = lock(&self.limit_waits).len();
        lock(&self.wheel).len() + lane_waits + limit_waits + room_waits
    }

    /// The number of claimed runs in memory, by place.
    pub(crate) fn held(&self) -> HeldClaims {
        HeldClaims {
            waiting: self.waiting() as u64,
            prepared: lock(&self.pending).len() as u64,
            unroutable: lock(&self.unroutable).len() as u64,
        }
    }

    /// Puts runs on the wheel and wakes the prepare stage.
    pub(crate) fn schedule(&self, runs: Vec<ClaimedRun>) {
        if runs.is_empty() {
            return;
        }
        let mut wheel = lock(&self.wheel);
        for run in runs {
            put(&mut wheel, run.due_at, run);
        }
        drop(wheel);
        self.wake_prepare.wake();
    }

    /// Puts a run on the wheel for another time than its due time.
    pub(crate) fn schedule_at(&self, at: Timestamp, run: ClaimedRun) {
        put(&mut lock(&self.wheel), at, run);
    }

    /// These runs come from the wheel. After an edit they were claimed again, and may also wait with the earlier definition,
    /// which must not be dispatched any more.
    pub(crate) fn forget_waiting(&self, runs: &[ClaimedRun]) {
        let (mut lanes, mut limits, mut room) =
            (self.lane_waits(), self.limit_waits(), self.room_waits());
        if lanes.is_empty() && limits.is_empty() && room.is_empty() {
            return;
        }
        for run in runs {
            lanes.remove(run.id);
            limits.remove(run.id);
            room.remove(run.id);
        }
    }

    pub(crate) fn wheel(&self) -> MutexGuard<'_, Wheel<ClaimedRun>> {
        lock(&self.wheel)
    }

    /// Adds triggers whose runs were marked for `node`, which wait for their due time.
    pub(crate) fn add_marked(
        &self,
        node: NodeId,
        triggers: impl IntoIterator<Item = PendingPublish>,
    ) {
        let mut pending = lock(&self.pending);
        // Within the lock, so that the node either has its new id here, or marks these triggers again when it gets one.
        let is_other = self.node() != Some(node);
        for mut trigger in triggers {
            trigger.is_dispatch_uncertain |= is_other;
            pending.insert(trigger);
        }
    }

    /// Adds triggers, which wait for their due time.
    pub(crate) fn add_pending(&self, triggers: impl IntoIterator<Item = PendingPublish>) {
        let mut pending = lock(&self.pending);
        for trigger in triggers {
            pending.insert(trigger);
        }
    }

    /// Adds triggers whose publish was not answered. Until `retry_at` nothing else is published to their queues, so no
    /// newer trigger overtakes them.
    pub(crate) fn add_unanswered(
        &self,
        triggers: impl IntoIterator<Item = PendingPublish>,
        retry_at: Timestamp,
    ) {
        let mut pending = lock(&self.pending);
        for trigger in triggers {
            pending.hold_queue(trigger.message.queue.clone(), retry_at);
            pending.insert(trigger.unanswered());
        }
    }

    /// These queues have accepted triggers.
    pub(crate) fn note_accepted<'a>(&self, queues: impl IntoIterator<Item = &'a QueueId>) {
        let mut pending = lock(&self.pending);
        for queue in queues {
            pending.note_accepted(queue);
        }
    }

    pub(crate) fn pending(&self) -> MutexGuard<'_, PendingPublishes> {
        lock(&self.pending)
    }

    pub(crate) fn unroutable(&self) -> MutexGuard<'_, Vec<ClaimedRun>> {
        lock(&self.unroutable)
    }

    pub(crate) fn lane_waits(&self) -> MutexGuard<'_, LaneWaits> {
        lock(&self.lane_waits)
    }

    pub(crate) fn limit_waits(&self) -> MutexGuard<'_, LimitWaits> {
        lock(&self.limit_waits)
    }

    pub(crate) fn room_waits(&self) -> MutexGuard<'_, RoomWaits> {
        lock(&self.room_waits)
    }

    /// An executor may have room: runs that wait for that are tried again.
    pub(crate) fn wake_room(&self) {
        let any = lock(&self.room_waits).wake();
        if any {
            self.wake_prepare.wake();
        }
    }

    /// Attempts of these jobs have ended: runs that wait for their lanes are tried again.
    pub(crate) fn wake_lanes(&self, jobs: &[JobId], now: Timestamp) {
        let mut waits = lock(&self.lane_waits);
        if !waits.is_empty() && waits.wake(jobs, now) {
            drop(waits);
            self.wake_prepare.wake();
        }
    }

    /// Attempts of these jobs have ended: runs that wait for limits that they use are tried again.
    pub(crate) fn wake_limits(&self, jobs: &[JobId], now: Timestamp) {
        let mut waits = lock(&self.limit_waits);
        if !waits.is_empty() && waits.wake(jobs, now) {
            drop(waits);
            self.wake_prepare.wake();
        }
    }

    /// Puts unroutable runs back on the wheel, because the set of executors changed.
    pub(crate) fn retry_unroutable(&self) {
        let runs = std::mem::take(&mut *lock(&self.unroutable));
        self.schedule(runs);
    }

    /// Takes the runs that were certainly not published. Those of a lost node that may be published leave the memory, and
    /// the node that claims them next publishes them to the same executor.
    pub(crate) fn take_unpublished(&self) -> Unpublished {
        let pending = lock(&self.pending).take_unpublished();
        let pending = pending
            .into_iter()
            .map(|t| (t.dispatch.attempt, t.is_skipped_if_late));
        let wheel = std::mem::take(&mut *lock(&self.wheel)).into_items();
        let unroutable = std::mem::take(&mut *lock(&self.unroutable));
        let lanes = std::mem::take(&mut *lock(&self.lane_waits)).into_runs();
        let limits = std::mem::take(&mut *lock(&self.limit_waits)).into_runs();
        let room = std::mem::take(&mut *lock(&self.room_waits)).into_runs();
        let waiting = wheel.chain(unroutable).chain(lanes).chain(limits);
        let waiting = waiting.chain(room).filter(|run| !run.maybe_published);
        let waiting = waiting.map(|run| (run.attempt_id(), is_skipped_if_late(&run)));
        let mut unpublished = Unpublished::default();
        for (attempt, is_skipped_if_late) in pending.chain(waiting) {
            if is_skipped_if_late {
                unpublished.skipped_if_late.push(attempt);
            } else {
                unpublished.others.push(attempt);
            }
        }
        unpublished
    }

    /// Forgets all runs. This or another node claims them again from the store.
    pub(crate) fn forget_all(&self) {
        lock(&self.wheel).clear();
        lock(&self.pending).clear();
        lock(&self.unroutable).clear();
        lock(&self.lane_waits).clear();
        lock(&self.limit_waits).clear();
        lock(&self.room_waits).clear();
    }
}

/// Attempts that were certainly not published.
#[derive(Debug, Default)]
pub(crate) struct Unpublished {
    /// A claim that comes too late skips them.
    pub(crate) skipped_if_late: Vec<AttemptId>,
    pub(crate) others: Vec<AttemptId>,
}

/// Whether the run is skipped if it is claimed too late after its due time, as long as that is the one of its schedule.
pub(crate) fn is_skipped_if_late(run: &ClaimedRun) -> bool {
    run.kind == RunKind::Schedule
        && run.attempt == 1
        && !run.maybe_published
        && run.job.spec.misfire.policy == MisfirePolicy::Skip
}

/// Puts a run on the wheel, unless it is there with a newer definition.
fn put(wheel: &mut Wheel<ClaimedRun>, at: Timestamp, run: ClaimedRun) {
    let known = wheel.get(run.id).map(|known| known.job.version);
    if known.is_none_or(|known| known <= run.job.version) {
        wheel.insert(at, run.priority(), run.id, run);
    }
}
