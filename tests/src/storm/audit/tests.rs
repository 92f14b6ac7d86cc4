//! What a stopped worker excuses, and what it does not.

use std::time::Duration;

use super::{Ended, Evidence, attempts};
use crate::storm::faults::{Fault, How, Past, Target};
use crate::witness::{Note, What};

const STOPPED: i64 = 10_000;
const GOES_ON: i64 = 18_000;

/// The first attempt of a run, begun on the worker that was stopped and noted a moment after it went on; by then the second has come and gone elsewhere.
fn late(begun: i64) -> Note {
    Note {
        what: What::Start,
        at: GOES_ON + 6,
        executor: "worker-1".to_owned(),
        job: "rerun-1".to_owned(),
        shard: 0,
        run: 1,
        attempt: 1,
        fire_at: STOPPED - 40,
        round: 0,
        pid: 1,
        begun,
        other: None,
    }
}

/// The second attempt, which was begun while the first one's worker was stopped.
fn second(first: &Note) -> Note {
    Note {
        what: What::Start,
        other: None,
        at: GOES_ON - 2_000,
        begun: GOES_ON - 2_001,
        executor: "worker-2".to_owned(),
        attempt: 2,
        ..first.clone()
    }
}

fn judged(late: &Note, ends: &Ended) -> (usize, usize) {
    judge(vec![second(late), late.clone()], ends)
}

/// How many are wrong, and how many are excused.
fn judge(notes: Vec<Note>, ends: &Ended) -> (usize, usize) {
    let stop = Past {
        fault: Fault {
            target: Target::Worker(0),
            how: How::Stop(Duration::from_secs(8), false),
            after: Duration::ZERO,
        },
        began: STOPPED,
        stood_until: Some(GOES_ON),
        over: GOES_ON + 1,
        healed: GOES_ON + 100,
    };
    let evidence = Evidence {
        notes,
        past: vec![stop],
        ..Evidence::default()
    };
    let mut excused = 0;
    let wrong = attempts(&evidence, ends, &mut excused);
    let wrong = wrong.iter().filter(|w| !w.starts_with("G4"));
    (wrong.count(), excused)
}

#[test]
fn what_was_begun_before_its_worker_was_stopped_may_be_noted_late() {
    assert_eq!(judged(&late(STOPPED - 1), &Ended::new()), (0, 1));
}

#[test]
fn nothing_is_begun_by_a_worker_that_goes_on_after_others_took_over() {
    assert_eq!(judged(&late(GOES_ON), &Ended::new()), (1, 0));
    assert_eq!(judged(&late(GOES_ON + 5), &Ended::new()), (1, 0));
}

#[test]
fn what_was_begun_before_has_to_come_to_nothing() {
    let ends = |what, at| Ended::from([((1, 1), vec![(what, at)])]);
    let (soon, later) = (GOES_ON + 60, GOES_ON + 1_200);
    assert_eq!(judged(&late(STOPPED - 1), &ends(What::Stop, soon)), (0, 1));
    assert_eq!(judged(&late(STOPPED - 1), &ends(What::End, soon)), (1, 0));
    assert_eq!(judged(&late(STOPPED - 1), &ends(What::Fail, soon)), (1, 0));
    // A program cannot ask, and is stopped by others.
    let program = Note {
        job: "program-1".to_owned(),
        ..late(STOPPED - 1)
    };
    assert_eq!(judged(&program, &ends(What::End, soon)), (0, 1));
    assert_eq!(judged(&program, &ends(What::End, later)), (1, 0));
}

#[test]
fn an_overlap_is_judged_by_the_same() {
    let overlap = |begun, attempt| Note {
        what: What::Overlap,
        other: Some(("worker-2".to_owned(), 1, 2)),
        attempt,
        ..late(begun)
    };
    let judged = |note: Note| {
        let second = Note {
            attempt: 2,
            ..second(&note)
        };
        judge(vec![second, note], &Ended::new())
    };
    assert_eq!(judged(overlap(STOPPED - 1, 1)), (0, 1));
    assert_eq!(judged(overlap(GOES_ON + 5, 1)), (1, 0));
    // It was begun while the other was there, and might as well have been told so.
    assert_eq!(judged(overlap(STOPPED - 1, 2)), (1, 0));
    assert_eq!(judged(overlap(STOPPED - 1, 3)), (1, 0));
}

#[test]
fn only_a_late_note_of_the_stopped_worker_is_excused() {
    let good = late(STOPPED - 1);
    let other = Note {
        executor: "worker-3".to_owned(),
        ..good.clone()
    };
    assert_eq!(judged(&other, &Ended::new()), (1, 0), "it was not stopped");
    let slow = Note {
        at: GOES_ON + 1_001,
        ..good.clone()
    };
    assert_eq!(judged(&slow, &Ended::new()), (1, 0), "noted too late");
    let early = Note {
        at: STOPPED - 1,
        ..good
    };
    let notes = vec![second(&early), early];
    assert_eq!(judge(notes, &Ended::new()), (1, 0), "noted before the stop");
}

#[test]
fn the_order_is_that_in_which_they_were_begun() {
    let first = late(STOPPED - 1);
    let sooner = Note {
        begun: STOPPED - 2,
        ..second(&first)
    };
    let notes = vec![sooner, first.clone()];
    assert_eq!(
        judge(notes, &Ended::new()),
        (1, 0),
        "begun after the second"
    );
    let here = Note {
        executor: "worker-1".to_owned(),
        ..second(&first)
    };
    let notes = vec![here, first.clone()];
    assert_eq!(judge(notes, &Ended::new()), (1, 0), "on the same executor");
    let before = Note {
        at: STOPPED - 1,
        ..first.clone()
    };
    let notes = vec![before, second(&first), first];
    assert_eq!(judge(notes, &Ended::new()), (1, 0), "noted twice");
}
