//! Backfills: runs for the fire times of a past window. Which fire times those are is a pure function of the definition,
//! so that every scheduler continues where another one has stopped.

use crate::exclusion::Exclusions;
use crate::job::JobSpec;
use crate::schedule::Schedule;
use crate::time::Timestamp;

/// The most fire times of one backfill.
pub const MAX_BACKFILL_FIRES: u64 = 100_000;

/// The most fires of a backfill that may be at work at once.
pub const MAX_BACKFILL_PARALLEL: u32 = 100;

/// The most fire times that a count visits, excluded ones included.
const MAX_COUNTED: u64 = 200_000;

/// The most fire times that one step visits, excluded ones included.
const MAX_VISITED: u64 = 5_000;

/// Fire times of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FireCount {
    /// Those that run.
    pub fires: u64,
    /// Those that calendars and maintenance windows exclude.
    pub excluded: u64,
    /// Whether there are more of them than a backfill may have. Then the numbers are lower bounds.
    pub is_too_many: bool,
}

/// The next fire times of a window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NextFires {
    /// The fire times, oldest first.
    pub times: Vec<Timestamp>,
    /// How many excluded ones were passed.
    pub excluded: u64,
    /// The last one that was visited.
    pub cursor: Option<Timestamp>,
    /// Whether the window has no further one.
    pub is_end: bool,
}

/// Whether the schedule has fire times that are known without its runs.
pub fn has_past_fire_times(schedule: &Schedule) -> bool {
    schedule.parts().iter().all(|part| {
        matches!(
            part,
            Schedule::Cron(_) | Schedule::FixedRate { .. } | Schedule::Once { .. }
        )
    })
}

/// Counts the fire times from `from` on that are before `to`.
pub fn count_fires(
    spec: &JobSpec,
    exclusions: &Exclusions,
    from: Timestamp,
    to: Timestamp,
) -> FireCount {
    let mut count = FireCount {
        fires: 0,
        excluded: 0,
        is_too_many: false,
    };
    for at in fire_times(spec, from.minus_ms(1), to) {
        if count.fires + count.excluded >= MAX_COUNTED || count.fires >= MAX_BACKFILL_FIRES {
            count.is_too_many = true;
            break;
        }
        if exclusions.exclude(at) {
            count.excluded += 1;
        } else {
            count.fires += 1;
        }
    }
    count
}

/// At most `limit` fire times after `after` that are before `to` and not excluded.
pub fn next_fires(
    spec: &JobSpec,
    exclusions: &Exclusions,
    after: Timestamp,
    to: Timestamp,
    limit: usize,
) -> NextFires {
    let mut next = NextFires::default();
    let mut visited = 0;
    let mut times = fire_times(spec, after, to);
    while next.times.len() < limit && visited < MAX_VISITED {
        let Some(at) = times.next() else {
            next.is_end = true;
            break;
        };
        visited += 1;
        next.cursor = Some(at);
        if exclusions.exclude(at) {
            next.excluded += 1;
        } else {
            next.times.push(at);
        }
    }
    next
}

fn fire_times(
    spec: &JobSpec,
    after: Timestamp,
    to: Timestamp,
) -> impl Iterator<Item = Timestamp> + '_ {
    let first = spec.next_fire(after);
    let times = std::iter::successors(first, |last| spec.next_fire(*last));
    times.take_while(move |at| *at < to)
}
