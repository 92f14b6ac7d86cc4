//! Counts since the start of the node.

use std::sync::atomic::{AtomicU64, Ordering};

use cueline_store::admin::SinceStart;

/// For operators, except for `ingested_messages`: failover and reconcile use it to measure the progress of ingest.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) published: AtomicU64,
    pub(crate) reconciled: AtomicU64,
    pub(crate) failovers: AtomicU64,
    pub(crate) failed_over: AtomicU64,
    /// Messages of the results queue that this node has ingested.
    pub(crate) ingested_messages: AtomicU64,
}

impl Counters {
    pub(crate) fn since_start(&self) -> SinceStart {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SinceStart {
            published: read(&self.published),
            reconciled: read(&self.reconciled),
            failovers: read(&self.failovers),
            failed_over: read(&self.failed_over),
        }
    }
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
