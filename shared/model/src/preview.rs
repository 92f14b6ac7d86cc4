//! Previews the fire times of a definition, and says which ones are left out and why.

use std::collections::BTreeSet;

use crate::exclusion::{Exclusions, FOREVER};
use crate::job::JobSpec;
use crate::schedule::{CronSchedule, DstRule, MAX_PREVIEW, Schedule};
use crate::time::Timestamp;

/// The most entries about times that are left out. Further ones are not listed.
pub const MAX_LEFT_OUT: usize = 100;

/// The most fire times that a preview visits one by one within one excluded stretch, and in all.
const MAX_VISITS_IN_STRETCH: u64 = 10_000;
const MAX_VISITS: u64 = 100_000;

/// The next fire times of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preview {
    /// The fire times, earliest first.
    pub times: Vec<Timestamp>,
    /// What was left out before the last of them, earliest first.
    pub left_out: Vec<LeftOut>,
}

/// Times that match the schedule and at which the job does not fire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// The first of them.
    pub first: Timestamp,
    /// The last of them that was counted.
    pub last: Timestamp,
    /// Their number.
    pub count: u64,
    /// Whether there are more of them between the first and the next fire time.
    pub more: bool,
    /// Why.
    pub reason: String,
}

impl LeftOut {
    fn one(at: Timestamp, reason: String) -> Self {
        Self {
            first: at,
            last: at,
            count: 1,
            more: false,
            reason,
        }
    }
}

/// The first `n` fire times after `from`, at most [`MAX_PREVIEW`].
///
/// For `fixed_delay` the result assumes that runs take no time.
pub fn preview(spec: &JobSpec, exclusions: &Exclusions, from: Timestamp, n: usize) -> Preview {
    let mut found = Preview::default();
    let n = n.min(MAX_PREVIEW);
    let mut after = from;
    let mut visits = 0;
    while found.times.len() < n && visits < MAX_VISITS {
        let Some(at) = spec.next_fire(after) else {
            found.note_end(spec, after);
            break;
        };
        visits += 1;
        after = at;
        match exclusions.at(at) {
            None => found.times.push(at),
            Some((cause, until)) => {
                let entry = found.note(at, cause.to_string());
                if entry.count >= MAX_VISITS_IN_STRETCH {
                    entry.more = true;
                    if until >= FOREVER {
                        break;
                    }
                    after = until.minus_ms(1).max(at);
                }
            }
        }
    }
    found.note_gaps(spec, from, after);
    found.left_out.sort_by_key(|left_out| left_out.first);
    found.left_out.truncate(MAX_LEFT_OUT);
    found
}

impl Preview {
    /// Notes an excluded fire time. It joins the entry before it unless a fire time is between them.
    fn note(&mut self, at: Timestamp, reason: String) -> &mut LeftOut {
        let last_fire = self.times.last().copied();
        let joins = self.left_out.last().is_some_and(|last| {
            last.reason == reason && last_fire.is_none_or(|fire| fire < last.first)
        });
        if joins {
            let index = self.left_out.len() - 1;
            let entry = &mut self.left_out[index];
            entry.last = at;
            entry.count += 1;
            return entry;
        }
        self.left_out.push(LeftOut::one(at, reason));
        let index = self.left_out.len() - 1;
        &mut self.left_out[index]
    }

    /// Says that `end_at` is the reason why there are no more fire times.
    fn note_end(&mut self, spec: &JobSpec, after: Timestamp) {
        let Some(end) = spec.end_at else { return };
        if let Some(at) = spec.schedule.next_after(after.max(end.minus_ms(1))) {
            let mut entry = LeftOut::one(at, format!("end_at is {end}"));
            entry.more = true;
            self.left_out.push(entry);
        }
    }

    /// Notes the times that a change of the clocks skips. With the rule `once` they fire at the end of the gap, so they are the
    /// fire times that only this rule has.
    fn note_gaps(&mut self, spec: &JobSpec, from: Timestamp, to: Timestamp) {
        let from = spec
            .start_at
            .map_or(from, |start| from.max(start.minus_ms(1)));
        for part in spec.schedule.parts() {
            let Schedule::Cron(cron) = part else { continue };
            let once = CronSchedule::parse(
                cron.expression(),
                cron.timezone(),
                Some(cron.dialect()),
                Some(DstRule::Once),
            );
            let Ok(once) = once else { continue };
            let own: BTreeSet<Timestamp> = fires(cron, from, to).collect();
            for at in fires(&once, from, to).filter(|at| !own.contains(at)) {
                let zone = cron.timezone();
                let reason = format!(
                    "the clocks of {zone} skip a time that matches {:?}",
                    cron.expression()
                );
                self.left_out.push(LeftOut::one(at, reason));
            }
        }
    }
}

/// The fire times after `from`, up to `to`.
fn fires(cron: &CronSchedule, from: Timestamp, to: Timestamp) -> impl Iterator<Item = Timestamp> {
    let all = std::iter::successors(cron.next_after(from), |last| cron.next_after(*last));
    all.take_while(move |at| *at <= to).take(MAX_PREVIEW)
}
