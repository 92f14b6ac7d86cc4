//! This node's estimate of the database's clock. Due times, leases and deadlines follow that clock on every node.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use cueline_model::Timestamp;
use cueline_runtime::Clock;

/// The local clock, corrected by its last measured difference to the database's clock.
#[derive(Debug)]
pub(crate) struct DatabaseClock {
    local: Arc<dyn Clock>,
    /// Database time minus local time, in milliseconds.
    offset_ms: AtomicI64,
}

impl DatabaseClock {
    pub(crate) fn new(local: Arc<dyn Clock>) -> Self {
        Self {
            local,
            offset_ms: AtomicI64::new(0),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        let offset = self.offset_ms.load(Ordering::Relaxed);
        Timestamp::from_millis(self.local.now_ms().saturating_add(offset))
    }

    /// Database time minus local time in milliseconds, as it was last measured.
    pub(crate) fn offset_ms(&self) -> i64 {
        self.offset_ms.load(Ordering::Relaxed)
    }

    /// The time left until `at`; zero when `at` has passed. Exact to the microsecond: rounding up would make each wait
    /// up to a millisecond too long.
    pub(crate) fn until(&self, at: Timestamp) -> Duration {
        let offset = self.offset_ms.load(Ordering::Relaxed);
        let at_us = at.as_millis().saturating_sub(offset).saturating_mul(1_000);
        let left = at_us.saturating_sub(self.local.now_us());
        Duration::from_micros(u64::try_from(left).unwrap_or(0))
    }

    /// The local time at which the database is asked for its time; see [`adopt`](Self::adopt).
    pub(crate) fn local_ms(&self) -> i64 {
        self.local.now_ms()
    }

    /// Adopts the time that the database has just returned to a question of the local time `asked_ms`. Returns the new
    /// offset in milliseconds.
    ///
    /// This process may have been stopped between its question and now. So two bounds of the offset are known. It changes
    /// only as far as they require.
    pub(crate) fn adopt(&self, asked_ms: i64, database_now: Timestamp) -> i64 {
        let offset_at = |local_ms| database_now.as_millis().saturating_sub(local_ms);
        let (asked, answered) = (offset_at(asked_ms), offset_at(self.local.now_ms()));
        let before = self.offset_ms.load(Ordering::Relaxed);
        // The local clock may have been set back meanwhile.
        let offset = before.clamp(answered.min(asked), answered.max(asked));
        self.offset_ms.store(offset, Ordering::Relaxed);
        offset
    }
}

#[cfg(test)]
mod tests {
    use cueline_runtime::ManualClock;

    use super::*;

    #[test]
    fn times_and_waits_follow_the_database() {
        let local = ManualClock::at(1_000);
        let clock = DatabaseClock::new(Arc::new(local.clone()));
        let at = Timestamp::from_millis;
        assert_eq!(clock.now(), at(1_000));
        assert_eq!(clock.adopt(clock.local_ms(), at(1_700)), 700);
        assert_eq!(clock.offset_ms(), 700);
        local.advance(50);
        assert_eq!(clock.now(), at(1_750));
        assert_eq!(clock.until(at(1_760)), Duration::from_millis(10));
        assert_eq!(clock.until(at(1_749)), Duration::ZERO);
    }

    #[test]
    fn a_pause_between_question_and_answer_does_not_set_the_clock_back() {
        let local = ManualClock::at(1_000);
        let clock = DatabaseClock::new(Arc::new(local.clone()));
        let at = Timestamp::from_millis;
        assert_eq!(clock.adopt(clock.local_ms(), at(1_700)), 700);
        let asked_ms = clock.local_ms();
        local.advance(60_000);
        assert_eq!(clock.adopt(asked_ms, at(1_710)), 700);
        assert_eq!(clock.now(), at(61_700));
        // The database's clock was set forward, or this one back.
        let asked_ms = clock.local_ms();
        local.advance(5);
        assert_eq!(clock.adopt(asked_ms, at(91_700)), 30_695);
    }
}
