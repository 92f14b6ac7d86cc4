//! The pace of a scheduler: how many runs it may fire beyond those that end.
//!
//! Executors that do not keep up would get more and more triggers. Then each run costs more, because its lane has more live
//! runs, and what is due waits in queues all the same. Due jobs that have not fired cost nothing.
//!
//! Pure: it reads no clock.

use std::time::Duration;

use cueline_model::Timestamp;

/// At least [`LEAST`] runs become possible in this time.
const INTERVAL: Duration = Duration::from_millis(250);
/// Many long runs may end late, and other schedulers may ingest the ends of this one's runs.
const LEAST: u64 = 1_000;

/// Counts the runs that may be fired. Each fire takes one, and each ended attempt gives one back, whatever fired it: rather
/// too many are fired than too few.
#[derive(Debug)]
pub(crate) struct Pace {
    /// The most runs that may be fired before any ends.
    most: u64,
    room: u64,
    /// The attempts that had ended at the last look.
    ended: u64,
    /// Of these, those since `began`.
    in_interval: u64,
    began: Timestamp,
}

impl Pace {
    pub(crate) fn new(most: usize) -> Self {
        let most = most as u64;
        Self {
            most,
            room: most,
            ended: 0,
            in_interval: 0,
            began: Timestamp::from_millis(0),
        }
    }

    /// The runs that may be fired now. `ended` is the number of attempts whose ends the node has ingested since its start.
    pub(crate) fn room(&mut self, ended: u64, now: Timestamp) -> usize {
        let new = ended.saturating_sub(self.ended);
        self.ended = ended;
        self.in_interval += new;
        self.give(new);
        let intervals = now.since_ms(self.began) / INTERVAL.as_millis() as i64;
        // A clock that was set back begins a new interval.
        if intervals != 0 {
            let least = LEAST.saturating_mul(intervals.max(0).cast_unsigned());
            self.give(least.saturating_sub(self.in_interval));
            self.in_interval = 0;
            self.began = now;
        }
        usize::try_from(self.room).unwrap_or(usize::MAX)
    }

    pub(crate) fn take(&mut self, fired: usize) {
        self.room = self.room.saturating_sub(fired as u64);
    }

    fn give(&mut self, runs: u64) {
        self.room = self.room.saturating_add(runs).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(1_000_000 + ms)
    }

    /// It has fired all that it may.
    fn exhausted() -> Pace {
        let mut pace = Pace::new(20_000);
        assert_eq!(pace.room(0, at(0)), 20_000);
        pace.take(20_000);
        assert_eq!(pace.room(0, at(249)), 0);
        pace
    }

    #[test]
    fn as_many_may_be_fired_as_end() {
        let mut pace = exhausted();
        assert_eq!(pace.room(1_500, at(249)), 1_500);
        pace.take(1_400);
        assert_eq!(pace.room(1_501, at(249)), 101);
        pace.take(102);
        assert_eq!(pace.room(1_501, at(249)), 0, "one job may have more runs");
    }

    #[test]
    fn some_may_be_fired_although_none_end() {
        let mut pace = exhausted();
        assert_eq!(pace.room(0, at(250)), 1_000);
        assert_eq!(pace.room(0, at(499)), 1_000);
        assert_eq!(pace.room(0, at(500)), 2_000);
        assert_eq!(pace.room(0, at(1_500)), 6_000, "after a long turn");
    }

    #[test]
    fn ends_count_toward_the_least() {
        let mut pace = exhausted();
        assert_eq!(pace.room(999, at(249)), 999);
        assert_eq!(pace.room(999, at(250)), 1_000);
        assert_eq!(pace.room(3_999, at(400)), 4_000);
        assert_eq!(pace.room(3_999, at(500)), 4_000, "more have ended");
    }

    #[test]
    fn the_room_is_bounded() {
        let mut pace = exhausted();
        assert_eq!(pace.room(50_000, at(1)), 20_000);
        assert_eq!(pace.room(50_000, at(60_000)), 20_000);
    }

    #[test]
    fn a_clock_that_is_set_back_stops_nothing() {
        let mut pace = exhausted();
        assert_eq!(pace.room(0, at(-60_000)), 0);
        assert_eq!(pace.room(0, at(-59_750)), 1_000);
    }
}
