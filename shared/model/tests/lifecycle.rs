//! The state machine of runs, what follows from the end of an attempt, and when things are due.

use std::collections::BTreeSet;

use cueline_model::schedule::{CronSchedule, MAX_PREVIEW};
use cueline_model::{
    Backoff, Conclusion, DurationMs, HandlerSpec, Job, JobId, JobSpec, OnLost, Outcome,
    OutcomeKind, Retry, RunFacts, RunId, RunKind, RunState, Schedule, Timestamp, conclude, decode,
};
use proptest::prelude::*;
use proptest::sample::select;

const OUTCOMES: [OutcomeKind; 9] = [
    OutcomeKind::Succeeded,
    OutcomeKind::Failed,
    OutcomeKind::TimedOut,
    OutcomeKind::Cancelled,
    OutcomeKind::Discarded,
    OutcomeKind::Covered,
    OutcomeKind::Lost,
    OutcomeKind::Returned,
    OutcomeKind::Unroutable,
];

#[test]
fn terminal_states_have_no_exits_and_the_others_do() {
    for from in RunState::ALL {
        let exits = RunState::ALL.into_iter().filter(|to| from.may_become(*to));
        assert_eq!(exits.count() == 0, from.is_terminal(), "{from}");
        assert!(!from.may_become(from), "{from}");
    }
}

#[test]
fn every_state_is_reached_and_every_run_can_end() {
    let mut reached = BTreeSet::from([RunState::Scheduled]);
    for _ in RunState::ALL {
        let next: Vec<RunState> = RunState::ALL
            .into_iter()
            .filter(|to| reached.iter().any(|from| from.may_become(*to)))
            .collect();
        reached.extend(next);
    }
    assert_eq!(reached.len(), RunState::ALL.len());
    for from in RunState::ALL.into_iter().filter(|s| !s.is_terminal()) {
        assert!(
            from.may_become(RunState::Cancelled),
            "{from} cannot be cancelled"
        );
        assert!(
            RunState::ALL
                .into_iter()
                .any(|to| to.is_terminal() && from.may_become(to))
        );
    }
    // Only an outcome takes a run back from its executor, and no run executes without a route.
    assert!(!RunState::Scheduled.may_become(RunState::Running));
    assert!(!RunState::Running.may_become(RunState::Queued));
    assert!(!RunState::Queued.may_become(RunState::Dispatching));
}

#[test]
fn codes_and_words_are_each_other_s_inverse() {
    for state in RunState::ALL {
        assert_eq!(RunState::from_code(state.code()), Some(state));
        let word = serde_json::to_value(state).unwrap();
        assert_eq!(word, state.as_str());
    }
    for kind in RunKind::ALL {
        assert_eq!(RunKind::from_code(kind.code()), Some(kind));
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
    }
    assert_eq!(RunState::from_code(200), None);
}

fn retry() -> impl Strategy<Value = Retry> {
    (
        0..5_u32,
        select(vec![Backoff::Fixed, Backoff::Exponential]),
        0..100_000_000_u64,
        0..100_000_000_u64,
        0..=100_u8,
        proptest::sample::subsequence(RunState::FAILURES.to_vec(), 0..=4),
    )
        .prop_map(|(max, backoff, first, cap, jitter_percent, on)| Retry {
            max,
            backoff,
            first: DurationMs::millis(first),
            cap: DurationMs::millis(cap),
            jitter_percent,
            on,
        })
}

fn facts() -> impl Strategy<Value = RunFacts> {
    (any::<i64>(), 1..100_u32, 0..6_u32, 0..5_u32, any::<bool>()).prop_map(
        |(run, attempt, retries, reruns, cancel_requested)| RunFacts {
            run: RunId(run),
            attempt,
            retries,
            reruns,
            cancel_requested,
        },
    )
}

