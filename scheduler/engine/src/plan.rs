//! What a due job does: which runs, which skips, when next. Pure.

use cueline_model::{
    ExecutorName, Job, MisfirePolicy, Schedule, Shard, ShardPlan, Timestamp, expand,
};
use cueline_store::{Plan, PlannedRun, Planner, SkippedFires};

/// Plans by the job's own schedule and misfire policy.
#[derive(Debug, Clone, Copy)]
pub struct SchedulePlanner {
    /// Fire times up to this far in the future are planned at once.
    pub lookahead_ms: u64,
    /// At most so many fire times are looked at for one job in one call; the rest follows in the next.
    pub max_fire_times: usize,
}

impl Default for SchedulePlanner {
    fn default() -> Self {
        Self {
            lookahead_ms: 1_500,
            max_fire_times: 5_000,
        }
    }
}

/// The fire times of a job that one plan covers.
struct FireTimes {
    /// Found too late, oldest first.
    missed: Vec<Timestamp>,
    /// Missed ones before those, which nobody wants to run: (first, how many, last).
    bulk: Option<(Timestamp, u64, Timestamp)>,
    on_time: Vec<Timestamp>,
    next: Option<Timestamp>,
    /// More missed ones follow in the next call: the newest, which may be wanted, are among those.
    held_back: bool,
}

impl Planner for SchedulePlanner {
    fn plan(&self, job: &Job, due: Timestamp, now: Timestamp, live: &[ExecutorName]) -> Plan {
        let times = self.fire_times(job, due, now);
        let mut plan = Plan {
            runs: Vec::new(),
            next_fire: times.next,
        };
        let (skipped, run) = split_missed(job, &times);
        if let Some((since, count, last)) = skipped {
            plan.runs.push(skip_run(job, since, count, last, now));
        }
        let shards = expand(&job.spec.route, live);
        for fire_at in run.iter().chain(&times.on_time) {
            plan.runs
                .extend(shards.iter().map(|shard| planned(job, *fire_at, shard)));
        }
        plan
    }
}

impl SchedulePlanner {
    fn fire_times(&self, job: &Job, due: Timestamp, now: Timestamp) -> FireTimes {
        let horizon = now.plus_ms(self.lookahead_ms);
        let late = now.minus_ms(job.spec.misfire.grace.as_millis());
        let mut times = FireTimes {
            missed: Vec::new(),
            bulk: None,
            on_time: Vec::new(),
            next: Some(due),
            held_back: false,
        };
        if matches!(job.spec.schedule, Schedule::FixedDelay { .. }) {
            // The next one is counted from the end of this one.
            if due < late {
                times.missed.push(due);
            } else {
                times.on_time.push(due);
            }
            times.next = None;
            return times;
        }
        times.skip_ahead(job, late);
        let wanted = wanted(job);
        for _ in 0..self.max_fire_times.max(1) + wanted {
            match times.next {
                Some(at) if at <= horizon => {
                    if at < late {
                        times.missed.push(at);
                    } else {
                        times.on_time.push(at);
                    }
                    times.next = job.spec.next_fire(at);
                }
                _ => return times,
            }
        }
        if times.next.is_some_and(|at| at < late) {
            times.held_back = true;
            let keep = times.missed.len() - wanted;
            times.next = times.missed.get(keep).copied().or(times.next);
            times.missed.truncate(keep);
        }
        times
    }
}

impl FireTimes {
    /// A grid that was missed for a year at ten a second is counted, not walked.
    fn skip_ahead(&mut self, job: &Job, late: Timestamp) {
        let (Schedule::FixedRate { every, .. }, Some(first)) = (&job.spec.schedule, self.next)
        else {
            return;
        };
        let period = every.as_millis().max(1);
        let keep = u64::from(job.spec.misfire.catch_up_limit) + 1;
        let missed = u64::try_from(late.since_ms(first))
            .unwrap_or(0)
            .div_ceil(period);
        if missed <= keep {
            return;
        }
        let count = missed - keep;
        let last = first.plus_ms((count - 1).saturating_mul(period));
        self.bulk = Some((first, count, last));
        self.next = job.spec.next_fire(last);
    }
}

/// How many of the missed fire times are run all the same.
fn wanted(job: &Job) -> usize {
    match job.spec.misfire.policy {
        MisfirePolicy::Skip => 0,
        MisfirePolicy::FireOnce => 1,
        MisfirePolicy::CatchUp => job.spec.misfire.catch_up_limit as usize,
    }
}

