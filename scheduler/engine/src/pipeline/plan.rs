//! Plans a due job: which runs to create, which fire times to skip, and when the job is due next. Pure.

use cueline_model::{
    ExecutorName, Job, MisfirePolicy, Route, Schedule, Shard, ShardPlan, Timestamp, expand,
};
use cueline_store::{Plan, PlannedRun, Planner, SkippedFires};

use super::broadcast_hold::BroadcastRule;

/// Plans by the job's own schedule and misfire policy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SchedulePlanner {
    /// Fire times at most this far in the future are planned, in ms.
    pub(crate) lookahead_ms: u64,
    /// The most fire times that one call visits for a job. The next call continues.
    pub(crate) max_fire_times: usize,
    /// The most fire times that are not missed and that one call plans for a job. The next call continues.
    pub(crate) max_on_time: usize,
    /// The treatment of broadcast fires after an outage.
    pub(crate) broadcasts: BroadcastRule,
}

impl Default for SchedulePlanner {
    fn default() -> Self {
        Self {
            lookahead_ms: 1_500,
            max_fire_times: 5_000,
            max_on_time: usize::MAX,
            broadcasts: BroadcastRule::default(),
        }
    }
}

/// The fire times of a job that one plan covers.
struct FireTimes {
    /// The oldest missed fire times. They are skipped, so only their number is kept.
    counted: Option<SkippedSpan>,
    /// Missed fire times after those, oldest first.
    missed: Vec<Timestamp>,
    on_time: Vec<Timestamp>,
    next: Option<Timestamp>,
    /// Not all missed fire times fit. The next call gets the newest ones, which may have to run.
    has_more_missed: bool,
}

/// Fire times that share one `skipped` run.
#[derive(Clone, Copy)]
struct SkippedSpan {
    since: Timestamp,
    count: u64,
    last: Timestamp,
}

impl Planner for SchedulePlanner {
    fn plan(&self, job: &Job, due: Timestamp, now: Timestamp, live: &[ExecutorName]) -> Plan {
        let times = self.fire_times(job, due, now);
        let mut plan = Plan {
            runs: Vec::new(),
            next_fire: times.next,
        };
        let (skipped, run) = split_missed(job, &times);
        if let Some(skipped) = skipped {
            plan.runs.push(skipped_run(job, skipped, now));
        }
        let shards = expand(&job.spec.route, live);
        for fire_at in run.iter().chain(&times.on_time) {
            if cueline_runtime::planted!("ledger_gap") && fire_at.as_millis() % 7_000 == 0 {
                continue;
            }
            plan.runs
                .extend(shards.iter().map(|shard| planned_run(job, *fire_at, shard)));
        }
        plan
    }

    fn holds(&self, job: &Job, silent: &[ExecutorName]) -> bool {
        let is_broadcast = job.spec.route == Route::Broadcast;
        self.broadcasts.holds && is_broadcast && !silent.is_empty()
    }
}

impl SchedulePlanner {
    fn fire_times(&self, job: &Job, due: Timestamp, now: Timestamp) -> FireTimes {
        let horizon = now.plus_ms(self.lookahead_ms);
        let mut missed_before = now.minus_ms(job.spec.misfire.grace.as_millis());
        if job.spec.route == Route::Broadcast {
            missed_before = missed_before.minus_ms(self.broadcasts.allowance_ms);
        }
        let mut times = FireTimes {
            counted: None,
            missed: Vec::new(),
            on_time: Vec::new(),
            next: Some(due),
            has_more_missed: false,
        };
        if matches!(job.spec.schedule, Schedule::FixedDelay { .. }) {
            // The next fire time is set when this run ends.
            if due < missed_before {
                times.missed.push(due);
            } else {
                times.on_time.push(due);
            }
            times.next = None;
            return times;
        }
        times.count_old_misses(job, missed_before);
        let runnable = max_missed_to_run(job);
        let max_visits = self.max_fire_times.max(1) + runnable;
        for _ in 0..max_visits {
            match times.next {
                Some(at) if at <= horizon => {
                    if at < missed_before {
                        times.missed.push(at);
                    } else if times.on_time.len() < self.max_on_time {
                        times.on_time.push(at);
                    } else {
                        return times;
                    }
                    times.next = job.spec.next_fire(at);
                }
                _ => return times,
            }
        }
        if times.next.is_some_and(|at| at < missed_before) {
            times.has_more_missed = true;
            // Leave the newest `runnable` for the next call: only the last call knows which of them run.
            let skip_count = times.missed.len() - runnable;
            times.next = times.missed.get(skip_count).copied().or(times.next);
            times.missed.truncate(skip_count);
        }
        times
    }
}

impl FireTimes {
    /// Counts old misses of a fixed-rate job by one division. At ten fires a second, visiting each would take 315
    /// million steps for one year.
    fn count_old_misses(&mut self, job: &Job, missed_before: Timestamp) {
        let (Schedule::FixedRate { every, .. }, Some(first)) = (&job.spec.schedule, self.next)
        else {
            return;
        };
        let period = every.as_millis().max(1);
        // At least as many as any policy runs: `fire_once` runs 1, `catch_up` runs `catch_up_limit`.
        let visit_count = u64::from(job.spec.misfire.catch_up_limit) + 1;
        let missed = u64::try_from(missed_before.since_ms(first))
            .unwrap_or(0)
            .div_ceil(period);
        if missed <= visit_count {
            return;
        }
        let count = missed - visit_count;
        let last = first.plus_ms((count - 1).saturating_mul(period));
        self.counted = Some(SkippedSpan {
            since: first,
            count,
            last,
        });
        self.next = job.spec.next_fire(last);
    }
}

