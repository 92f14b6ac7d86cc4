//! Each fire time is accounted for, exactly once.

mod model;

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

fn excluded_in(periods: &[(i64, i64)]) -> Exclusions {
    let periods: Vec<_> = periods
        .iter()
        .map(|(from, to)| serde_json::json!({ "start": from, "end": to }))
        .collect();
    let spec = serde_json::json!({ "name": "c", "periods": periods });
    let spec = serde_json::from_value(spec).expect("a calendar");
    Exclusions {
        calendars: vec![std::sync::Arc::new(cueline_model::Calendar::new(spec, 1))],
        windows: Vec::new(),
    }
}

proptest! {
    /// G1 with exclusions: whenever the job is planned, each fire time runs, is missed, or is counted as excluded, exactly
    /// once. An excluded one never runs, and none is counted before it has passed.
    #[test]
    fn every_fire_time_is_accounted_for_with_exclusions(
        policy in prop_oneof![Just("skip"), Just("fire_once"), Just("catch_up")],
        limit in 1_u32..10,
        every in prop_oneof![Just("1s"), Just("7s"), Just("100ms")],
        kind in prop_oneof![Just("every"), Just("after")],
        periods in prop::collection::vec((0_i64..600_000, 1_i64..200_000), 1..5),
        pauses in prop::collection::vec(0_i64..40_000, 1..60),
        max in 1_usize..60,
        max_on_time in 1_usize..20,
    ) {
        let planner = SchedulePlanner { max_fire_times: max, max_on_time, ..SchedulePlanner::default() };
        let mut job = job(policy, limit, every);
        if kind == "after" {
            let schedule = serde_json::json!({ "after": every });
            job.spec.schedule = serde_json::from_value(schedule).expect("a schedule");
        }
        let period: i64 = match every { "1s" => 1_000, "7s" => 7_000, _ => 100 };
        // On the grid of each period.
        let start = 1_001_000;
        let periods: Vec<(i64, i64)> = periods.iter().map(|(from, length)| (start + from, start + from + length)).collect();
        let exclusions = excluded_in(&periods);
        let is_excluded = |ms: i64| periods.iter().any(|(from, to)| *from <= ms && ms < *to);
        let mut due = Due { at: at(start), excluded_from: None };
        let (mut now, mut ran, mut counted, mut excluded) = (start - 2_000, Vec::new(), 0, 0);
        let mut fold_rows = 0;
        for pause in pauses {
            now += pause;
            for _ in 0..20_000 {
                if due.at > at(now + 1_500) { break; }
                let (plan, excluded_from) = planner.plan_excluding(&job, due, &exclusions, at(now), &[]);
                for run in &plan.runs {
                    match &run.skipped {
                        None => ran.push(run.fire_at.as_millis()),
                        Some(skip) if skip.reason.starts_with("excluded") => {
                            prop_assert!(run.fire_at <= at(now));
                            excluded += skip.count;
                            fold_rows += 1;
                        }
                        Some(skip) => counted += skip.count,
                    }
                }
                let missed = plan.runs.iter().filter_map(|run| run.skipped.as_ref());
                let missed = missed.filter(|skip| !skip.reason.starts_with("excluded")).count();
                let next = if kind == "after" && missed > 0 {
                    // The delay counts from now. For the grid of this model, from the fire time.
                    prop_assert_eq!(plan.next_fire, job.spec.next_fire(at(now)));
                    let last = plan.runs.iter().map(|run| run.fire_at).max();
                    last.expect("a run").plus_ms(period.unsigned_abs())
                } else if let Some(next) = plan.next_fire {
                    next
                } else {
                        prop_assert_eq!(kind, "after");
                        // The run has ended at once.
                        let last = plan.runs.iter().map(|run| run.fire_at).max();
                        last.expect("a run").plus_ms(period.unsigned_abs())
                };
                due = Due { at: next, excluded_from };
            }
            prop_assert!(due.at > at(now + 1_500));
        }
        prop_assert!(ran.is_sorted());
        prop_assert!(!ran.iter().any(|ms| is_excluded(*ms)));
        // What waits to be accounted for.
        let pending = due.excluded_from.map_or(0, |from| {
            (from.as_millis()..due.at.as_millis()).step_by(usize::try_from(period).unwrap()).filter(|ms| is_excluded(*ms)).count()
        });
        let before = (start..due.at.as_millis()).step_by(usize::try_from(period).unwrap());
        let (out, of_schedule): (Vec<i64>, Vec<i64>) = before.partition(|ms| is_excluded(*ms));
        prop_assert_eq!(excluded + pending as u64, out.len() as u64);
        prop_assert_eq!(counted + ran.len() as u64, of_schedule.len() as u64);
        prop_assert!(fold_rows <= 60 * 5 + out.len() / max + 60);
    }
}

/// G3: a fire time that was due before the pause, and that no plan has looked at, starts nothing when the pause is there.
#[test]
fn a_pause_excludes_what_was_due_before() {
    for policy in ["skip", "fire_once", "catch_up"] {
        let job = job(policy, 10, "1s");
        let paused_at = 100_000;
        let spec = serde_json::json!({ "paused_at": paused_at, "until": 200_000, "reason": "x" });
        let exclusions = Exclusions {
            calendars: Vec::new(),
            windows: vec![std::sync::Arc::new(cueline_model::MaintenanceWindow {
                id: 1,
                spec: serde_json::from_value(spec).expect("a pause"),
                ended_at: None,
            })],
        };
        let due = Due {
            at: at(40_000),
            excluded_from: None,
        };
        let planner = SchedulePlanner::default();
        let (plan, _) = planner.plan_excluding(&job, due, &exclusions, at(paused_at), &[]);
        assert!(
            plan.runs.iter().all(|run| run.skipped.is_some()),
            "{plan:?}"
        );
        let skipped = plan.runs.iter().filter_map(|run| run.skipped.as_ref());
        assert_eq!(skipped.map(|skip| skip.count).sum::<u64>(), 61);
    }
}

#[test]
fn a_minute_job_that_is_excluded_for_a_month_has_few_runs() {
    let mut job = job("fire_once", 1, "60s");
    let month_ms = 30 * 86_400_000;
    let exclusions = excluded_in(&[(0, month_ms)]);
    let planner = SchedulePlanner::default();
    let mut due = Due {
        at: at(60_000),
        excluded_from: None,
    };
    let (mut rows, mut count, mut plans) = (0, 0, 0);
    job.spec.enabled = Some(true);
    while due.at < at(month_ms) {
        let now = due.at;
        let (plan, excluded_from) = planner.plan_excluding(&job, due, &exclusions, now, &[]);
        plans += 1;
        rows += plan.runs.len();
        count += plan
            .runs
            .iter()
            .filter_map(|r| r.skipped.as_ref())
            .map(|s| s.count)
            .sum::<u64>();
        due = Due {
            at: plan.next_fire.expect("a rate"),
            excluded_from,
        };
    }
    assert!(rows <= 40 && plans <= 40, "{rows} runs in {plans} plans");
    let (plan, left) = planner.plan_excluding(&job, due, &exclusions, due.at, &[]);
    count += plan
        .runs
        .iter()
        .filter_map(|r| r.skipped.as_ref())
        .map(|s| s.count)
        .sum::<u64>();
    assert_eq!((count, left), (30 * 1_440 - 1, None));
    assert_eq!(plan.runs.last().map(|run| run.fire_at), Some(at(month_ms)));
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
