//! Batch sizes and waits that depend on how many runs are due together.
//!
//! Three rules, each of which keeps start latencies low when thousands of runs share a due time. A fourth is
//! [`BurstGate`](cueline_runtime::BurstGate): confirmations and outcomes wait while a burst is being published.

use std::time::Duration;

use cueline_runtime::Linger;

/// Counting the runs that are due together stops here; the lead time is half a second then.
pub(crate) const MAX_COUNTED: usize = 10_000;
/// Runs that a slow machine routes, marks and signs in a millisecond.
const PREPARED_PER_MS: usize = 20;

/// How long before their due time the first of `due_together` runs leaves the wheel, so that the last of them is
/// ready in time.
pub(crate) fn lead_ms(prepare_ahead_ms: u64, due_together: usize) -> u64 {
    prepare_ahead_ms + (due_together.min(MAX_COUNTED) / PREPARED_PER_MS) as u64
}

/// The number of triggers to publish at once. Small batches let the first run of a burst start early; with many
/// pending, throughput counts, and batches are up to eight times as large.
pub(crate) fn publish_batch(batch: usize, pending: usize) -> usize {
    (pending / 4).clamp(batch, batch.saturating_mul(8))
}

/// Confirmations and results, before they are written. Without it a low rate would cost one commit per run; neither an
/// operator nor a waiting pause notices the delay.
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
