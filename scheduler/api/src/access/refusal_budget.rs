//! Bounds the entries about refusals, so that guessing fills neither the audit log nor the disk.
//!
//! Pure: the time is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// The most entries of this process in [`WINDOW`]. Further ones are only counted.
const MAX_ENTRIES: u32 = 60;
const WINDOW: Duration = Duration::from_mins(1);

/// The entries of the present minute.
#[derive(Debug, Default)]
pub(super) struct RefusalBudget {
    since: Option<Instant>,
    recorded: u32,
    left_out: u64,
}

impl RefusalBudget {
    /// Whether another refusal may be recorded. If so, returns how many were left out since the last one.
    pub(super) fn admit(&mut self, now: Instant) -> Option<u64> {
        let is_over = |since: Instant| now.saturating_duration_since(since) >= WINDOW;
        if self.since.is_none_or(is_over) {
            self.since = Some(now);
            self.recorded = 0;
        }
        if self.recorded >= MAX_ENTRIES {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        self.recorded += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_beyond_the_bound_are_counted_and_reported_with_the_next_one() {
        let now = Instant::now();
        let mut budget = RefusalBudget::default();
        for _ in 0..MAX_ENTRIES {
            assert_eq!(budget.admit(now), Some(0));
        }
        assert_eq!(budget.admit(now), None);
        assert_eq!(budget.admit(now + WINDOW / 2), None);
        assert_eq!(budget.admit(now + WINDOW), Some(2));
        assert_eq!(budget.admit(now + WINDOW), Some(0));
    }
}
