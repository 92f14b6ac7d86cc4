//! Maps naive matches to real time.
//!
//! Between two changes of its clocks, a time zone has a constant offset from UTC. A search goes from one such stretch
//! to the next. Inside a stretch the naive match is the answer. At its end, [`Changes`] decides about the times that
//! the change skips or repeats.

use jiff::tz::{Offset, TimeZone};

use super::pattern::{HORIZON_YEARS, Pattern};
use crate::schedule::DstRule;

/// The treatment of times around a change of the clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Changes {
    /// A match among the skipped times fires once, at the instant of the change.
    gap_fires: bool,
    /// A match among the repeated times fires in both passes instead of only the first.
    repeats: bool,
}

impl Changes {
    /// The configured rule, or the default for the expression.
    pub(super) fn from_rule(rule: Option<DstRule>, follows_elapsed_time: bool) -> Self {
        let (gap_fires, repeats) = match rule {
            Some(DstRule::Skip) => (false, false),
            Some(DstRule::Both) => (true, true),
            None if follows_elapsed_time => (false, true),
            Some(DstRule::Once) | None => (true, false),
        };
        Self { gap_fires, repeats }
    }
}

/// The most stretches that one search crosses: four changes for each year of the pattern's horizon. Morocco has four,
/// because it suspends summer time during Ramadan.
const MAX_STRETCHES: u32 = 4 * HORIZON_YEARS.unsigned_abs() as u32;

/// The first match at or after the UTC second `from`.
pub(super) fn next_match(
    pattern: &Pattern,
    zone: &TimeZone,
    changes: Changes,
    from: i64,
) -> Option<i64> {
    if let Ok(fixed) = zone.to_fixed_offset() {
        let offset = i64::from(fixed.seconds());
        return Some(pattern.next(from.checked_add(offset)?)? - offset);
    }
    let mut from = from;
    // The stretch of the second before: if `from` is the instant of a change, a skipped match fires then.
    let mut at = jiff::Timestamp::from_second(from.checked_sub(1)?).ok()?;
    let mut offset = zone.to_offset(at);
    if !changes.repeats {
        from = from.max(end_of_repeat(zone, at, offset)?);
    }
    for _ in 0..MAX_STRETCHES {
        let here = i64::from(offset.seconds());
        let naive = pattern.next(from + here)?;
        let instant = naive - here;
        let Some(change) = zone.following(at).next() else {
            return Some(instant);
        };
        let change_at = change.timestamp().as_second();
        // The match lies before the next change, so the present offset applies to it.
        if instant < change_at {
            return Some(instant);
        }
        let there = i64::from(change.offset().seconds());
        // The clocks skip this naive time: it is below the first time after the change.
        if changes.gap_fires && naive < change_at + there {
            return Some(change_at);
        }
        at = change.timestamp();
        offset = change.offset();
        // If the clocks go back, the first pass already covered the repeated times. Without `repeats`, continue after
        // them.
        from = if changes.repeats {
            change_at
        } else {
            change_at + (here - there).max(0)
        };
    }
    None
}

/// If `at` lies in the second pass over repeated times, the end of that pass in UTC seconds. Otherwise a second that is
/// not later than `at`.
fn end_of_repeat(zone: &TimeZone, at: jiff::Timestamp, offset: Offset) -> Option<i64> {
    let next = jiff::Timestamp::from_second(at.as_second() + 1).ok()?;
    let Some(change) = zone.preceding(next).next() else {
        return Some(at.as_second());
    };
    let change_at = change.timestamp().as_second();
    let before = jiff::Timestamp::from_second(change_at - 1).ok()?;
    let shift = zone.to_offset(before).seconds() - offset.seconds();
    Some(change_at + i64::from(shift.max(0)))
}
