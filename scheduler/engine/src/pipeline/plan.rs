//! Plans a due job: which runs to create, which fire times to skip, and when the job is due next. Pure.

use cueline_model::exclusion::{Due, Passed, next_due};
use cueline_model::{
    Exclusions, ExecutorName, Job, MisfirePolicy, Route, Schedule, Shard, ShardPlan, Timestamp,
    expand,
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
    /// All fires may be later by this much, in ms, before they count as missed: they waited for the scheduler.
    pub(crate) allowance_ms: u64,
}

impl Default for SchedulePlanner {
    fn default() -> Self {
        Self {
            lookahead_ms: 1_500,
            max_fire_times: 5_000,
            max_on_time: usize::MAX,
            broadcasts: BroadcastRule::default(),
            allowance_ms: 0,
        }
    }
}

/// One call visits this many times as many excluded fire times as others.
const MAX_EXCLUDED: usize = 20;

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
    /// Excluded fire times that have passed, oldest first.
    excluded: Vec<Timestamp>,
    /// The first excluded fire time that is not accounted for.
    excluded_from: Option<Timestamp>,
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
        let due = Due {
            at: due,
            excluded_from: None,
        };
        self.plan_excluding(job, due, &Exclusions::default(), now, live)
            .0
    }

    fn plan_excluding(
        &self,
        job: &Job,
        due: Due,
        exclusions: &Exclusions,
        now: Timestamp,
        live: &[ExecutorName],
    ) -> (Plan, Option<Timestamp>) {
        let times = if exclusions.is_empty() && due.excluded_from.is_none() {
            self.fire_times(job, due.at, now)
        } else {
            self.fire_times_without(exclusions, job, due, now)
        };
        let mut plan = Plan {
            runs: Vec::new(),
            next_fire: times.next,
        };
        let (skipped, run) = split_missed(job, &times);
        if let Some(skipped) = skipped {
            plan.runs.push(skipped_run(job, skipped, now));
            if matches!(job.spec.schedule, Schedule::FixedDelay { .. }) && run.is_empty() {
                // No run is left whose end would set it.
                plan.next_fire = plan.next_fire.or_else(|| job.spec.next_fire(now));
            }
        }
        let excluded = times.excluded.iter().copied();
        plan.runs
            .extend(Passed::of(exclusions, excluded).map(|passed| excluded_run(&passed)));
        let shards = expand(&job.spec.route, live);
        for fire_at in run.iter().chain(&times.on_time) {
            if cueline_runtime::planted!("ledger_gap") && fire_at.as_millis() % 7_000 == 0 {
                continue;
            }
            plan.runs
                .extend(shards.iter().map(|shard| planned_run(job, *fire_at, shard)));
        }
        (plan, times.excluded_from)
    }

    fn holds(&self, job: &Job, silent: &[ExecutorName]) -> bool {
        let is_broadcast = job.spec.route == Route::Broadcast;
        self.broadcasts.holds && is_broadcast && !silent.is_empty()
    }
}

impl SchedulePlanner {
    /// A fire time before this instant is missed.
    fn missed_before(&self, job: &Job, now: Timestamp) -> Timestamp {
        let grace_ms = job.spec.misfire.grace.as_millis();
        let missed_before = now.minus_ms(grace_ms.saturating_add(self.allowance_ms));
        if job.spec.route == Route::Broadcast {
            return missed_before.minus_ms(self.broadcasts.allowance_ms);
        }
        missed_before
    }

