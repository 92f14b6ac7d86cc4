//! Tests the guarantees of the block policies.

mod model;
mod order;

use std::collections::{BTreeMap, BTreeSet};

use cueline_model::{AttemptId, Block, JobId, RunId, StoreId, Timestamp};
use proptest::prelude::*;

use super::machine::Lanes;
use super::request::{LaneKey, LaneRequest, NotStarted, Place, Step};
use crate::context::StopReason;
use crate::identity::{AttemptKey, RunKey};

const STORE: StoreId = StoreId(1);

fn key(run: i64, attempt: u32) -> AttemptKey {
    let run = RunId(run);
    AttemptKey::new(STORE, AttemptId { run, attempt })
}

fn run(run: i64) -> RunKey {
    key(run, 1).run
}

fn request(run: i64, job: i64, block: Block) -> LaneRequest {
    LaneRequest {
        key: key(run, 1),
        lane: LaneKey {
            store: STORE,
            job: JobId(job),
            shard: None,
        },
        version: 1,
        block,
        backlog: 1_000,
        priority: 5,
        at: Timestamp::from_millis(run),
    }
}

fn accept(lanes: &mut Lanes, request: LaneRequest) -> Vec<Step> {
    let mut steps = Vec::new();
    lanes.accept(request, &mut steps);
    lanes.start_ready(&mut steps);
    steps
}

fn finish(lanes: &mut Lanes, key: AttemptKey) -> Vec<Step> {
    let mut steps = Vec::new();
    lanes.finished(key);
    lanes.start_ready(&mut steps);
    steps
}

#[test]
fn a_serial_lane_runs_one_attempt_after_the_other_in_order() {
    let mut lanes = Lanes::new(8);
    assert_eq!(
        accept(&mut lanes, request(1, 1, Block::Serial)),
        [Step::Start(key(1, 1))]
    );
    assert_eq!(accept(&mut lanes, request(2, 1, Block::Serial)), []);
    assert_eq!(accept(&mut lanes, request(3, 1, Block::Serial)), []);
    assert_eq!(finish(&mut lanes, key(1, 1)), [Step::Start(key(2, 1))]);
    assert_eq!(finish(&mut lanes, key(2, 1)), [Step::Start(key(3, 1))]);
    assert_eq!(finish(&mut lanes, key(3, 1)), []);
    assert_eq!(lanes.held(), 0);
    assert!(lanes.by_key.is_empty(), "empty lanes are removed");
}

#[test]
fn a_discard_lane_that_waits_for_capacity_is_busy() {
    let mut lanes = Lanes::new(0);
    assert_eq!(accept(&mut lanes, request(1, 1, Block::Discard)), []);
    assert_eq!(
        accept(&mut lanes, request(2, 1, Block::Discard)),
        [Step::End(key(2, 1), NotStarted::LaneBusy)]
    );
}

/// A broker may deliver an older trigger again, after a newer one.
#[test]
fn an_older_run_never_covers_a_newer_one() {
    let mut lanes = Lanes::new(8);
    accept(&mut lanes, request(2, 1, Block::Cover));
    let late = [Step::End(key(1, 1), NotStarted::CoveredBy(run(2)))];
    assert_eq!(accept(&mut lanes, request(1, 1, Block::Cover)), late);
    let stop = [Step::Stop(key(2, 1), StopReason::Covered)];
    assert_eq!(accept(&mut lanes, request(4, 1, Block::Cover)), stop);
    let late = [Step::End(key(3, 1), NotStarted::CoveredBy(run(4)))];
    assert_eq!(
        accept(&mut lanes, request(3, 1, Block::Cover)),
        late,
        "it waits"
    );
    assert_eq!(finish(&mut lanes, key(2, 1)), [Step::Start(key(4, 1))]);
    // What a failover routes again keeps its place, and a retry comes after what is there.
    let returned = LaneRequest {
        key: key(3, 2),
        ..request(3, 1, Block::Cover)
    };
    let covered = [Step::End(key(3, 2), NotStarted::CoveredBy(run(4)))];
    assert_eq!(accept(&mut lanes, returned), covered);
    let again = LaneRequest {
        key: key(1, 2),
        at: Timestamp::from_millis(5),
        ..request(1, 1, Block::Cover)
    };
    let stop = [Step::Stop(key(4, 1), StopReason::Covered)];
    assert_eq!(accept(&mut lanes, again), stop);
}

