//! The pace of a scheduler: how many runs it may fire before others start or end.
//!
//! Executors that do not keep up would get more and more triggers. Then each run costs more, because its lane has more live
//! runs, and what is due waits in queues all the same. Due jobs that have not fired cost nothing.
//!
//! Pure: it reads no clock.

use cueline_model::Timestamp;

/// At least [`LEAST`] runs become possible in this time.
const INTERVAL_MS: u64 = 250;
/// Other schedulers may ingest the reports about this one's runs, and a backlog of a slow job stays.
const LEAST: u64 = 2_000;
/// Fires that wait for room for at most this time are not late by that wait.
const MAX_ALLOWANCE_MS: u64 = 60_000;

/// Counts the runs that may be fired. Each fire takes room, and each attempt that starts or ends gives some back, whatever
/// fired it: rather too many are fired than too few.
#[derive(Debug)]
pub(crate) struct Pace {
    /// The most runs that may be fired before any starts or ends.
    most: u64,
    room: u64,
    /// The count of attempts that had left their queue at the last look.
    left_queue: u64,
    /// Of these, those since `began`.
    in_interval: u64,
    began: Timestamp,
    /// Since when due jobs have been waiting for room.
    waits_since: Option<Timestamp>,
}

impl Pace {
    pub(crate) fn new(most: usize) -> Self {
        let most = most as u64;
        Self {
            most,
            room: most,
            left_queue: 0,
            in_interval: 0,
            began: Timestamp::from_millis(0),
            waits_since: None,
        }
    }

    /// The runs that may be fired now. `left_queue` counts the reports since the start of the node by which attempts have
    /// started or ended.
    pub(crate) fn room(&mut self, left_queue: u64, now: Timestamp) -> usize {
        let new = left_queue.saturating_sub(self.left_queue);
        self.left_queue = left_queue;
        self.in_interval += new;
        self.give(new);
        match u64::try_from(now.since_ms(self.began)) {
            Ok(since_ms) => {
                let intervals = since_ms / INTERVAL_MS;
                if intervals > 0 {
                    let least = LEAST.saturating_mul(intervals);
                    self.give(least.saturating_sub(self.in_interval));
                    self.in_interval = 0;
                    self.began = self.began.plus_ms(intervals * INTERVAL_MS);
                }
            }
            // The clock was set back.
            Err(_) => self.began = now,
        }
        usize::try_from(self.room).unwrap_or(usize::MAX)
    }

    /// These runs were fired. Returns the room that is left.
    pub(crate) fn take(&mut self, fired: usize) -> usize {
        self.room = self.room.saturating_sub(fired as u64);
        usize::try_from(self.room).unwrap_or(usize::MAX)
    }

    /// Due jobs wait for room.
    pub(crate) fn wait(&mut self, now: Timestamp) {
        self.waits_since.get_or_insert(now);
    }

    /// No due jobs are left.
    pub(crate) fn caught_up(&mut self) {
        self.waits_since = None;
    }

    /// Fires may be later by this much before they count as missed: they waited for room.
    pub(crate) fn allowance_ms(&self, now: Timestamp) -> u64 {
        let waited_ms = self.waits_since.map_or(0, |since| now.since_ms(since));
        u64::try_from(waited_ms).unwrap_or(0).min(MAX_ALLOWANCE_MS)
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
        assert_eq!(pace.take(20_000), 0);
        assert_eq!(pace.room(0, at(249)), 0);
        pace
    }

    #[test]
    fn as_many_may_be_fired_as_start_or_end() {
        let mut pace = exhausted();
        assert_eq!(pace.room(1_500, at(249)), 1_500);
        assert_eq!(pace.take(1_400), 100);
        assert_eq!(pace.room(1_501, at(249)), 101);
        assert_eq!(pace.take(102), 0, "one job may have more runs");
    }

    #[test]
    fn some_may_be_fired_although_none_start_or_end() {
        let mut pace = exhausted();
        assert_eq!(pace.room(0, at(250)), 2_000);
        assert_eq!(pace.room(0, at(499)), 2_000);
        assert_eq!(pace.room(0, at(520)), 4_000);
        assert_eq!(pace.room(0, at(749)), 4_000);
        assert_eq!(pace.room(0, at(750)), 6_000, "looks need not be punctual");
        assert_eq!(pace.room(0, at(1_250)), 10_000, "after a long turn");
    }

    #[test]
    fn what_starts_or_ends_counts_toward_the_least() {
        let mut pace = exhausted();
        assert_eq!(pace.room(1_999, at(249)), 1_999);
        assert_eq!(pace.room(1_999, at(250)), 2_000);
        assert_eq!(pace.room(6_999, at(400)), 7_000);
        assert_eq!(pace.room(6_999, at(500)), 7_000, "more have left");
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
        assert_eq!(pace.room(0, at(-59_750)), 2_000);
    }

    #[test]
    fn fires_are_not_late_by_their_wait_for_up_to_a_minute() {
        let mut pace = exhausted();
        assert_eq!(pace.allowance_ms(at(1_000)), 0);
        pace.wait(at(1_000));
        pace.wait(at(2_000));
        assert_eq!(pace.allowance_ms(at(8_000)), 7_000);
        assert_eq!(pace.allowance_ms(at(90_000)), 60_000);
        assert_eq!(pace.allowance_ms(at(0)), 0, "the clock was set back");
        pace.caught_up();
        assert_eq!(pace.allowance_ms(at(90_000)), 0);
    }
}
