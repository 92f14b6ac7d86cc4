//! The state of the event loop that other tasks see: counts for heartbeats and for the intake's room, and whether the
//! worker drains.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cueline_runtime::BurstGate;
use tokio::sync::watch;

/// Counts as of the last turn of the event loop.
#[derive(Debug, Default)]
pub(crate) struct WorkerStatus {
    held: AtomicUsize,
    running: AtomicUsize,
    /// Triggers that were fetched and that the event loop has not seen yet.
    fetched: AtomicUsize,
    draining: watch::Sender<bool>,
    journal_unusable: AtomicBool,
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

    /// `count` triggers were fetched.
    pub(crate) fn add_fetched(&self, count: usize) {
        self.fetched.fetch_add(count, Ordering::Relaxed);
        self.burst_gate.record_urgent(count);
    }

    /// The event loop has seen `count` of the fetched triggers.
    pub(crate) fn remove_fetched(&self, count: usize) {
        self.fetched.fetch_sub(count, Ordering::Relaxed);
    }

    /// The journal has failed for some time.
    pub(crate) fn set_journal_unusable(&self, unusable: bool) {
        self.journal_unusable.store(unusable, Ordering::Relaxed);
    }

    pub(crate) fn is_journal_unusable(&self) -> bool {
        self.journal_unusable.load(Ordering::Relaxed)
    }

    pub(crate) fn begin_drain(&self) {
        self.draining.send_replace(true);
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Returns once, when the drain begins.
    pub(crate) async fn drain_began(&self) {
        if self.is_draining() {
            return std::future::pending().await;
        }
        let mut draining = self.draining.subscribe();
        // Waiting fails only without a sender, and `self` has it.
        let _ = draining.wait_for(|draining| *draining).await;
    }
}
