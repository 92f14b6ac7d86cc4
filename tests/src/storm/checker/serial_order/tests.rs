//! Which starts out of order are found, and which are explained.

use std::time::Duration;

use super::super::fixture::{end, fault, run, start};
use super::*;
use crate::storm::faults::{FaultKind, Target};
use crate::storm::job_kinds::kinds;
use crate::storm::lane_log::LaneLog;

const AT: i64 = 100_000;

fn observed(runs: Vec<Run>, entries: Vec<Entry>) -> Observations {
    Observations {
        runs,
        entries,
        ..Observations::default()
    }
}

/// The starts of two runs in this order, 1 s apart.
fn orders(first: &Run, second: &Run, faults: Vec<InjectedFault>) -> (usize, LateTriggers) {
    let entries = vec![start(first, AT + 2_000), start(second, AT + 3_000)];
    let observed = Observations {
        faults,
        ..observed(vec![first.clone(), second.clone()], entries)
    };
    let (violations, explained) = check_serial_order(&observed, &kinds());
    (violations.len(), explained)
}

const IN_ORDER: (usize, LateTriggers) = (0, NONE);
const VIOLATED: (usize, LateTriggers) = (1, NONE);
const NONE: LateTriggers = LateTriggers {
    published_late: 0,
    delivered_again: 0,
};
const PUBLISHED_LATE: (usize, LateTriggers) = (
    0,
    LateTriggers {
        published_late: 1,
        ..NONE
    },
);
const DELIVERED_AGAIN: (usize, LateTriggers) = (
    0,
    LateTriggers {
        delivered_again: 1,
        ..NONE
    },
);

/// An older and a newer run of one lane.
fn two_runs() -> (Run, Run) {
    (run(1, "serial-0", AT), run(2, "serial-0", AT + 500))
}

fn killed(target: Target, began: i64) -> Vec<InjectedFault> {
    let kind = FaultKind::Kill(Duration::ZERO);
    vec![fault(target, kind, began, began + 100)]
}

#[test]
fn a_serial_lane_starts_runs_in_the_order_of_their_fire_times() {
    let (old, new) = two_runs();
    assert_eq!(orders(&old, &new, vec![]), IN_ORDER);
    assert_eq!(orders(&new, &old, vec![]), VIOLATED);
    let parallel = |run: &Run| Run {
        job: "parallel-0".to_owned(),
        ..run.clone()
    };
    let ordered = orders(&parallel(&new), &parallel(&old), vec![]);
    assert_eq!(ordered, IN_ORDER, "another policy");
}

#[test]
fn a_run_that_was_queued_after_the_newer_start_was_published_late() {
    let (old, new) = two_runs();
    let queued = |at| Run {
        queued_at: Some(at),
        ..old.clone()
    };
    assert_eq!(orders(&new, &queued(AT + 2_500), vec![]), PUBLISHED_LATE);
    let while_it_started = queued(AT + 2_000 - DECIDED_MS - ARRIVED_MS + 1);
    assert_eq!(orders(&new, &while_it_started, vec![]), PUBLISHED_LATE);
    let before = queued(AT + 2_000 - DECIDED_MS - ARRIVED_MS);
    assert_eq!(orders(&new, &before, vec![]), VIOLATED);
    // The lane was busy right before, so it decided later.
    let previous = run(3, "serial-0", AT - 500);
    let late = queued(AT + 1_600);
    let entries = vec![
        start(&previous, AT + 1_000),
        end(&previous, AT + 1_950),
        start(&new, AT + 2_000),
        start(&late, AT + 3_000),
    ];
    let busy = observed(vec![previous, new.clone(), late], entries);
    assert_eq!(check_serial_order(&busy, &kinds()).0.len(), 1);
    // A scheduler's fault alone explains nothing: the trigger was there.
    let faults = killed(Target::Scheduler(0), AT + 1_000);
    assert_eq!(orders(&new, &before, faults), VIOLATED);
}

#[test]
fn the_workers_log_tells_whether_the_older_trigger_was_there() {
    let (old, new) = two_runs();
    let judged = |queued_at, lines: &[&str]| {
        let old = Run {
            queued_at,
            ..old.clone()
        };
        let entries = vec![start(&new, AT + 2_000), start(&old, AT + 3_000)];
        let log: Vec<String> = lines.iter().map(|line| format!("Z {line}\n")).collect();
        let lanes = LaneLog::parse(&log.concat()).unwrap();
        let observed = Observations {
            lanes: [("worker-1".to_owned(), lanes)].into(),
            ..observed(vec![old, new.clone()], entries)
        };
        let (violations, explained) = check_serial_order(&observed, &kinds());
        (violations.len(), explained)
    };
    let came = "the lane has the attempt run_id=1 attempt=1";
    let newer = "the lane starts the attempt run_id=2 attempt=1";
    let soon = Some(AT + 600);
    assert_eq!(judged(soon, &[newer, came]), PUBLISHED_LATE);
    assert_eq!(judged(soon, &[came, newer]), VIOLATED, "it waited");
    let late = Some(AT + 2_500);
    assert_eq!(judged(late, &[came, newer]), VIOLATED, "it waited");
    let before = Some(AT + 400);
    assert_eq!(
        judged(before, &[newer, came]),
        VIOLATED,
        "the queue is ordered"
    );
}

