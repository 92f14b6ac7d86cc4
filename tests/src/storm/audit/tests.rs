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

fn judged(late: &Note, ends: &Ended) -> (usize, usize) {
    let second = Note {
        what: What::Start,
        other: None,
        at: GOES_ON - 2_000,
        begun: GOES_ON - 2_001,
        executor: "worker-2".to_owned(),
        attempt: 2,
        ..late.clone()
    };
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
        notes: vec![second, late.clone()],
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
    let ends = |what| Ended::from([((1, 1), vec![(what, GOES_ON + 5_000)])]);
    assert_eq!(judged(&late(STOPPED - 1), &ends(What::End)), (1, 0));
    assert_eq!(judged(&late(STOPPED - 1), &ends(What::Stop)), (0, 1));
}

#[test]
fn the_same_overlap_is_judged_by_the_same() {
    let overlap = |begun| Note {
        what: What::Overlap,
        other: Some(("worker-2".to_owned(), 1, 2)),
        ..late(begun)
    };
    assert_eq!(judged(&overlap(STOPPED - 1), &Ended::new()), (0, 1));
    assert_eq!(judged(&overlap(GOES_ON + 5), &Ended::new()), (1, 0));
}

#[test]
fn a_worker_that_was_not_stopped_excuses_nothing() {
    let other = Note {
        executor: "worker-3".to_owned(),
        ..late(STOPPED - 1)
    };
    assert_eq!(judged(&other, &Ended::new()), (1, 0));
}
