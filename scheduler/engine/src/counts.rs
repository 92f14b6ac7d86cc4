//! What a node has done since it started, for people: how often what is out of the ordinary happens.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a node has done since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Triggers that the broker has confirmed, those that were published again among them.
    pub published: u64,
    /// Attempts that were found to be lost on the way, and taken back to be published again.
    pub reconciled: u64,
    /// Silent executors of which work was given to others.
    pub failovers: u64,
    /// Attempts that were taken from them: routed again, or ended `lost`.
    pub failed_over: u64,
}

/// Counts. Nothing is decided by them.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) published: AtomicU64,
    pub(crate) reconciled: AtomicU64,
    pub(crate) failovers: AtomicU64,
    pub(crate) failed_over: AtomicU64,
}

impl Counters {
    pub(crate) fn now(&self) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            published: of(&self.published),
            reconciled: of(&self.reconciled),
            failovers: of(&self.failovers),
            failed_over: of(&self.failed_over),
        }
    }
}

/// So many more.
pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
