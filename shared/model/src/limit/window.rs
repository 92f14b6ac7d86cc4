//! The dispatches of the last interval.

use serde::{Deserialize, Serialize};

use super::Rate;
use crate::time::Timestamp;

/// Dispatches within this part of an interval are counted together.
const PARTS: i64 = 128;

/// The most entries. Dispatches in the order of time need about [`PARTS`].
const MAX_ENTRIES: usize = 512;

/// An instant later than this is from before the clock was set back. Dispatches are admitted at most a second ahead.
const MAX_AHEAD_MS: i64 = 60_000;

/// Dispatches that are counted together: the first, the last, and their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Entry(i64, i64, u64);

/// The dispatches of the last interval of a rate limit.
///
/// A dispatch at `at` is allowed if fewer than `count` others are later than one interval before `at`. So no interval of
/// that length has more than `count` dispatches, wherever it begins, and in whatever order they were added. All of them
/// may be at the same instant.
///
/// Dispatches within 1/128 of an interval are counted as if they were at the last instant of them. So the memory is
/// bounded, and a place is free again up to 1/128 of an interval later than need be.
///
/// ```
/// use cueline_model::limit::{Rate, RatePer, RateWindow};
/// use cueline_model::Timestamp;
///
/// let rate = Rate { count: 2, per: RatePer::Minute };
/// let at = Timestamp::from_millis;
/// let mut window = RateWindow::default();
/// window.add(at(0), rate.per);
/// window.add(at(30_000), rate.per);
/// assert_eq!(window.free(at(59_999), rate), 0);
/// assert_eq!(window.next_place(at(59_999), rate), at(60_000));
/// assert_eq!(window.free(at(60_000), rate), 1);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RateWindow(Vec<Entry>);

impl RateWindow {
    /// How many dispatches are allowed at `at`.
    pub fn free(&self, at: Timestamp, rate: Rate) -> u64 {
        u64::from(rate.count).saturating_sub(self.used(at, rate))
    }

    /// How many dispatches are later than one interval before `at`.
    pub fn used(&self, at: Timestamp, rate: Rate) -> u64 {
        self.counted(at, rate).map(|entry| entry.2).sum()
    }

    fn counted(&self, at: Timestamp, rate: Rate) -> impl Iterator<Item = Entry> {
        let after = at.as_millis().saturating_sub(interval_ms(rate));
        self.0.iter().copied().filter(move |entry| entry.1 > after)
    }

    /// The first instant from `at` on at which a dispatch is allowed, if none is added.
    pub fn next_place(&self, at: Timestamp, rate: Rate) -> Timestamp {
        let mut counted: Vec<Entry> = self.counted(at, rate).collect();
        counted.sort_unstable_by_key(|entry| entry.1);
        let mut used: u64 = counted.iter().map(|entry| entry.2).sum();
        let mut next = at;
        for Entry(_, last, count) in counted {
            if used < u64::from(rate.count.max(1)) {
                break;
            }
            used = used.saturating_sub(count);
            next = Timestamp::from_millis(last.saturating_add(interval_ms(rate)));
        }
        next
    }

    /// Adds a dispatch.
    pub fn add(&mut self, at: Timestamp, per: super::RatePer) {
        let at = at.as_millis();
        let part = per.as_millis().cast_signed() / PARTS;
        let fits = |entry: &&mut Entry| {
            entry.1.max(at).saturating_sub(entry.0.min(at)) < part && entry.2 < u64::MAX
        };
        if let Some(entry) = self.0.iter_mut().find(fits) {
            *entry = Entry(entry.0.min(at), entry.1.max(at), entry.2 + 1);
        } else if self.0.len() < MAX_ENTRIES {
            self.0.push(Entry(at, at, 1));
        } else if let Some(last) = self.0.iter_mut().max_by_key(|entry| entry.1) {
            *last = Entry(last.0.min(at), last.1.max(at), last.2.saturating_add(1));
        }
    }

    /// Forgets what no dispatch from `now` on has to count. What is far in the future is moved to `now`: the clock was
    /// set back since.
    pub fn forget_before(&mut self, now: Timestamp, per: super::RatePer) {
        let now = now.as_millis();
        let after = now.saturating_sub(per.as_millis().cast_signed());
        self.0.retain(|entry| entry.1 > after);
        for entry in &mut self.0 {
            if entry.1 > now.saturating_add(MAX_AHEAD_MS) {
                *entry = Entry(entry.0.min(now), now, entry.2);
            }
        }
    }