#[test]
fn cover_stops_the_running_attempt_and_starts_the_newest_after_its_end() {
    let mut lanes = Lanes::new(8);
    accept(&mut lanes, request(1, 1, Block::Cover));
    assert_eq!(
        accept(&mut lanes, request(2, 1, Block::Cover)),
        [Step::Stop(key(1, 1), StopReason::Covered)]
    );
    assert_eq!(
        accept(&mut lanes, request(3, 1, Block::Cover)),
        [Step::End(key(2, 1), NotStarted::CoveredBy(run(3)))]
    );
    assert_eq!(finish(&mut lanes, key(1, 1)), [Step::Start(key(3, 1))]);
}

#[test]
fn a_full_backlog_discards_and_reports_its_size() {
    let mut lanes = Lanes::new(8);
    let small = |run| LaneRequest {
        backlog: 1,
        ..request(run, 1, Block::Serial)
    };
    accept(&mut lanes, small(1));
    accept(&mut lanes, small(2));
    assert_eq!(
        accept(&mut lanes, small(3)),
        [Step::End(key(3, 1), NotStarted::BacklogFull(1))]
    );
}

#[test]
fn with_a_backlog_of_zero_an_attempt_still_waits_for_capacity() {
    let mut lanes = Lanes::new(0);
    let none = LaneRequest {
        backlog: 0,
        ..request(1, 1, Block::Serial)
    };
    assert_eq!(accept(&mut lanes, none), []);
    lanes.set_capacity(1);
    let mut steps = Vec::new();
    lanes.start_ready(&mut steps);
    assert_eq!(steps, [Step::Start(key(1, 1))]);
}

#[test]
fn a_newer_attempt_is_not_refused_because_its_predecessor_still_runs() {
    for block in [Block::Serial, Block::Parallel(1), Block::Discard] {
        let mut lanes = Lanes::new(8);
        let older = LaneRequest {
            backlog: 0,
            ..request(1, 1, block)
        };
        accept(&mut lanes, older.clone());
        let newer = LaneRequest {
            key: key(1, 2),
            ..older
        };
        let stop = [Step::Stop(key(1, 1), StopReason::Cancelled)];
        assert_eq!(accept(&mut lanes, newer), stop, "{block:?}");
        assert_eq!(finish(&mut lanes, key(1, 1)), [Step::Start(key(1, 2))]);
    }
}

#[test]
fn lanes_that_wait_for_capacity_go_by_priority_and_then_in_turn() {
    let mut lanes = Lanes::new(0);
    for run in 1..=3 {
        accept(&mut lanes, request(run, 1, Block::Parallel(9)));
    }
    accept(&mut lanes, request(4, 2, Block::Parallel(9)));
    accept(
        &mut lanes,
        LaneRequest {
            priority: 9,
            ..request(5, 3, Block::Serial)
        },
    );
    lanes.set_capacity(4);
    let mut steps = Vec::new();
    lanes.start_ready(&mut steps);
    let order = [5, 1, 4, 2].map(|run| Step::Start(key(run, 1)));
    assert_eq!(
        steps, order,
        "the backlog of job 1 does not hold back job 2"
    );
}

#[test]
fn a_newer_attempt_starts_only_after_the_end_of_the_older_one() {
    let mut lanes = Lanes::new(8);
    accept(&mut lanes, request(1, 1, Block::Parallel(4)));
    let newer = LaneRequest {
        key: key(1, 2),
        ..request(1, 1, Block::Parallel(4))
    };
    assert_eq!(
        accept(&mut lanes, newer),
        [Step::Stop(key(1, 1), StopReason::Cancelled)]
    );
    assert_eq!(lanes.newest_attempt(run(1)), Some(2));
    assert_eq!(finish(&mut lanes, key(1, 1)), [Step::Start(key(1, 2))]);
}

#[test]
fn cancel_ends_a_waiting_attempt_and_stops_a_running_one() {
    let mut lanes = Lanes::new(8);
    accept(&mut lanes, request(1, 1, Block::Serial));
    accept(&mut lanes, request(2, 1, Block::Serial));
    let mut steps = Vec::new();
    lanes.cancel(run(2), &mut steps);
    lanes.cancel(run(1), &mut steps);
    lanes.cancel(run(7), &mut steps);
    assert_eq!(
        steps,
        [
            Step::End(key(2, 1), NotStarted::Cancelled),
            Step::Stop(key(1, 1), StopReason::Cancelled),
        ]
    );
    assert_eq!(finish(&mut lanes, key(1, 1)), []);
}

#[test]
fn a_job_that_becomes_parallel_uses_its_new_slots_at_once() {
    let mut lanes = Lanes::new(8);
    for run in 1..=3 {
        accept(&mut lanes, request(run, 1, Block::Serial));
    }
    let newer = LaneRequest {
        version: 2,
        ..request(4, 1, Block::Parallel(3))
    };
    assert_eq!(
        accept(&mut lanes, newer),
        [Step::Start(key(2, 1)), Step::Start(key(3, 1))]
    );
    assert_eq!(
        accept(&mut lanes, request(5, 1, Block::Discard)),
        [],
        "a trigger of an older version does not bring the old policy back"
    );
}

