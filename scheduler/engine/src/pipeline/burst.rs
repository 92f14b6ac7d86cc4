//! Batch sizes and waits that depend on how many runs are due together.
//!
//! The three rules here keep start latencies low when thousands of runs share a due time.
//! [`BurstGate`](cueline_runtime::BurstGate) is a fourth: it delays confirmations and outcomes while a burst is being
//! published.

use std::time::Duration;

use cueline_runtime::Linger;

/// Runs due together are counted up to this number, which gives a lead time of half a second.
pub(crate) const MAX_COUNTED: usize = 10_000;
/// Runs that a slow machine routes, marks and signs per millisecond.
const PREPARED_PER_MS: usize = 20;

/// How long before the due time the first of `due_together` runs leaves the wheel, so that the last one is ready in
/// time.
pub(crate) fn lead_ms(prepare_ahead_ms: u64, due_together: usize) -> u64 {
    prepare_ahead_ms + (due_together.min(MAX_COUNTED) / PREPARED_PER_MS) as u64
}

/// The number of triggers to publish at once. A small batch lets the first run of a burst start early. With many
/// triggers pending, throughput matters more, and a batch is up to eight times as large.
pub(crate) fn publish_batch(batch: usize, pending: usize) -> usize {
    (pending / 4).clamp(batch, batch.saturating_mul(8))
}

/// How long confirmations and results wait for more before they are written. Without the wait, a low rate would cost
/// one commit per run. Operators do not notice it.
pub(crate) const WRITE: Linger = Linger::new(500, Duration::from_millis(10));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lead_grows_with_the_burst_up_to_half_a_second() {
        assert_eq!(lead_ms(25, 1), 25);
        assert_eq!(lead_ms(25, 100), 30);
        assert_eq!(lead_ms(25, 1_000_000), 525);
    }

    #[test]
    fn publish_batches_grow_with_the_backlog_up_to_eightfold() {
        assert_eq!(publish_batch(250, 10), 250);
        assert_eq!(publish_batch(250, 4_000), 1_000);
        assert_eq!(publish_batch(250, 100_000), 2_000);
    }
}
