//! The state of the event loop that other tasks see: counts for heartbeats and for the intake's room, and whether the
//! worker drains.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cueline_protocol::WorkerProcess;
use cueline_runtime::BurstGate;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::times::AttemptTimes;

/// An idle fetch returns after half a second. After this time without one, the intake waits for something, or it is
/// busy with a backlog.
const BEHIND_AFTER: Duration = Duration::from_secs(2);

/// Counts as of the last turn of the event loop.
#[derive(Debug, Default)]
pub(crate) struct WorkerStatus {
    held: AtomicUsize,
    running: AtomicUsize,
    waiting: AtomicUsize,
    busy_lanes: AtomicUsize,
    waiting_lanes: AtomicUsize,
    /// Since the start of the worker.
    received: AtomicU64,
    /// Those of the received triggers that the broker may have delivered before.
    redelivered: AtomicU64,
    pub(crate) times: AttemptTimes,
    /// Triggers that were fetched and that the event loop has not seen yet.
    fetched: AtomicUsize,
    /// When a fetch last returned fewer triggers than it could: the driver held no further ones then.
    caught_up_at: Mutex<Option<Instant>>,
    /// The number of the last heartbeat.
    last_heartbeat: AtomicU64,
    draining: watch::Sender<bool>,
    journal_unusable: AtomicBool,
    starts_unrecorded: AtomicBool,
    lease_overdue: AtomicBool,
    /// Why the worker accepts no triggers, as of its last heartbeat.
    problem: Mutex<Option<String>>,
    /// Why the last heartbeat or its echo was not sent, or not stored by the broker.
    send_failure: Mutex<Option<String>>,
    /// The worker that has this worker's name, if schedulers have refused this one.
    name_holder: watch::Sender<Option<WorkerProcess>>,
    /// The last incarnation that was refused in favour of this worker.
    last_rival: Mutex<String>,
    /// Closed by a burst of triggers: acks and reports wait until it opens.
    pub(crate) burst_gate: BurstGate,
}