#[test]
fn closed_lanes_return_waiting_attempts_and_refuse_new_ones() {
    let mut lanes = Lanes::new(1);
    accept(&mut lanes, request(1, 1, Block::Serial));
    accept(&mut lanes, request(2, 1, Block::Serial));
    accept(&mut lanes, request(3, 2, Block::Serial));
    let mut steps = Vec::new();
    lanes.close(NotStarted::Draining, &mut steps);
    let back = [2, 3].map(|run| Step::End(key(run, 1), NotStarted::Draining));
    assert_eq!(steps, back);
    assert_eq!(
        accept(&mut lanes, request(4, 3, Block::Serial)),
        [Step::End(key(4, 1), NotStarted::Draining)]
    );
    assert_eq!(finish(&mut lanes, key(1, 1)), []);
    assert_eq!(lanes.held(), 0);
}

/// An operation of the property tests.
#[derive(Debug, Clone)]
enum Op {
    /// The run has this id, or the next free one.
    Accept {
        job: i64,
        block: u8,
        newer_version: bool,
        run: i64,
        fire_ms: i64,
    },
    NewAttempt {
        nth: usize,
    },
    End {
        nth: usize,
    },
    Cancel {
        nth: usize,
    },
    Capacity(usize),
    /// The worker closes its lanes, or opens them again.
    Toggle,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1..4_i64, 0..4_u8, prop::bool::weighted(0.1), 1..200_i64, 1..30_i64)
            .prop_map(|(job, block, newer_version, run, fire_ms)| Op::Accept { job, block, newer_version, run, fire_ms }),
        1 => (0..64_usize).prop_map(|nth| Op::NewAttempt { nth }),
        5 => (0..64_usize).prop_map(|nth| Op::End { nth }),
        1 => (0..64_usize).prop_map(|nth| Op::Cancel { nth }),
        1 => (0..6_usize).prop_map(Op::Capacity),
        1 => Just(Op::Toggle),
    ]
}

/// What the steps have done so far.
#[derive(Default)]
struct History {
    jobs: BTreeMap<AttemptKey, i64>,
    places: BTreeMap<AttemptKey, Place>,
    running: BTreeSet<AttemptKey>,
    over: BTreeSet<AttemptKey>,
    /// Job 1 stays serial, 2 discard and 3 cover.
    fixed: bool,
}

impl History {
    fn apply(&mut self, steps: &[Step]) {
        for step in steps {
            match *step {
                Step::Start(id) => {
                    if self.fixed && self.jobs.get(&id) == Some(&1) {
                        self.check_serial_start(id);
                    }
                    assert!(self.jobs.contains_key(&id), "started an unknown attempt");
                    assert!(!self.over.contains(&id), "started an ended attempt");
                    assert!(
                        !self.running.iter().any(|r| r.run == id.run),
                        "two attempts of a run at once"
                    );
                    assert!(self.running.insert(id), "started twice");
                }
                Step::Stop(id, _) => assert!(
                    self.running.contains(&id),
                    "stopped an attempt that does not run"
                ),
                Step::End(id, _) => {
                    assert!(!self.running.contains(&id), "ended a running attempt");
                    assert!(self.over.insert(id), "ended twice");
                }
            }
        }
    }

    /// What waits in the serial lane of job 1 does not have to start before `start`.
    fn check_serial_start(&self, start: AttemptKey) {
        let waits =
            |id: AttemptKey| id != start && !self.over.contains(&id) && !self.running.contains(&id);
        // A newer attempt of a running run waits for its end, outside of the lane.
        let in_lane = |id: AttemptKey| !self.running.iter().any(|other| other.run == id.run);
        for (id, _) in self.jobs.iter().filter(|(_, job)| **job == 1) {
            if waits(*id) && in_lane(*id) {
                let (waiting, started) = (self.places[id], self.places[&start]);
                assert!(started < waiting, "{start:?} started before {id:?}");
            }
        }
    }

    fn running_of(&self, job: i64) -> usize {
        self.running.iter().filter(|r| self.jobs[r] == job).count()
    }
}

fn block_of(job: i64, fixed: bool, code: u8) -> Block {
    match if fixed {
        u8::try_from(job).unwrap_or(0)
    } else {
        code
    } {
        0 => Block::Parallel(3),
        1 => Block::Serial,
        2 => Block::Discard,
        _ => Block::Cover,
    }
}

/// The lanes, and a model of their required behaviour.
struct Model {
    lanes: Lanes,
    history: History,
    version: i64,
    fixed: bool,
}