    /// The fire times of a job with exclusions. It visits each one.
    fn fire_times_without(
        &self,
        exclusions: &Exclusions,
        job: &Job,
        due: Due,
        now: Timestamp,
    ) -> FireTimes {
        let horizon = now.plus_ms(self.lookahead_ms);
        let missed_before = self.missed_before(job, now);
        let is_fixed_delay = matches!(job.spec.schedule, Schedule::FixedDelay { .. });
        let first = match due.excluded_from {
            // After a change of a time zone, it may not be a fire time any more.
            Some(from) if !is_fixed_delay => job.spec.next_fire(from.minus_ms(1)),
            from => from.or(Some(due.at)),
        };
        let mut times = FireTimes {
            counted: None,
            missed: Vec::new(),
            on_time: Vec::new(),
            next: first,
            has_more_missed: false,
            excluded: Vec::new(),
            excluded_from: None,
        };
        let runnable = max_missed_to_run(job);
        // The last visited fire time is excluded and has passed.
        let mut noted = false;
        // Excluded fire times have a limit of their own. Otherwise a long stretch between missed ones could use up each call.
        let (mut visits, mut passed) = (0, 0);
        let max_visits = self.max_fire_times.max(1);
        while visits < max_visits + runnable && passed < max_visits.saturating_mul(MAX_EXCLUDED) {
            let Some(at) = times.next.filter(|at| *at <= horizon) else {
                let pending = times.excluded_from;
                let next = next_due(
                    &job.spec,
                    exclusions,
                    times.next,
                    pending,
                    noted,
                    self.lookahead_ms,
                );
                (times.next, times.excluded_from) = (next.at, next.excluded_from);
                return times;
            };
            noted = false;
            if exclusions.exclude(at) {
                passed += 1;
                if at <= now {
                    times.excluded.push(at);
                    noted = true;
                } else {
                    times.excluded_from.get_or_insert(at);
                }
            } else if at < due.at {
                // It has its run. Excluded fire times around it were waiting to be accounted for.
                passed += 1;
            } else if at < missed_before {
                visits += 1;
                times.missed.push(at);
            } else if times.on_time.len() < self.max_on_time {
                visits += 1;
                times.on_time.push(at);
            } else {
                return times;
            }
            let fires = times.missed.last() == Some(&at) || times.on_time.last() == Some(&at);
            if is_fixed_delay && fires {
                // The next fire time is set when this run ends.
                times.next = None;
                return times;
            }
            times.next = job.spec.next_fire(at);
        }
        times.stop_at_the_limit(due, missed_before, runnable);
        times
    }

    fn fire_times(&self, job: &Job, due: Timestamp, now: Timestamp) -> FireTimes {
        let horizon = now.plus_ms(self.lookahead_ms);
        let missed_before = self.missed_before(job, now);
        let mut times = FireTimes {
            counted: None,
            missed: Vec::new(),
            on_time: Vec::new(),
            next: Some(due),
            has_more_missed: false,
            excluded: Vec::new(),
            excluded_from: None,
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
    /// Leaves what was not visited to the next call. Only the last call knows which missed fire times run, so the newest
    /// `runnable` are left too.
    fn stop_at_the_limit(&mut self, due: Due, missed_before: Timestamp, runnable: usize) {
        let Some(next) = self.next else { return };
        if next < due.at {
            self.excluded_from.get_or_insert(next);
            self.next = Some(due.at);
            return;
        }
        // After very many excluded ones there may be few missed ones. They run now, so that each call gets further.
        if next < missed_before && self.missed.len() > runnable {
            self.has_more_missed = true;
            let skip_count = self.missed.len() - runnable;
            let next = self.missed.get(skip_count).copied().unwrap_or(next);
            self.missed.truncate(skip_count);
            self.excluded.retain(|at| *at < next);
            self.next = Some(next);
        }
    }

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

/// A record in the ledger for excluded fire times.
fn excluded_run(passed: &Passed) -> PlannedRun {
    PlannedRun {
        fire_at: passed.last,
        due_at: passed.last,
        shard: Shard::whole(),
        executor: None,
        skipped: Some(SkippedFires {
            missed: false,
            reason: passed.reason(),
            count: passed.count,
            since: passed.since,
        }),
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
            missed: true,
            reason: format!("skipped by misfire policy {policy}; the newest was {late_ms} ms late"),
            count: span.count,
            since: span.since,
        }),
    }
}

#[cfg(test)]
mod tests;
