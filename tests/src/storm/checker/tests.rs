//! Which entries a stopped worker excuses, which failovers a fault explains, and what a fault meets.

use std::time::Duration;

use super::{
    Ends, Observations, check_attempts, check_failovers, check_terminations, faults_met, fixture,
};
use crate::execution_log::{Entry, Event};
use crate::storm::faults::{Fault, FaultKind, InjectedFault, Target};

const STOPPED: i64 = 10_000;
const CONTINUED: i64 = 18_000;

/// The first attempt of a run on the worker that was stopped. It is recorded right after the worker continued. By then
/// the second attempt has run elsewhere.
fn late(began: i64) -> Entry {
    Entry {
        event: Event::Start,
        at: CONTINUED + 6,
        executor: "worker-1".to_owned(),
        job: "rerun-1".to_owned(),
        shard: 0,
        run: 1,
        attempt: 1,
        fire_at: STOPPED - 40,
        revision: 0,
        pid: 1,
        began,
        other: None,
    }
}

/// The second attempt, which began while the worker of the first was stopped.
fn second(first: &Entry) -> Entry {
    Entry {
        event: Event::Start,
        other: None,
        at: CONTINUED - 2_000,
        began: CONTINUED - 2_001,
        executor: "worker-2".to_owned(),
        attempt: 2,
        ..first.clone()
    }
}

/// The numbers of violations and of excused entries.
fn judge(entries: Vec<Entry>, ends: &Ends) -> (usize, usize) {
    let stop = InjectedFault {
        fault: Fault {
            target: Target::Worker(0),
            kind: FaultKind::Stop(Duration::from_secs(8), false),
            after: Duration::ZERO,
        },
        began: STOPPED,
        stopped_until: Some(CONTINUED),
        full: None,
        over: CONTINUED + 1,
        healed: CONTINUED + 100,
    };
    let observed = Observations {
        entries,
        faults: vec![stop],
        ..Observations::default()
    };
    let mut excused = 0;
    let violations = check_attempts(&observed, ends, &mut excused);
    let violations = violations.iter().filter(|v| !v.starts_with("G4"));
    (violations.count(), excused)
}

/// The same for a late attempt whose second attempt has run elsewhere.
fn judge_late(late: &Entry, ends: &Ends) -> (usize, usize) {
    judge(vec![second(late), late.clone()], ends)
}

#[test]
fn an_attempt_that_began_before_the_stop_may_be_recorded_late() {
    assert_eq!(judge_late(&late(STOPPED - 1), &Ends::new()), (0, 1));
}

#[test]
fn a_worker_that_continues_after_a_failover_begins_no_attempt_of_that_run() {
    assert_eq!(judge_late(&late(CONTINUED), &Ends::new()), (1, 0));
    assert_eq!(judge_late(&late(CONTINUED + 5), &Ends::new()), (1, 0));
}

#[test]
fn an_attempt_recorded_late_must_end_without_effect() {
    let ends = |event, at| Ends::from([((1, 1), vec![(event, at)])]);
    let judge_end = |event, at| judge_late(&late(STOPPED - 1), &ends(event, at));
    let (soon, later) = (CONTINUED + 60, CONTINUED + 1_200);
    assert_eq!(judge_end(Event::Stop, soon), (0, 1));
    assert_eq!(judge_end(Event::End, soon), (1, 0));
    assert_eq!(judge_end(Event::Fail, soon), (1, 0));
    // A program cannot check for cancellation; its worker stops it.
    let program = Entry {
        job: "program-1".to_owned(),
        ..late(STOPPED - 1)
    };
    assert_eq!(judge_late(&program, &ends(Event::End, soon)), (0, 1));
    assert_eq!(judge_late(&program, &ends(Event::End, later)), (1, 0));
}