#[test]
fn a_full_disk_holds_a_decided_start() {
    let (old, new) = two_runs();
    let queued = |at| Run {
        queued_at: Some(at),
        ..old.clone()
    };
    let full = |worker, began| {
        let kind = FaultKind::Fill(Duration::from_secs(5));
        vec![fault(Target::Worker(worker), kind, began, AT + 2_100)]
    };
    let meanwhile = queued(AT + 1_400);
    let held = orders(&new, &meanwhile, full(0, AT + 700));
    assert_eq!(held, PUBLISHED_LATE);
    let other = orders(&new, &meanwhile, full(1, AT + 700));
    assert_eq!(other, VIOLATED, "another worker's disk");
    // A trigger that was there before the disk was full is not late, and a full disk delivers none again.
    let before = queued(AT + 600);
    assert_eq!(orders(&new, &before, full(0, AT + 1_500)), VIOLATED);
}

#[test]
fn without_a_queue_time_a_fault_explains_a_late_publication() {
    let (old, new) = two_runs();
    let unknown = Run {
        queued_at: None,
        ..old.clone()
    };
    assert_eq!(orders(&new, &unknown, vec![]), VIOLATED);
    let faults = |at| killed(Target::Scheduler(0), at);
    assert_eq!(orders(&new, &unknown, faults(AT + 1_000)), PUBLISHED_LATE);
    assert_eq!(orders(&new, &unknown, faults(AT - 3_000)), VIOLATED);
    assert_eq!(orders(&new, &unknown, faults(AT + 2_500)), VIOLATED);
    let started = |at| Run {
        started_at: Some(at),
        ..unknown.clone()
    };
    let decided = AT + 2_000 - DECIDED_MS;
    let shortly_before = decided + CONFIRMED_MS - ARRIVED_MS;
    assert_eq!(orders(&new, &started(shortly_before), vec![]), VIOLATED);
    let late = started(shortly_before + 1);
    assert_eq!(orders(&new, &late, vec![]), PUBLISHED_LATE);
    let created_late = Run {
        created_at: AT + 2_500,
        ..unknown
    };
    assert_eq!(orders(&new, &created_late, vec![]), PUBLISHED_LATE);
    // The queue time is that of the second attempt.
    let retried = Run {
        attempt: 2,
        queued_at: Some(AT + 4_000),
        ..old.clone()
    };
    let entries = vec![start(&new, AT + 2_000), start(&old, AT + 3_000)];
    let observed = observed(vec![new, retried], entries);
    assert_eq!(check_serial_order(&observed, &kinds()).0.len(), 1);
}

#[test]
fn without_a_queue_time_that_of_a_run_that_was_due_with_it_explains_a_late_publication() {
    let (old, new) = two_runs();
    let judge = |of_another: i64| {
        let old = Run {
            queued_at: None,
            ..old.clone()
        };
        let another = Run {
            queued_at: Some(of_another),
            ..run(3, "serial-1", old.fire_at)
        };
        let entries = vec![start(&new, AT + 2_000), start(&old, AT + 3_000)];
        let observed = observed(vec![old, new.clone(), another], entries);
        let (violations, explained) = check_serial_order(&observed, &kinds());
        (violations.len(), explained)
    };
    let before = AT + 2_000 - DECIDED_MS - ARRIVED_MS;
    assert_eq!(judge(before), VIOLATED);
    assert_eq!(judge(before + 1), PUBLISHED_LATE);
}

#[test]
fn in_a_backlog_a_trigger_may_be_behind_that_of_a_newer_run() {
    let (old, new) = two_runs();
    let judge = |old_at: i64, new_at: i64| {
        let queued = |run: &Run, at| Run {
            queued_at: Some(at),
            ..run.clone()
        };
        let runs = vec![queued(&old, old_at), queued(&new, new_at)];
        let entries = vec![start(&new, AT + 9_000), start(&old, AT + 9_500)];
        let (violations, explained) = check_serial_order(&observed(runs, entries), &kinds());
        (violations.len(), explained)
    };
    assert_eq!(judge(AT + 4_000, AT + 3_900), PUBLISHED_LATE);
    let behind = AT + 4_000 + CONFIRMED_MS;
    assert_eq!(judge(AT + 4_000, behind - 1), PUBLISHED_LATE);
    assert_eq!(judge(AT + 4_000, behind), VIOLATED, "it was before it");
    assert_eq!(judge(AT + BACKLOG_MS, AT), VIOLATED, "no backlog");
}