impl Model {
    fn send(&mut self, request: LaneRequest, steps: &mut Vec<Step>) {
        let (id, job) = (request.key, request.lane.job.0);
        let busy = self.history.running_of(job) > 0;
        let discards = self.fixed && request.block == Block::Discard && id.attempt == 1;
        self.history.jobs.insert(id, job);
        self.history.places.insert(id, request.place());
        self.lanes.accept(request, steps);
        if discards && busy && self.lanes.closed.is_none() {
            assert_eq!(*steps, [Step::End(id, NotStarted::LaneBusy)]);
        }
        let mut covers = self.lanes.by_key.values();
        assert!(
            !self.fixed || covers.all(|l| l.block != Block::Cover || l.waiting.len() <= 1),
            "cover keeps only the newest"
        );
    }

    fn apply(&mut self, op: &Op, steps: &mut Vec<Step>) {
        match *op {
            Op::Accept {
                job,
                block,
                newer_version,
                run,
                fire_ms,
            } => {
                let is_free = |run: &i64| !self.history.jobs.contains_key(&key(*run, 1));
                let run = (run..run + 1_000_000).find(is_free).expect("a free id");
                self.version += i64::from(newer_version);
                let request = LaneRequest {
                    at: Timestamp::from_millis(fire_ms),
                    ..self.request(run, 1, job, block)
                };
                self.send(request, steps);
            }
            Op::NewAttempt { nth } => {
                let Some((&id, &job)) = self.history.jobs.iter().nth(nth) else {
                    return;
                };
                if self.lanes.newest_attempt(id.run).is_some() {
                    let known = self.history.jobs.keys().filter(|other| other.run == id.run);
                    let newest = known.map(|other| other.attempt).max().unwrap_or(0);
                    self.send(self.request(id.run.run.0, newest + 1, job, 1), steps);
                }
            }
            Op::End { nth } => self.end(nth),
            Op::Cancel { nth } => {
                if let Some(id) = self.history.jobs.keys().nth(nth) {
                    self.lanes.cancel(id.run, steps);
                }
            }
            Op::Capacity(capacity) => self.lanes.set_capacity(capacity),
            Op::Toggle if self.lanes.closed.is_some() => self.lanes.reopen(),
            Op::Toggle => self.lanes.close(NotStarted::Fenced, steps),
        }
    }

    fn request(&self, run: i64, attempt: u32, job: i64, block: u8) -> LaneRequest {
        LaneRequest {
            key: key(run, attempt),
            version: self.version,
            backlog: 5,
            ..request(run, job, block_of(job, self.fixed, block))
        }
    }

    fn end(&mut self, nth: usize) {
        let running = self.history.running.len().max(1);
        if let Some(&id) = self.history.running.iter().nth(nth % running) {
            self.history.running.remove(&id);
            self.history.over.insert(id);
            self.lanes.finished(id);
        }
    }

    fn check(&self) {
        let (lanes, history) = (&self.lanes, &self.history);
        let open = history.jobs.keys().filter(|id| !history.over.contains(id));
        let nexts = lanes.runs.values().filter(|p| p.next.is_some()).count();
        assert_eq!(
            open.count(),
            lanes.held() + nexts,
            "each attempt has ended or is held"
        );
        assert_eq!(history.running.len(), lanes.running());
        if self.fixed {
            let overlap = (1..=3).any(|job| history.running_of(job) > 1);
            assert!(!overlap, "overlap in a lane");
        }
    }
}

fn drive(ops: &[Op], fixed: bool) {
    let mut model = Model {
        lanes: Lanes::new(4),
        history: History {
            fixed,
            ..History::default()
        },
        version: 1,
        fixed,
    };
    for op in ops {
        let mut steps = Vec::new();
        model.apply(op, &mut steps);
        model.lanes.start_ready(&mut steps);
        model.history.apply(&steps);
        model.check();
    }
    model.lanes.set_capacity(usize::MAX);
    while model.lanes.held() > 0 {
        let mut steps = Vec::new();
        model.lanes.start_ready(&mut steps);
        model.history.apply(&steps);
        assert!(!model.history.running.is_empty(), "a held attempt starts");
        model.end(0);
    }
    let empty = model.lanes.by_key.is_empty() && model.lanes.ready.is_empty();
    assert!(empty, "all lanes are empty");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn each_policy_keeps_its_guarantee(ops in prop::collection::vec(op(), 1..120)) {
        drive(&ops, true);
    }

    #[test]
    fn no_attempt_is_lost_when_policies_change(ops in prop::collection::vec(op(), 1..120)) {
        drive(&ops, false);
    }
}