    /// Whether it has no dispatches.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn interval_ms(rate: Rate) -> i64 {
    rate.per.as_millis().cast_signed()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::limit::RatePer;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn rate(count: u32, per: RatePer) -> Rate {
        Rate { count, per }
    }

    #[test]
    fn all_of_an_interval_may_come_at_once() {
        let five = rate(5, RatePer::Hour);
        let mut window = RateWindow::default();
        for _ in 0..5 {
            assert!(window.free(at(7), five) > 0);
            window.add(at(7), five.per);
        }
        assert_eq!(window.free(at(7), five), 0);
        assert_eq!(window.next_place(at(8), five), at(3_600_007));
        assert_eq!(window.free(at(3_600_007), five), 5);
        window.forget_before(at(3_600_007), five.per);
        assert!(window.is_empty());
    }

    #[test]
    fn places_come_back_one_by_one() {
        let two = rate(2, RatePer::Second);
        let mut window = RateWindow::default();
        window.add(at(0), two.per);
        window.add(at(400), two.per);
        assert_eq!(window.next_place(at(500), two), at(1_000));
        window.add(at(1_000), two.per);
        assert_eq!(window.next_place(at(1_000), two), at(1_400));
        assert_eq!(window.next_place(at(1_400), two), at(1_400));
    }

    #[test]
    fn a_smaller_limit_waits_for_several_places() {
        let mut window = RateWindow::default();
        for ms in [0, 100, 200] {
            window.add(at(ms), RatePer::Second);
        }
        let one = rate(1, RatePer::Second);
        assert_eq!(window.next_place(at(300), one), at(1_200));
    }

    #[test]
    fn a_clock_that_is_set_back_delays_at_most_one_interval() {
        let one = rate(1, RatePer::Second);
        let mut window = RateWindow::default();
        window.add(at(10_000_000), one.per);
        window.forget_before(at(1_000), one.per);
        assert_eq!(window.next_place(at(1_000), one), at(2_000));
    }

    #[test]
    fn the_memory_is_bounded_whatever_the_order() {
        let many = rate(1_000_000, RatePer::Second);
        let mut window = RateWindow::default();
        for n in 0..100_000_i64 {
            // Forwards and back over three seconds.
            window.add(at((n * 7_919) % 3_000), many.per);
        }
        assert!(window.0.len() <= MAX_ENTRIES, "{}", window.0.len());
        assert_eq!(window.used(at(0), many), 100_000);
    }

    /// Steps to the next request in ms, and how much later than its request a dispatch is due.
    fn requests() -> impl Strategy<Value = Vec<(i64, i64)>> {
        vec(
            (0..120_i64, prop_oneof![3 => Just(0_i64), 1 => 0..600_i64]),
            1..300,
        )
    }

    proptest! {
        #[test]
        fn no_interval_has_more(requests in requests(), count in 1..20_u32) {
            let limit = rate(count, RatePer::Second);
            let mut window = RateWindow::default();
            let (mut now, mut admitted) = (0, Vec::new());
            for (step, ahead) in requests {
                now += step;
                window.forget_before(at(now), limit.per);
                if window.free(at(now + ahead), limit) > 0 {
                    window.add(at(now + ahead), limit.per);
                    admitted.push(now + ahead);
                }
            }
            for start in &admitted {
                let within = |one: &&i64| (*start..start + 1_000).contains(*one);
                let found = admitted.iter().filter(within).count();
                prop_assert!(found <= count as usize, "{found} from {start} on: {admitted:?}");
            }
        }

        #[test]
        fn a_place_is_free_when_it_was_promised(requests in requests(), count in 1..20_u32) {
            let limit = rate(count, RatePer::Second);
            let mut window = RateWindow::default();
            let mut now = 0;
            for (step, _) in requests {
                now += step;
                let next = window.next_place(at(now), limit);
                prop_assert!(window.free(next, limit) > 0);
                prop_assert!(next.as_millis() <= now + 1_000 + 8);
                now = next.as_millis();
                window.add(next, limit.per);
            }
        }
    }
}
