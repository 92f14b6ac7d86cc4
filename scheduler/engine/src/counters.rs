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
    pub(crate) forged_reports: AtomicU64,
    pub(crate) forged_heartbeats: AtomicU64,
    pub(crate) forged_answers: AtomicU64,
    pub(crate) forged_letters: AtomicU64,
    pub(crate) foreign_reports: AtomicU64,
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
            forged_reports: read(&self.forged_reports),
            forged_heartbeats: read(&self.forged_heartbeats),
            forged_answers: read(&self.forged_answers),
            forged_letters: read(&self.forged_letters),
            foreign_reports: read(&self.foreign_reports),
        }
    }
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