/// The most missed fire times that the misfire policy runs.
fn max_missed_to_run(job: &Job) -> usize {
    match job.spec.misfire.policy {
        MisfirePolicy::Skip => 0,
        MisfirePolicy::FireOnce => 1,
        MisfirePolicy::CatchUp => job.spec.misfire.catch_up_limit as usize,
    }
}

/// Splits the missed fire times into those to skip and those to run.
fn split_missed<'a>(job: &Job, times: &'a FireTimes) -> (Option<SkippedSpan>, &'a [Timestamp]) {
    let missed = &times.missed;
    let (skip, run) = if times.has_more_missed {
        (missed.as_slice(), &[][..])
    } else {
        missed.split_at(missed.len().saturating_sub(max_missed_to_run(job)))
    };
    let mut skipped = times.counted;
    if let (Some(first), Some(last)) = (skip.first(), skip.last()) {
        let (since, counted) = skipped.map_or((*first, 0), |span| (span.since, span.count));
        skipped = Some(SkippedSpan {
            since,
            count: counted + skip.len() as u64,
            last: *last,
        });
    }
    (skipped, run)
}

fn planned_run(job: &Job, fire_at: Timestamp, shard: &ShardPlan) -> PlannedRun {
    PlannedRun {
        fire_at,
        due_at: job.spec.due_at(job.id, fire_at),
        shard: shard.shard.clone(),
        executor: shard.executor.clone(),
        skipped: None,
    }
}

/// A record in the ledger, not work for an executor.
fn skipped_run(job: &Job, span: SkippedSpan, now: Timestamp) -> PlannedRun {
    let policy = match job.spec.misfire.policy {
        MisfirePolicy::Skip => "skip",
        MisfirePolicy::FireOnce => "fire_once",
        MisfirePolicy::CatchUp => "catch_up",
    };
    let late_ms = now.since_ms(span.last);
    PlannedRun {
        fire_at: span.last,
        due_at: span.last,
        shard: Shard::whole(),
        executor: None,
        skipped: Some(SkippedFires {
            reason: format!("skipped by misfire policy {policy}; the newest was {late_ms} ms late"),
            count: span.count,
            since: span.since,
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
        /// G1: for each policy and delay, every fire time up to the horizon runs or is counted in a skip, exactly
        /// once.
        #[test]
        fn every_fire_time_is_accounted_for(
            policy in prop_oneof![Just("skip"), Just("fire_once"), Just("catch_up")],
            limit in 1_u32..40,
            behind_ms in 0_i64..200_000,
            max in 1_usize..50,
            max_on_time in 1_usize..20,
        ) {
            let planner = SchedulePlanner { max_fire_times: max, max_on_time, ..SchedulePlanner::default() };
            let job = job(policy, limit, "1s");
            let (start, now) = (1_000_000, 1_000_000 + behind_ms);
            let (mut next, mut accounted, mut ran) = (Some(at(start)), 0, Vec::new());
            for _ in 0..1_000 {
                let due = next.expect("a rate has a next fire time");
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
    fn a_job_gets_a_limited_number_of_runs_that_are_on_time() {
        let (job, now) = (job("fire_once", 100, "100ms"), at(1_000_000));
        let planner = SchedulePlanner {
            max_on_time: 8,
            ..SchedulePlanner::default()
        };
        let first = now.minus_ms(4_000);
        let plan = planner.plan(&job, first, now, &[]);
        let fire_times: Vec<Timestamp> = plan.runs.iter().map(|run| run.fire_at).collect();
        let expected: Vec<Timestamp> = (0..8).map(|i| first.plus_ms(i * 100)).collect();
        assert_eq!(fire_times, expected);
        assert_eq!(plan.next_fire, Some(first.plus_ms(800)));
    }

    #[test]
    fn a_broadcast_fire_that_was_held_is_not_missed() {
        let mut job = job("skip", 1, "60s");
        let planner = SchedulePlanner {
            broadcasts: BroadcastRule {
                holds: false,
                allowance_ms: 6_000,
            },
            ..SchedulePlanner::default()
        };
        let is_skipped = |job: &Job, now: i64| {
            let plan = planner.plan(job, at(60_000), at(now), &[]);
            plan.runs[0].skipped.is_some()
        };
        assert!(is_skipped(&job, 71_000), "other jobs are not held");
        job.spec.route = Route::Broadcast;
        assert!(!is_skipped(&job, 71_000));
        assert!(is_skipped(&job, 71_001));
    }

    #[test]
    fn a_broadcast_job_with_silent_executors_is_held() {
        let mut job = job("skip", 1, "60s");
        let silent: [ExecutorName; 1] = ["e1".parse().expect("a name")];
        let mut planner = SchedulePlanner::default();
        for holds in [false, true] {
            planner.broadcasts.holds = holds;
            job.spec.route = Route::Broadcast;
            assert_eq!(planner.holds(&job, &silent), holds);
            assert!(!planner.holds(&job, &[]), "none is silent");
            job.spec.route = Route::First;
            assert!(!planner.holds(&job, &silent));
        }
    }

    #[test]
    fn a_year_of_missed_100_ms_fires_is_counted_without_visiting_each() {
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
            .expect("a next fire time")
            .since_ms(at(100))
            .unsigned_abs()
            / 100;
        assert_eq!(skipped + runs, walked);
        assert!(plan.next_fire > Some(now));
    }
}