#[test]
fn an_overlap_is_judged_by_the_same_rules() {
    let overlap = |began, attempt| Entry {
        event: Event::Overlap,
        other: Some(("worker-2".to_owned(), 1, 2)),
        attempt,
        ..late(began)
    };
    let judge_overlap = |entry: Entry| {
        let second = Entry {
            attempt: 2,
            ..second(&entry)
        };
        judge(vec![second, entry], &Ends::new())
    };
    assert_eq!(judge_overlap(overlap(STOPPED - 1, 1)), (0, 1));
    assert_eq!(judge_overlap(overlap(CONTINUED + 5, 1)), (1, 0));
    // Not an earlier attempt than the other one.
    assert_eq!(judge_overlap(overlap(STOPPED - 1, 2)), (1, 0));
    assert_eq!(judge_overlap(overlap(STOPPED - 1, 3)), (1, 0));
}

#[test]
fn only_a_late_entry_of_the_stopped_worker_is_excused() {
    let good = late(STOPPED - 1);
    let other = Entry {
        executor: "worker-3".to_owned(),
        ..good.clone()
    };
    assert_eq!(judge_late(&other, &Ends::new()), (1, 0), "not stopped");
    let slow = Entry {
        at: CONTINUED + 1_001,
        ..good.clone()
    };
    assert_eq!(judge_late(&slow, &Ends::new()), (1, 0), "too late");
    let early = Entry {
        at: STOPPED - 1,
        ..good
    };
    let entries = vec![second(&early), early];
    assert_eq!(judge(entries, &Ends::new()), (1, 0), "before the stop");
}

#[test]
fn attempts_are_ordered_by_their_beginning() {
    let first = late(STOPPED - 1);
    let sooner = Entry {
        began: STOPPED - 2,
        ..second(&first)
    };
    let entries = vec![sooner, first.clone()];
    assert_eq!(
        judge(entries, &Ends::new()),
        (1, 0),
        "began after the second"
    );
    let here = Entry {
        executor: "worker-1".to_owned(),
        ..second(&first)
    };
    let entries = vec![here, first.clone()];
    assert_eq!(judge(entries, &Ends::new()), (1, 0), "on the same executor");
    let before = Entry {
        at: STOPPED - 1,
        ..first.clone()
    };
    let entries = vec![before, second(&first), first];
    assert_eq!(judge(entries, &Ends::new()), (1, 0), "recorded twice");
}

#[test]
fn a_failover_has_a_fault_of_its_worker_and_a_long_fault_has_a_failover() {
    let stop = |target| {
        let kind = FaultKind::Stop(Duration::from_secs(8), true);
        fixture::fault(target, kind, STOPPED, CONTINUED)
    };
    let judge = |failovers: &[&str], faults: Vec<InjectedFault>| {
        let at = STOPPED + 6_000;
        let observed = Observations {
            failovers: failovers.iter().map(|n| (at, (*n).to_owned())).collect(),
            faults,
            ..Observations::default()
        };
        check_failovers(&observed).len()
    };
    let one = || vec![stop(Target::Worker(0))];
    assert_eq!(judge(&["worker-1"], one()), 0);
    assert_eq!(judge(&["worker-1", "worker-2"], one()), 1, "another worker");
    assert_eq!(judge(&[], one()), 1, "no failover");
    assert_eq!(judge(&["worker-1"], vec![]), 1, "no fault");
    let halted = |from: i64, to: i64| {
        let observed = Observations {
            failovers: vec![(STOPPED + 6_000, "worker-1".to_owned())],
            standstills: vec![(from, to)],
            ..Observations::default()
        };
        check_failovers(&observed).len()
    };
    assert_eq!(halted(STOPPED + 1_000, STOPPED + 5_000), 0);
    assert_eq!(halted(STOPPED + 3_000, STOPPED + 5_000), 1, "too short");
    assert_eq!(halted(STOPPED - 5_000, STOPPED - 1_000), 1, "long before");
    let all = ["worker-1", "worker-2", "worker-3"];
    assert_eq!(judge(&all, vec![stop(Target::Workers)]), 0);
    assert_eq!(judge(&all[..2], vec![stop(Target::Workers)]), 1);
    // The clients of one server of a cluster may be silent alone. Which they are is unknown.
    let of_node = |kind| {
        let node = Target::BrokerNode(1);
        vec![fixture::fault(node, kind, STOPPED, CONTINUED)]
    };
    let away = Duration::from_secs(8);
    for silent in [FaultKind::Stop(away, false), FaultKind::Isolate(away)] {
        assert_eq!(judge(&["worker-2"], of_node(silent)), 0);
        assert_eq!(judge(&[], of_node(silent)), 0);
    }
    let killed = of_node(FaultKind::Kill(away));
    assert_eq!(judge(&["worker-2"], killed), 1, "clients go elsewhere");
    let promoted = fixture::fault(Target::Store, FaultKind::Promote, STOPPED, CONTINUED);
    assert_eq!(judge(&["worker-2"], vec![promoted]), 1, "a promotion");
    // Without a store there may be no failover.
    let both = vec![stop(Target::Worker(0)), stop(Target::Store)];
    assert_eq!(judge(&[], both), 0);
}

