//! How late triggers are: the time from a run's due time until the broker has its trigger.

use std::sync::atomic::{AtomicU64, Ordering};

use cueline_store::LatenessCounts;

/// The upper bounds of the buckets, in milliseconds. Clocks of different machines differ by about as much as the first.
const BOUNDS_MS: [u64; 15] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000,
];

/// A histogram since the start of the node. It takes one atomic addition per bucket and batch, because publishing must
/// not wait for a scrape.
#[derive(Debug, Default)]
pub(crate) struct Lateness {
    /// One for each bound, and one for what is above all of them.
    buckets: [AtomicU64; BOUNDS_MS.len() + 1],
    sum_ms: AtomicU64,
}

impl Lateness {
    /// Adds a batch of triggers that were this late.
    pub(crate) fn record(&self, late_ms: impl Iterator<Item = u64>) {
        let mut counts = [0_u64; BOUNDS_MS.len() + 1];
        let mut sum_ms = 0_u64;
        for late_ms in late_ms {
            counts[BOUNDS_MS.partition_point(|bound_ms| *bound_ms < late_ms)] += 1;
            sum_ms = sum_ms.saturating_add(late_ms);
        }
        for (bucket, count) in self.buckets.iter().zip(counts) {
            if count > 0 {
                bucket.fetch_add(count, Ordering::Relaxed);
            }
        }
        if sum_ms > 0 {
            self.sum_ms.fetch_add(sum_ms, Ordering::Relaxed);
        }
    }

    pub(crate) fn counts(&self) -> LatenessCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let buckets = self.buckets.iter().map(read);
        LatenessCounts {
            buckets: BOUNDS_MS.into_iter().zip(buckets).collect(),
            above: self.buckets.last().map_or(0, read),
            sum_ms: read(&self.sum_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_counted_in_the_buckets_whose_bounds_include_it() {
        let lateness = Lateness::default();
        lateness.record([0, 1, 2, 3, 60_000, 60_001].into_iter());
        lateness.record([5].into_iter());
        let counts = lateness.counts();
        let filled = counts.buckets.iter().filter(|(_, count)| *count > 0);
        let filled: Vec<(u64, u64)> = filled.copied().collect();
        assert_eq!(filled, [(1, 2), (2, 1), (5, 2), (60_000, 1)]);
        assert_eq!(counts.above, 1);
        assert_eq!(counts.sum_ms, 120_012);
    }
}
