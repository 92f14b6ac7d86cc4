//! How long batches wait for more entries.
//!
//! A disk sync and a publish cost the same for one entry and for hundreds. What is not urgent therefore waits a
//! moment, so that a burst needs few of them. All of these waits are defined here.

use std::time::Duration;

/// A batch with fewer than `max_items` entries waits up to `max_wait` for more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Linger {
    pub(crate) max_items: usize,
    pub(crate) max_wait: Duration,
}

impl Linger {
    const fn new(max_items: usize, max_wait_ms: u64) -> Self {
        Self {
            max_items,
            max_wait: Duration::from_millis(max_wait_ms),
        }
    }

    pub(crate) const fn is_full(&self, items: usize) -> bool {
        items >= self.max_items
    }

    /// Pauses after a batch that was not full. The first entry of the next batch waits at most `max_wait`; a lone
    /// entry does not wait at all.
    pub(crate) async fn pause_after(&self, items: usize) {
        if !self.is_full(items) {
            tokio::time::sleep(self.max_wait).await;
        }
    }
}

/// Acks of triggers, and reports. New triggers go first.
pub(crate) const PUBLISH: Linger = Linger::new(512, 5);

/// Ended attempts, before their outcomes are journalled. A crash within this time makes them `lost`.
pub(crate) const ENDED: Linger = Linger::new(usize::MAX, 2);

/// Ended attempts during a burst of triggers: the next triggers are journalled together with them.
pub(crate) const ENDED_IN_BURST: Linger = Linger::new(usize::MAX, 25);

/// Outcomes that the broker has confirmed, before the journal marks them. A crash within this time reports them again.
pub(crate) const CONFIRMED: Linger = Linger::new(512, 250);
