//! The order of those that wait in a lane.

use std::collections::BTreeMap;

use cueline_model::{Block, Timestamp};
use proptest::prelude::*;

use super::{accept, finish, key, request};
use crate::context::StopReason;
use crate::identity::AttemptKey;
use crate::lanes::machine::Lanes;
use crate::lanes::request::{LaneRequest, Step};

/// The first attempt of a run that is due at `fire_ms`.
fn due(run: i64, fire_ms: i64) -> LaneRequest {
    LaneRequest {
        at: Timestamp::from_millis(fire_ms),
        ..request(run, 1, Block::Serial)
    }
}

/// A failover has routed the run again.
fn returned(run: i64, fire_ms: i64) -> LaneRequest {
    LaneRequest {
        key: key(run, 2),
        ..due(run, fire_ms)
    }
}

/// It is due at `retry_ms`.
fn retry(run: i64, retry_ms: i64) -> LaneRequest {
    returned(run, retry_ms)
}

/// Ends each attempt as soon as it has started. Returns all in the order of their starts.
fn start_all(lanes: &mut Lanes) -> Vec<AttemptKey> {
    lanes.set_capacity(1);
    let (mut started, mut steps) = (Vec::new(), Vec::new());
    lanes.start_ready(&mut steps);
    while let Some(step) = steps.pop() {
        if let Step::Start(id) = step {
            started.push(id);
            steps.extend(finish(lanes, id));
        }
    }
    started
}

/// A scheduler publishes a run late, or the broker delivers its trigger again.
#[test]
fn first_attempts_that_wait_start_by_fire_time_and_then_by_run() {
    let mut lanes = Lanes::new(1);
    accept(&mut lanes, due(9, 90));
    for (run, fire_ms) in [(8, 30), (3, 20), (5, 30), (7, 10)] {
        accept(&mut lanes, due(run, fire_ms));
    }
    let mut order = Vec::new();
    let mut running = key(9, 1);
    while let [Step::Start(next)] = finish(&mut lanes, running)[..] {
        order.push(next.run.run.0);
        running = next;
    }
    assert_eq!(order, [7, 3, 5, 8]);
}

/// A failover returns older runs. Their triggers arrive after those of newer runs, and may arrive in any order.
#[test]
fn a_returned_run_starts_before_newer_ones_that_wait() {
    let mut lanes = Lanes::new(0);
    accept(&mut lanes, due(5, 50));
    accept(&mut lanes, due(6, 60));
    accept(&mut lanes, returned(2, 20));
    accept(&mut lanes, returned(1, 10));
    let order = [key(1, 2), key(2, 2), key(5, 1), key(6, 1)];
    assert_eq!(start_all(&mut lanes), order);
}

#[test]
fn a_retry_starts_after_what_was_due_before_it() {
    let mut lanes = Lanes::new(0);
    accept(&mut lanes, due(6, 60));
    accept(&mut lanes, retry(1, 55));
    accept(&mut lanes, due(5, 50));
    let order = [key(5, 1), key(1, 2), key(6, 1)];
    assert_eq!(start_all(&mut lanes), order);
}

#[test]
fn an_attempt_that_waited_for_its_predecessor_keeps_its_place() {
    let mut lanes = Lanes::new(1);
    accept(&mut lanes, due(1, 10));
    accept(&mut lanes, due(5, 50));
    let stop = [Step::Stop(key(1, 1), StopReason::Cancelled)];
    assert_eq!(accept(&mut lanes, retry(1, 55)), stop);
    accept(&mut lanes, due(6, 60));
    let first = [Step::Start(key(5, 1))];
    assert_eq!(finish(&mut lanes, key(1, 1)), first);
    assert_eq!(finish(&mut lanes, key(5, 1)), [Step::Start(key(1, 2))]);
    assert_eq!(finish(&mut lanes, key(1, 2)), [Step::Start(key(6, 1))]);
}

proptest! {
    /// Triggers arrive in any order. A restart, after which the worker restores what its journal has, changes nothing.
    #[test]
    fn all_that_wait_start_by_their_places(
        requests in prop::collection::vec((1..30_i64, prop::bool::weighted(0.8)), 1..60),
    ) {
        let (mut before, mut after) = (Lanes::new(0), Lanes::new(0));
        let mut places = BTreeMap::new();
        for (run, (at_ms, is_first)) in (0..).map(|n: i64| (n * 37) % 101).zip(requests) {
            let request = if is_first { due(run, at_ms) } else { retry(run, at_ms) };
            places.insert(request.key, request.place());
            prop_assert!(accept(&mut before, request.clone()).is_empty());
            after.restore(request);
        }
        let order = start_all(&mut before);
        prop_assert_eq!(&start_all(&mut after), &order);
        prop_assert_eq!(order.len(), places.len());
        let places: Vec<_> = order.iter().map(|id| places[id]).collect();
        prop_assert!(places.is_sorted(), "{places:?}");
    }
}