impl WorkerStatus {
    /// Triggers that the worker has taken and that have not ended.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed) + self.fetched.load(Ordering::Relaxed)
    }

    /// Attempts that run.
    pub(crate) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, held: usize, running: usize) {
        self.held.store(held, Ordering::Relaxed);
        self.running.store(running, Ordering::Relaxed);
    }

    /// Attempts that wait in lanes.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Lanes in which an attempt runs or waits.
    pub(crate) fn busy_lanes(&self) -> usize {
        self.busy_lanes.load(Ordering::Relaxed)
    }

    /// Lanes that wait for a free slot only.
    pub(crate) fn waiting_lanes(&self) -> usize {
        self.waiting_lanes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_lanes(&self, waiting: usize, busy_lanes: usize, waiting_lanes: usize) {
        self.waiting.store(waiting, Ordering::Relaxed);
        self.busy_lanes.store(busy_lanes, Ordering::Relaxed);
        self.waiting_lanes.store(waiting_lanes, Ordering::Relaxed);
    }

    /// Triggers received since the start of the worker.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Those of them that the broker may have delivered before.
    pub(crate) fn redelivered(&self) -> u64 {
        self.redelivered.load(Ordering::Relaxed)
    }

    /// The broker may have delivered `count` of the fetched triggers before.
    pub(crate) fn note_redelivered(&self, count: usize) {
        self.redelivered.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// `count` triggers were fetched.
    pub(crate) fn add_fetched(&self, count: usize) {
        self.fetched.fetch_add(count, Ordering::Relaxed);
        self.received.fetch_add(count as u64, Ordering::Relaxed);
        self.burst_gate.record_urgent(count);
    }

    /// The event loop has seen `count` of the fetched triggers.
    pub(crate) fn remove_fetched(&self, count: usize) {
        self.fetched.fetch_sub(count, Ordering::Relaxed);
    }

    /// A fetch has returned fewer triggers than it could.
    pub(crate) fn note_caught_up(&self) {
        *lock(&self.caught_up_at) = Some(Instant::now());
    }

    /// Whether triggers may have been delivered to this process that the event loop has not seen yet.
    pub(crate) fn is_behind(&self) -> bool {
        let caught_up_at = *lock(&self.caught_up_at);
        let is_late = caught_up_at.is_none_or(|at| at.elapsed() > BEHIND_AFTER);
        is_late || self.fetched.load(Ordering::Relaxed) > 0
    }

    /// The number of the next heartbeat.
    pub(crate) fn next_heartbeat(&self) -> u64 {
        self.last_heartbeat.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The number of the last heartbeat; 0 before the first.
    pub(crate) fn last_heartbeat(&self) -> u64 {
        self.last_heartbeat.load(Ordering::Relaxed)
    }

    /// The journal has failed for some time.
    pub(crate) fn set_journal_unusable(&self, unusable: bool) {
        self.journal_unusable.store(unusable, Ordering::Relaxed);
    }

    pub(crate) fn is_journal_unusable(&self) -> bool {
        self.journal_unusable.load(Ordering::Relaxed)
    }

    /// The broker lease was not renewed in time, and has not ended.
    pub(crate) fn set_lease_overdue(&self, overdue: bool) {
        self.lease_overdue.store(overdue, Ordering::Relaxed);
    }

    pub(crate) fn is_lease_overdue(&self) -> bool {
        self.lease_overdue.load(Ordering::Relaxed)
    }

    /// The start log has refused records for some time.
    pub(crate) fn set_starts_unrecorded(&self, unrecorded: bool) {
        self.starts_unrecorded.store(unrecorded, Ordering::Relaxed);
    }

    pub(crate) fn is_starts_unrecorded(&self) -> bool {
        self.starts_unrecorded.load(Ordering::Relaxed)
    }

    /// Sets why the worker accepts no triggers.
    pub(crate) fn set_problem(&self, problem: Option<String>) {
        *lock(&self.problem) = problem;
    }

    /// Why the worker accepts no triggers. `None` if it accepts them.
    pub(crate) fn problem(&self) -> Option<String> {
        lock(&self.problem).clone()
    }

    /// Sets why the last heartbeat or its echo was not sent or not stored.
    pub(crate) fn set_send_failure(&self, failure: Option<String>) {
        *lock(&self.send_failure) = failure;
    }

    pub(crate) fn send_failure(&self) -> Option<String> {
        lock(&self.send_failure).clone()
    }

    /// Schedulers have refused this worker, because `holder` has its name. The worker then stops.
    pub(crate) fn refuse(&self, holder: WorkerProcess) {
        self.name_holder.send_replace(Some(holder));
    }

    /// The worker that has this worker's name, if schedulers have refused this one.
    pub(crate) fn name_holder(&self) -> Option<WorkerProcess> {
        self.name_holder.borrow().clone()
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.name_holder.borrow().is_some()
    }

    /// Whether a warning about this refused incarnation is due: schedulers repeat themselves.
    pub(crate) fn warn_of_rival(&self, incarnation: &str) -> bool {
        let mut last = lock(&self.last_rival);
        let is_new = *last != incarnation;
        if is_new {
            incarnation.clone_into(&mut last);
        }
        is_new
    }

    /// Returns once schedulers have refused this worker.
    pub(crate) async fn refused(&self) {
        let mut holder = self.name_holder.subscribe();
        // Waiting fails only without a sender, and `self` has it.
        let _ = holder.wait_for(Option::is_some).await;
    }

    pub(crate) fn begin_drain(&self) {
        self.draining.send_replace(true);
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Returns when the drain has begun.
    pub(crate) async fn drain_began(&self) {
        let mut draining = self.draining.subscribe();
        // Waiting fails only without a sender, and `self` has it.
        let _ = draining.wait_for(|draining| *draining).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_worker_is_behind_until_a_fetch_has_had_room_left_and_its_triggers_are_handled() {
        let status = WorkerStatus::default();
        assert!(status.is_behind(), "nothing was fetched yet");
        status.add_fetched(2);
        status.note_caught_up();
        assert!(status.is_behind(), "they are not handled");
        status.remove_fetched(2);
        assert!(!status.is_behind());
        // The event loop waits for its disk, and the intake for the event loop.
        tokio::time::advance(BEHIND_AFTER + Duration::from_millis(1)).await;
        assert!(status.is_behind());
        status.note_caught_up();
        assert!(!status.is_behind());
    }
}