/// What of the missed fire times is skipped (since, how many, last) and what is run all the same.
fn split_missed<'a>(
    job: &Job,
    times: &'a FireTimes,
) -> (Option<(Timestamp, u64, Timestamp)>, &'a [Timestamp]) {
    let missed = &times.missed;
    let (skip, run) = if times.held_back {
        (missed.as_slice(), &[][..])
    } else {
        missed.split_at(missed.len().saturating_sub(wanted(job)))
    };
    let mut skipped = times.bulk;
    if let (Some(first), Some(last)) = (skip.first(), skip.last()) {
        let (since, before, _) = skipped.unwrap_or((*first, 0, *first));
        skipped = Some((since, before + skip.len() as u64, *last));
    }
    (skipped, run)
}

fn planned(job: &Job, fire_at: Timestamp, shard: &ShardPlan) -> PlannedRun {
    PlannedRun {
        fire_at,
        due_at: job.spec.due_at(job.id, fire_at),
        shard: shard.shard.clone(),
        executor: shard.executor.clone(),
        skipped: None,
    }
}

fn skip_run(
    job: &Job,
    since: Timestamp,
    count: u64,
    last: Timestamp,
    now: Timestamp,
) -> PlannedRun {
    let policy = match job.spec.misfire.policy {
        MisfirePolicy::Skip => "skip",
        MisfirePolicy::FireOnce => "fire_once",
        MisfirePolicy::CatchUp => "catch_up",
    };
    PlannedRun {
        fire_at: last,
        due_at: last,
        shard: Shard::whole(),
        executor: None,
        skipped: Some(SkippedFires {
            reason: format!(
                "misfire policy {policy}: found {} ms late",
                now.since_ms(last)
            ),
            count,
            since,
        }),
    }
}

#[cfg(test)]
mod tests {
    use cueline_model::{JobId, JobSpec};
    use proptest::prelude::*;

    use super::*;

    fn job(policy: &str, limit: u32, every: &str) -> Job {
        let spec: JobSpec = serde_json::from_value(serde_json::json!({
            "name": "j", "group": "default", "schedule": { "every": every },
            "misfire": { "policy": policy, "grace": "5s", "catch_up_limit": limit },
            "handler": { "native": "noop" },
        }))
        .expect("a valid definition");
        Job {
            id: JobId(1),
            version: 1,
            spec,
        }
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    proptest! {
        /// G1: whatever the policy and however late, each fire time up to the horizon is run or counted in a skip, once.
        #[test]
        fn every_fire_time_is_accounted_for(
            policy in prop_oneof![Just("skip"), Just("fire_once"), Just("catch_up")],
            limit in 1_u32..40,
            behind_ms in 0_i64..200_000,
            max in 1_usize..50,
        ) {
            let planner = SchedulePlanner { lookahead_ms: 1_500, max_fire_times: max };
            let job = job(policy, limit, "1s");
            let (start, now) = (1_000_000, 1_000_000 + behind_ms);
            let (mut next, mut accounted, mut ran) = (Some(at(start)), 0, Vec::new());
            for _ in 0..1_000 {
                let due = next.expect("a rate never ends");
                if due > at(now + 1_500) { break; }
                let plan = planner.plan(&job, due, at(now), &[]);
                for run in &plan.runs {
                    accounted += run.skipped.as_ref().map_or(1, |s| s.count);
                    if run.skipped.is_none() { ran.push(run.fire_at.as_millis()); }
                }
                prop_assert!(plan.next_fire > Some(due));
                next = plan.next_fire;
            }
            let total = (behind_ms + 1_500) / 1_000 + 1;
            prop_assert_eq!(accounted, u64::try_from(total).unwrap());
            let missed_total = u64::try_from(behind_ms - 5_000).unwrap_or(0).div_ceil(1_000);
            let missed_ran = ran.iter().filter(|t| **t < now - 5_000).count() as u64;
            let wanted = match policy { "skip" => 0, "fire_once" => 1, _ => u64::from(limit) };
            prop_assert_eq!(missed_ran, missed_total.min(wanted));
            prop_assert!(ran.is_sorted());
        }
    }

    #[test]
    fn a_year_of_missed_tenths_is_counted_without_walking() {
        let job = job("fire_once", 100, "100ms");
        let now = at(31_536_000_000);
        let plan = SchedulePlanner::default().plan(&job, at(100), now, &[]);
        let skipped: u64 = plan
            .runs
            .iter()
            .filter_map(|r| r.skipped.as_ref())
            .map(|s| s.count)
            .sum();
        let runs = plan.runs.iter().filter(|r| r.skipped.is_none()).count() as u64;
        let walked = plan
            .next_fire
            .expect("goes on")
            .since_ms(at(100))
            .unsigned_abs()
            / 100;
        assert_eq!(skipped + runs, walked);
        assert!(plan.next_fire > Some(now));
    }
}
