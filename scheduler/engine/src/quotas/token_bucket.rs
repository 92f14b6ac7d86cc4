//! Bounds how often something is done in a minute. Pure.

use cueline_model::Timestamp;

/// One token in the units of a bucket. With a limit of n in a minute, n units flow in at each millisecond.
const TOKEN: u64 = 60_000;

/// A bucket of tokens: full at first, and filled again within a minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TokenBucket {
    units: u64,
    filled_at: Timestamp,
}

impl TokenBucket {
    /// A bucket that is full at `now`.
    pub(super) fn full(per_minute: u64, now: Timestamp) -> Self {
        Self {
            units: per_minute.saturating_mul(TOKEN),
            filled_at: now,
        }
    }

    /// Takes a token. Without one, returns the time until there is one, in ms. A clock that goes back fills nothing.
    pub(super) fn take(&mut self, per_minute: u64, now: Timestamp) -> Result<(), u64> {
        let elapsed_ms = u64::try_from(now.since_ms(self.filled_at)).unwrap_or(0);
        let full = per_minute.saturating_mul(TOKEN);
        self.units = self
            .units
            .saturating_add(elapsed_ms.saturating_mul(per_minute))
            .min(full);
        self.filled_at = now;
        if let Some(left) = self.units.checked_sub(TOKEN) {
            self.units = left;
            return Ok(());
        }
        let missing = TOKEN - self.units;
        // No token ever comes with a limit of 0. The quota may be changed, so the caller may ask again.
        Err(missing.checked_div(per_minute).map_or(TOKEN, |ms| ms + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn a_bucket_has_a_minutes_tokens_and_fills_within_a_minute() {
        let mut bucket = TokenBucket::full(3, at(0));
        for _ in 0..3 {
            assert_eq!(bucket.take(3, at(0)), Ok(()));
        }
        assert_eq!(bucket.take(3, at(0)), Err(20_001));
        assert!(bucket.take(3, at(19_999)).is_err());
        assert_eq!(bucket.take(3, at(20_000)), Ok(()));
        assert!(bucket.take(3, at(20_000)).is_err());
        for _ in 0..3 {
            assert_eq!(bucket.take(3, at(1_000_000)), Ok(()));
        }
        assert!(bucket.take(3, at(1_000_000)).is_err(), "no more than full");
    }

    #[test]
    fn a_limit_of_zero_admits_nothing() {
        let mut bucket = TokenBucket::full(0, at(0));
        assert_eq!(bucket.take(0, at(0)), Err(60_000));
        assert_eq!(bucket.take(0, at(1_000_000)), Err(60_000));
    }

    #[test]
    fn a_clock_that_goes_back_fills_nothing() {
        let mut bucket = TokenBucket::full(1, at(100_000));
        assert_eq!(bucket.take(1, at(100_000)), Ok(()));
        assert!(bucket.take(1, at(0)).is_err());
        assert_eq!(bucket.take(1, at(60_000)), Ok(()));
    }

    #[test]
    fn a_limit_that_was_lowered_counts_at_once() {
        let mut bucket = TokenBucket::full(100, at(0));
        assert_eq!(bucket.take(1, at(0)), Ok(()));
        assert!(bucket.take(1, at(0)).is_err());
    }
}
