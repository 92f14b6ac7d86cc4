//! When a job with exclusions is planned next, and which of its fire times have passed without a run.
//!
//! A minute job that is excluded for a month must not be planned, and get a `skipped` run, each minute. So the plan of a job
//! may be due later than its next fire time. The job then remembers the first excluded fire time that is not accounted for
//! yet. Between that one and the time of the next plan, each fire time either has its run or is excluded.

use super::{Exclusions, FOREVER};
use crate::job::JobSpec;
use crate::schedule::Schedule;
use crate::time::Timestamp;

/// The longest time for which excluded fire times wait to be accounted for.
pub const MAX_LOOK_AHEAD_MS: u64 = 86_400_000;

/// The most fire times that a search for the next one that is not excluded visits.
const MAX_VISITS: usize = 5_000;

/// The most fire times that are counted when a change of a job ends the wait. It is more than a plan leaves to be counted.
const MAX_COUNTED: usize = 200_000;

/// The most causes that one message names.
const MAX_CAUSES: usize = 5;

/// The stored state of a job's schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// When the job is planned: its next fire time, or an instant at which excluded ones are accounted for.
    pub at: Timestamp,
    /// The first excluded fire time that is not accounted for.
    pub excluded_from: Option<Timestamp>,
}

/// The state of a job's schedule after a plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NextDue {
    /// See [`Due::at`]; `None` if the job is not planned again.
    pub at: Option<Timestamp>,
    /// See [`Due::excluded_from`].
    pub excluded_from: Option<Timestamp>,
}

/// Excluded fire times that have passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed {
    /// The first.
    pub since: Timestamp,
    /// The last.
    pub last: Timestamp,
    /// Their number.
    pub count: u64,
    causes: Vec<(String, u64)>,
}

impl Passed {
    /// The excluded ones among `times`, which are in ascending order; `None` if there are none.
    pub fn of(exclusions: &Exclusions, times: impl IntoIterator<Item = Timestamp>) -> Option<Self> {
        let mut passed: Option<Self> = None;
        for at in times {
            let Some((cause, _)) = exclusions.at(at) else {
                continue;
            };
            let passed = passed.get_or_insert(Self {
                since: at,
                last: at,
                count: 0,
                causes: Vec::new(),
            });
            passed.last = at;
            passed.count += 1;
            let cause = cause.to_string();
            match passed.causes.iter_mut().find(|(known, _)| *known == cause) {
                Some((_, count)) => *count += 1,
                None => passed.causes.push((cause, 1)),
            }
        }
        passed
    }

    /// Why they were skipped, for people.
    pub fn reason(&self) -> String {
        if let [(cause, _)] = &self.causes[..] {
            return cause.clone();
        }
        let named = self.causes.iter().take(MAX_CAUSES);
        let mut texts: Vec<String> = named
            .map(|(cause, count)| format!("{count} {cause}"))
            .collect();
        if self.causes.len() > MAX_CAUSES {
            texts.push(format!(
                "and {} other causes",
                self.causes.len() - MAX_CAUSES
            ));
        }
        texts.join("; ")
    }
}

/// The excluded fire times from `from` on that are before `until`. A change of the job accounts for them.
pub fn passed(
    spec: &JobSpec,
    exclusions: &Exclusions,
    from: Timestamp,
    until: Timestamp,
) -> Option<Passed> {
    let first = spec.next_fire(from.minus_ms(1));
    let times = std::iter::successors(first, |last| spec.next_fire(*last));
    Passed::of(
        exclusions,
        times.take_while(|at| *at < until).take(MAX_COUNTED),
    )
}

/// When a job is planned next, if `next` is its next fire time and `pending` the first excluded one before it that has not
/// passed. `noted` says that the fire time before them was excluded too and is accounted for.
///
/// The first fire time of an excluded stretch is accounted for soon after it has passed, so that people see it. The others
/// are accounted for together: at the end of the stretch, after 5,000 of them, or after a day. `claimed_ahead_ms` is how long
/// before its time a job is planned.
pub fn next_due(
    spec: &JobSpec,
    exclusions: &Exclusions,
    next: Option<Timestamp>,
    pending: Option<Timestamp>,
    noted: bool,
    claimed_ahead_ms: u64,
) -> NextDue {
    let soon = |at: Timestamp| at.plus_ms(claimed_ahead_ms);
    let Some(next) = next else {
        return NextDue {
            at: pending.map(soon),
            excluded_from: pending,
        };
    };
    if !exclusions.exclude(next) {
        let at = pending.map_or(next, |first| next.min(soon(first)));
        return NextDue {
            at: Some(at),
            excluded_from: pending,
        };
    }
    let first = pending.unwrap_or(next);
    let limit = if noted {
        next.plus_ms(MAX_LOOK_AHEAD_MS)
    } else {
        soon(first)
    };
    NextDue {
        at: Some(end_of_stretch(
            spec,
            exclusions,
            next,
            limit,
            claimed_ahead_ms,
        )),
        excluded_from: Some(first),
    }
}

/// The first fire time from `next` on that is not excluded, or an earlier instant at which the search stops.
fn end_of_stretch(
    spec: &JobSpec,
    exclusions: &Exclusions,
    next: Timestamp,
    limit: Timestamp,
    claimed_ahead_ms: u64,
) -> Timestamp {
    let mut at = next;
    for _ in 0..MAX_VISITS {
        if at >= limit {
            return limit;
        }
        match spec.next_fire(at) {
            None => return at.plus_ms(claimed_ahead_ms),
            Some(following) if !exclusions.exclude(following) => return following.min(limit),
            Some(following) => at = following,
        }
    }
    at
}

/// The first fire time after `after` that is not excluded; `None` if there is none, or none that a bounded search finds.
pub fn next_free(spec: &JobSpec, exclusions: &Exclusions, after: Timestamp) -> Option<Timestamp> {
    // A fixed delay has no grid: its next fire time depends on the one before.
    let may_jump = !matches!(spec.schedule, Schedule::FixedDelay { .. });
    let mut after = after;
    for _ in 0..MAX_VISITS {
        let at = spec.next_fire(after)?;
        let Some((_, until)) = exclusions.at(at) else {
            return Some(at);
        };
        if until >= FOREVER {
            return None;
        }
        after = if may_jump {
            at.max(until.minus_ms(1))
        } else {
            at
        };
    }
    None
}
