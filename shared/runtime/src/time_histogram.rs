//! Counts how long things took, for metrics. It knows no format of metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of bounds of each histogram.
pub const BOUNDS: usize = 15;

/// The upper bounds of the buckets for delays, in milliseconds. Clocks of different machines differ by about as much as
/// the first.
pub const DELAY_BOUNDS_MS: [u64; BOUNDS] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000,
];

/// The upper bounds of the buckets for the durations of attempts, in milliseconds. The last is a day.
pub const DURATION_BOUNDS_MS: [u64; BOUNDS] = [
    10, 50, 100, 500, 1_000, 5_000, 10_000, 30_000, 60_000, 300_000, 900_000, 3_600_000,
    14_400_000, 43_200_000, 86_400_000,
];

/// A histogram since the start of the process. A batch takes one atomic addition for each bucket that it fills, because
/// no work must wait for a scrape.
#[derive(Debug)]
pub struct TimeHistogram {
    bounds_ms: [u64; BOUNDS],
    /// One for each bound, and one for what is above all of them.
    buckets: [AtomicU64; BOUNDS + 1],
    sum_ms: AtomicU64,
}

/// The counts of a [`TimeHistogram`] at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeCounts {
    /// The upper bound of each bucket in milliseconds, ascending, and the count of this bucket alone.
    pub buckets: [(u64, u64); BOUNDS],
    /// The count above the last bound.
    pub above: u64,
    /// The sum of all times, in milliseconds.
    pub sum_ms: u64,
}

impl TimeHistogram {
    /// An empty histogram with these upper bounds, in milliseconds and ascending.
    pub fn new(bounds_ms: [u64; BOUNDS]) -> Self {
        Self {
            bounds_ms,
            buckets: [const { AtomicU64::new(0) }; BOUNDS + 1],
            sum_ms: AtomicU64::new(0),
        }
    }

    /// Adds a batch of times in milliseconds.
    pub fn record(&self, times_ms: impl IntoIterator<Item = u64>) {
        let mut counts = [0_u64; BOUNDS + 1];
        let mut sum_ms = 0_u64;
        for time_ms in times_ms {
            counts[self.bounds_ms.partition_point(|bound| *bound < time_ms)] += 1;
            sum_ms = sum_ms.saturating_add(time_ms);
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

    /// The counts so far.
    pub fn counts(&self) -> TimeCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut counts = TimeCounts {
            above: self.buckets.last().map_or(0, read),
            sum_ms: read(&self.sum_ms),
            ..TimeCounts::default()
        };
        let filled = self
            .bounds_ms
            .into_iter()
            .zip(self.buckets.iter().map(read));
        for (bucket, filled) in counts.buckets.iter_mut().zip(filled) {
            *bucket = filled;
        }
        counts
    }
}

impl TimeCounts {
    /// Adds the counts of another histogram, which has the same bounds.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, (bound_ms, count)) in self.buckets.iter_mut().zip(other.buckets) {
            *bucket = (bound_ms, bucket.1.saturating_add(count));
        }
        self.above = self.above.saturating_add(other.above);
        self.sum_ms = self.sum_ms.saturating_add(other.sum_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(counts: &TimeCounts) -> Vec<(u64, u64)> {
        let filled = counts.buckets.iter().filter(|(_, count)| *count > 0);
        filled.copied().collect()
    }

    #[test]
    fn a_batch_is_counted_in_the_buckets_whose_bounds_include_it() {
        let delays = TimeHistogram::new(DELAY_BOUNDS_MS);
        delays.record([0, 1, 2, 3, 60_000, 60_001]);
        delays.record([5]);
        let counts = delays.counts();
        assert_eq!(filled(&counts), [(1, 2), (2, 1), (5, 2), (60_000, 1)]);
        assert_eq!(counts.above, 1);
        assert_eq!(counts.sum_ms, 120_012);
    }

    #[test]
    fn merged_counts_are_the_sum_of_both() {
        let one = TimeHistogram::new(DURATION_BOUNDS_MS);
        let other = TimeHistogram::new(DURATION_BOUNDS_MS);
        one.record([10, 90_000_000]);
        other.record([7, 400]);
        let mut sum = TimeCounts::default();
        sum.merge(&one.counts());
        sum.merge(&other.counts());
        assert_eq!(filled(&sum), [(10, 2), (500, 1)]);
        assert_eq!((sum.above, sum.sum_ms), (1, 90_000_417));
        assert_eq!(sum.buckets[14].0, 86_400_000, "bounds stay");
    }

    #[test]
    fn bounds_ascend() {
        for bounds in [DELAY_BOUNDS_MS, DURATION_BOUNDS_MS] {
            assert!(bounds.is_sorted_by(|a, b| a < b), "{bounds:?}");
        }
    }
}