#[test]
fn a_worker_with_a_full_disk_is_not_failed_over() {
    let judge = |failovers| {
        let kind = FaultKind::Fill(Duration::from_secs(5));
        let observed = Observations {
            failovers,
            faults: vec![fixture::fault(Target::Worker(0), kind, STOPPED, CONTINUED)],
            ..Observations::default()
        };
        check_failovers(&observed).len()
    };
    assert_eq!(judge(vec![]), 0);
    let failover = (STOPPED + 6_000, "worker-1".to_owned());
    assert_eq!(judge(vec![failover]), 1);
}

#[test]
fn a_fault_meets_the_runs_in_flight() {
    let kill = FaultKind::Kill(Duration::ZERO);
    let fault = |target| fixture::fault(target, kill, STOPPED, STOPPED + 10);
    let elsewhere = super::Run {
        executor: "worker-2".to_owned(),
        ..fixture::run(2, "serial-0", STOPPED - 10)
    };
    let observed = Observations {
        runs: vec![
            fixture::run(1, "serial-0", STOPPED - 10),
            elsewhere,
            fixture::run(3, "serial-0", STOPPED - 100),
            fixture::run(4, "serial-0", STOPPED + 100),
        ],
        faults: vec![fault(Target::Worker(0)), fault(Target::Store)],
        ..Observations::default()
    };
    let met = faults_met(&observed);
    assert_eq!(met[&("kill", "worker")], (1, 1));
    assert_eq!(met[&("kill", "store")], (1, 2));
}

/// The violations of a drain from 20 s on, for an attempt of this job that started at `at` and recorded no end.
fn judge_drain(job: &str, at: i64, more: Option<InjectedFault>) -> usize {
    let run = fixture::run(1, job, 10_000);
    let drain = fixture::fault(Target::Worker(0), FaultKind::Terminate, 20_000, 24_000);
    let observed = Observations {
        entries: vec![fixture::start(&run, at)],
        faults: more.into_iter().chain([drain]).collect(),
        ..Observations::default()
    };
    check_terminations(&observed, &Ends::new()).len()
}

#[test]
fn a_drain_ends_all_attempts_but_programs_that_a_fence_has_stopped() {
    let killed = |began| {
        let kill = FaultKind::Kill(Duration::ZERO);
        Some(fixture::fault(Target::Broker, kill, began, began + 3_000))
    };
    assert_eq!(judge_drain("program-discard-0", 12_000, None), 1);
    assert_eq!(judge_drain("program-discard-0", 12_000, killed(11_000)), 0);
    let earlier = judge_drain("program-discard-0", 12_000, killed(5_000));
    assert_eq!(earlier, 1, "it started later");
    let native = judge_drain("long-0", 12_000, killed(11_000));
    assert_eq!(native, 1, "it would have recorded the stop");
}

#[test]
fn a_drain_ends_all_attempts_that_no_earlier_fault_of_the_worker_has_ended() {
    let killed = |target| {
        let kill = FaultKind::Kill(Duration::ZERO);
        let fault = fixture::fault(target, kill, 11_000, 11_500);
        // Another fault of the wave took longer.
        Some(InjectedFault {
            healed: 19_000,
            ..fault
        })
    };
    let judge = |target, at| judge_drain("long-0", at, killed(target));
    assert_eq!(judge(Target::Worker(0), 10_900), 0);
    assert_eq!(judge(Target::Worker(1), 10_900), 1, "another worker");
    let next_process = judge(Target::Worker(0), 15_000);
    assert_eq!(next_process, 1, "the worker had recovered");
}
