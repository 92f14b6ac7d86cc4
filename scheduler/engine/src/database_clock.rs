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

    /// The time left until `at`; zero when `at` has passed. Exact to the microsecond: rounding up would make each wait
    /// up to a millisecond too long.
    pub(crate) fn until(&self, at: Timestamp) -> Duration {
        let offset = self.offset_ms.load(Ordering::Relaxed);
        let at_us = at.as_millis().saturating_sub(offset).saturating_mul(1_000);
        let left = at_us.saturating_sub(self.local.now_us());
        Duration::from_micros(u64::try_from(left).unwrap_or(0))
    }

    /// Adopts the time that the database has just returned. Returns the new offset in milliseconds.
    pub(crate) fn adopt(&self, database_now: Timestamp) -> i64 {
        let offset = database_now.as_millis().saturating_sub(self.local.now_ms());
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
        assert_eq!(clock.adopt(at(1_700)), 700);
        local.advance(50);
        assert_eq!(clock.now(), at(1_750));
        assert_eq!(clock.until(at(1_760)), Duration::from_millis(10));
        assert_eq!(clock.until(at(1_749)), Duration::ZERO);
    }
}