proptest! {
    #[test]
    fn the_end_of_an_attempt_leads_where_the_states_allow(
        facts in facts(), retry in retry(), rerun in any::<bool>(), kind in select(OUTCOMES.to_vec()),
    ) {
        let on_lost = if rerun { OnLost::Rerun } else { OnLost::Fail };
        let now = Timestamp::from_millis(1_800_000_000_000);
        let conclusion = conclude(facts, &retry, on_lost, &Outcome::new(kind, now), now);
        prop_assert_eq!(&conclusion, &conclude(facts, &retry, on_lost, &Outcome::new(kind, now), now));
        match conclusion {
            Conclusion::End(state) => {
                prop_assert!(state.is_terminal());
                let from = match kind {
                    OutcomeKind::Unroutable => RunState::Scheduled,
                    _ => RunState::Running,
                };
                prop_assert!(from.may_become(state), "{} to {}", from, state);
                prop_assert_eq!(kind.state().unwrap_or(RunState::Cancelled), state);
            }
            Conclusion::Again { due_at, retries, reruns, .. } => {
                prop_assert!(!facts.cancel_requested, "a cancelled run gets no further attempt");
                prop_assert!(due_at >= now);
                prop_assert!(due_at <= now.plus_ms(retry.cap.as_millis()));
                prop_assert!(retries <= retry.max.max(facts.retries));
                prop_assert!(reruns <= OnLost::MAX_RERUNS.max(facts.reruns));
                // Each repeated attempt counts, except unstarted returns. No run is repeated for ever.
                let counted = (retries - facts.retries) + (reruns - facts.reruns);
                prop_assert_eq!(counted, u32::from(kind != OutcomeKind::Returned));
                if retries > facts.retries {
                    prop_assert!(kind.state().is_some_and(|state| retry.on.contains(&state)));
                }
            }
        }
    }

    #[test]
    fn a_failing_run_has_as_many_attempts_as_its_policies_say(max in 0..20_u32, rerun in any::<bool>()) {
        let retry = Retry { max, ..Retry::default() };
        let on_lost = if rerun { OnLost::Rerun } else { OnLost::Fail };
        let now = Timestamp::from_millis(0);
        let mut facts = RunFacts { run: RunId(7), attempt: 1, retries: 0, reruns: 0, cancel_requested: false };
        while let Conclusion::Again { retries, reruns, .. } =
            conclude(facts, &retry, on_lost, &Outcome::new(OutcomeKind::Lost, now), now)
        {
            facts = RunFacts { attempt: facts.attempt + 1, retries, reruns, ..facts };
            prop_assert!(facts.attempt < 100);
        }
        let reruns = if rerun { OnLost::MAX_RERUNS } else { 0 };
        prop_assert_eq!(facts.attempt, 1 + max + reruns);
    }

    #[test]
    fn retry_waits_keep_between_their_bounds(retry in retry(), number in 1..2_000_u32, seed in any::<u64>()) {
        let wait = retry.wait_ms(number, seed);
        let doubled = match retry.backoff {
            Backoff::Fixed => 1,
            Backoff::Exponential => 2_u128.pow((number - 1).min(64)),
        };
        let full = (u128::from(retry.first.as_millis()) * doubled).min(retry.cap.as_millis().into());
        let least = full - full * u128::from(retry.jitter_percent) / 100;
        prop_assert!((least..=full).contains(&wait.into()), "{} not in {}..={}", wait, least, full);
    }

    #[test]
    fn durations_are_read_back_from_how_they_are_written(millis in any::<u64>()) {
        let duration = DurationMs::millis(millis);
        prop_assert_eq!(duration.to_string().parse(), Ok(duration));
    }

    #[test]
    fn no_text_upsets_the_readers(text in ".{0,40}") {
        let _ = text.parse::<DurationMs>();
        let _ = text.parse::<Timestamp>();
        let _ = CronSchedule::parse(&text, "UTC", None, None);
        let _ = CronSchedule::parse("@daily", &text, None, None);
    }

    #[test]
    fn instants_are_read_back_from_how_they_are_written(millis in -62_000_000_000_000..250_000_000_000_000_i64) {
        let instant = Timestamp::from_millis(millis);
        prop_assert_eq!(instant.to_string().parse(), Ok(instant));
    }

    #[test]
    fn a_grid_has_no_holes(every in 100..10_000_000_u64, anchor in any::<i32>(), after in any::<i32>()) {
        let anchor = Timestamp::from_millis(anchor.into());
        let grid = Schedule::FixedRate { every: DurationMs::millis(every), anchor: Some(anchor) };
        let after = Timestamp::from_millis(i64::from(after) * 1_000);
        let next = grid.next_after(after).unwrap();
        prop_assert!(next > after && next <= after.plus_ms(every));
        prop_assert_eq!(next.since_ms(anchor).rem_euclid(i64::try_from(every).unwrap()), 0);
    }
}

fn job(schedule: Schedule) -> JobSpec {
    let node: decode::Node = serde_json::json!({
        "name": "a", "schedule": {"manual": true}, "handler": {"native": "x"}
    })
    .into();
    let spec = decode::job(&node).unwrap();
    assert_eq!(spec.handler, HandlerSpec::Native("x".to_owned()));
    JobSpec { schedule, ..spec }
}

#[test]
fn fire_times_keep_to_the_job_s_window() {
    let at = Timestamp::from_millis;
    let spec = JobSpec {
        start_at: Some(at(10_000)),
        end_at: Some(at(13_000)),
        ..job(Schedule::FixedRate {
            every: DurationMs::secs(1),
            anchor: None,
        })
    };
    let expected = [at(10_000), at(11_000), at(12_000)];
    assert_eq!(
        spec.upcoming(at(0), 10),
        expected,
        "from start_at on, before end_at"
    );
    assert_eq!(spec.upcoming(at(0), 2), expected[..2]);
    assert_eq!(spec.upcoming(at(11_000), 10), expected[2..]);
    let unbounded = job(spec.schedule.clone());
    assert_eq!(unbounded.upcoming(at(0), usize::MAX).len(), MAX_PREVIEW);
    assert_eq!(
        unbounded.schedule.upcoming(at(0), 3),
        unbounded.upcoming(at(0), 3)
    );
    assert_eq!(job(Schedule::Startup).upcoming(at(0), 3), []);
    let once = job(Schedule::Once { at: at(5) });
    assert_eq!(once.upcoming(at(0), 3), [at(5)]);
    assert_eq!(once.upcoming(at(5), 3), []);
}

#[test]
fn jitter_is_the_same_each_time_and_stays_within_its_bound() {
    let spec = JobSpec {
        jitter: DurationMs::secs(1),
        ..job(Schedule::Manual)
    };
    let due: Vec<i64> = (0..200)
        .map(|n| {
            let fire_at = Timestamp::from_millis(n * 60_000);
            let due = spec.due_at(JobId(3), fire_at);
            assert_eq!(due, spec.due_at(JobId(3), fire_at));
            due.since_ms(fire_at)
        })
        .collect();
    assert!(due.iter().all(|late| (0..=1_000).contains(late)));
    assert!(
        due.iter().collect::<BTreeSet<_>>().len() > 100,
        "spread: {due:?}"
    );
}

#[test]
fn a_stored_job_keeps_its_definition() {
    let job = Job {
        id: JobId(7),
        version: 3,
        spec: JobSpec {
            start_at: Some(Timestamp::from_millis(1_800_000_000_123)),
            ..job(Schedule::Startup)
        },
    };
    let written = serde_json::to_value(&job).unwrap();
    assert_eq!(written["start_at"], "2027-01-15T08:00:00.123Z");
    assert_eq!(serde_json::from_value::<Job>(written).unwrap(), job);
}