#[test]
fn what_was_queued_before_the_newer_run_was_due_was_there_before_it() {
    let (old, new) = two_runs();
    // The lane may have decided on the newer run right after that was due.
    let judge = |queued_at: i64| {
        let old = Run {
            queued_at: Some(queued_at),
            ..old.clone()
        };
        let entries = vec![start(&new, AT + 510), start(&old, AT + 600)];
        let observed = observed(vec![old, new.clone()], entries);
        let (violations, explained) = check_serial_order(&observed, &kinds());
        (violations.len(), explained)
    };
    assert_eq!(judge(AT + 450), VIOLATED);
    assert_eq!(judge(AT + 451), PUBLISHED_LATE, "schedulers may be early");
}

#[test]
fn a_fault_while_the_trigger_is_on_its_way_brings_a_delivery_back() {
    let (old, new) = two_runs();
    let with = |old: &Run, target, began| orders(&new, old, killed(target, began));
    let on_its_way = AT + 5 + ARRIVED_MS;
    for target in [Target::Worker(0), Target::Workers, Target::Broker] {
        assert_eq!(with(&old, target, on_its_way), DELIVERED_AGAIN);
        let arrived = with(&old, target, on_its_way + 1);
        assert_eq!(arrived, VIOLATED, "it was there");
    }
    assert_eq!(with(&old, Target::Worker(1), AT + 100), VIOLATED);
    assert_eq!(with(&old, Target::Store, AT + 100), VIOLATED);
    let healed_before = with(&old, Target::Worker(0), AT - 500);
    assert_eq!(healed_before, VIOLATED, "before its publication");
    // Behind the backlog of an earlier fault, it is on its way for longer.
    let two_faults = |first: i64| {
        let mut faults = killed(Target::Store, first);
        faults.extend(killed(Target::Worker(0), on_its_way + 1));
        orders(&new, &old, faults)
    };
    assert_eq!(two_faults(AT - BACKLOG_MS - 100), DELIVERED_AGAIN);
    assert_eq!(two_faults(AT - BACKLOG_MS - 101), VIOLATED);
    // So is one that was published late.
    let behind_others = Run {
        queued_at: Some(AT + 1_000),
        ..old.clone()
    };
    let late = with(&behind_others, Target::Broker, AT + 1_900);
    assert_eq!(late, DELIVERED_AGAIN);
    let after = with(&behind_others, Target::Broker, AT + 2_500);
    assert_eq!(after, VIOLATED, "after the newer start");
}

#[test]
fn a_late_run_is_compared_with_the_last_newer_start() {
    let late = Run {
        queued_at: Some(AT + 1_500),
        ..run(1, "serial-0", AT)
    };
    let (newer, newest) = (run(2, "serial-0", AT + 100), run(3, "serial-0", AT + 200));
    let judge = |order: [(&Run, i64); 3]| {
        let entries = order.map(|(run, at)| start(run, AT + at)).to_vec();
        let runs = order.map(|(run, _)| run.clone()).to_vec();
        let (violations, explained) = check_serial_order(&observed(runs, entries), &kinds());
        (violations.len(), explained)
    };
    let order = [(&newer, 1_000), (&newest, 1_100), (&late, 3_000)];
    assert_eq!(judge(order), PUBLISHED_LATE);
    let order = [(&newer, 1_000), (&newest, 2_500), (&late, 3_000)];
    assert_eq!(judge(order), VIOLATED, "it was there at the second start");
    let order = [(&newest, 1_000), (&newer, 2_500), (&late, 3_000)];
    assert_eq!(judge(order).0, 2, "both are late");
}

#[test]
fn runs_of_one_fire_time_start_by_id() {
    let (one, two) = (run(1, "serial-0", AT), run(2, "serial-0", AT));
    assert_eq!(orders(&one, &two, vec![]), IN_ORDER);
    assert_eq!(orders(&two, &one, vec![]), VIOLATED);
    // Each shard has a lane of its own.
    let shard = |run: &Run, shard| Run {
        job: "sharded-0".to_owned(),
        shard,
        ..run.clone()
    };
    assert_eq!(orders(&shard(&two, 1), &shard(&one, 0), vec![]), IN_ORDER);
    assert_eq!(orders(&shard(&two, 1), &shard(&one, 1), vec![]), VIOLATED);
}
