//! What others may see of the core.

use std::sync::atomic::{AtomicUsize, Ordering};

use cueline_runtime::BurstGate;
use tokio::sync::watch;

/// Counts, as of the last turn.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    held: AtomicUsize,
    running: AtomicUsize,
    /// Fetched and not yet seen by the core.
    on_the_way: AtomicUsize,
    draining: watch::Sender<bool>,
    /// Closed while many triggers come in at once.
    pub(crate) burst_gate: BurstGate,
}

impl Gauges {
    /// Triggers that the worker has and that have not ended.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed) + self.on_the_way.load(Ordering::Relaxed)
    }

    /// Attempts that run.
    pub(crate) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, held: usize, running: usize) {
        self.held.store(held, Ordering::Relaxed);
        self.running.store(running, Ordering::Relaxed);
    }

    /// So many were fetched.
    pub(crate) fn on_the_way(&self, count: usize) {
        self.on_the_way.fetch_add(count, Ordering::Relaxed);
        self.burst_gate.record_urgent(count);
    }

    /// So many of them have reached the core.
    pub(super) fn came(&self, count: usize) {
        self.on_the_way.fetch_sub(count, Ordering::Relaxed);
    }

    pub(super) fn begin_drain(&self) {
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
        // The sender lives as long as `self`.
        let _ = draining.wait_for(|draining| *draining).await;
    }
}
