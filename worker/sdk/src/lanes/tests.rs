//! The lane machine against its promises.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn hold(run: i64, attempt: u32) -> AttemptKey {
    AttemptKey {
        run: RunKey::from_number(run),
        attempt,
    }
}

fn arrival(run: i64, job: i64, block: Block) -> Arrival {
    Arrival {
        id: hold(run, 1),
        lane: LaneKey {
            store: StoreNumber::default(),
            job: JobId(job),
            shard: None,
        },
        version: 1,
        block,
        backlog: 1_000,
        priority: 5,
    }
}

fn arrive(lanes: &mut Lanes, arrival: Arrival) -> Vec<Step> {
    let mut steps = Vec::new();
    lanes.arrive(arrival, &mut steps);
    lanes.pump(&mut steps);
    steps
}

fn end(lanes: &mut Lanes, id: AttemptKey) -> Vec<Step> {
    let mut steps = Vec::new();
    lanes.ended(id);
    lanes.pump(&mut steps);
    steps
}

#[test]
fn a_serial_lane_runs_one_after_the_other_in_order() {
    let mut lanes = Lanes::new(8);
    assert_eq!(
        arrive(&mut lanes, arrival(1, 1, Block::Serial)),
        [Step::Start(hold(1, 1))]
    );
    assert_eq!(arrive(&mut lanes, arrival(2, 1, Block::Serial)), []);
    assert_eq!(arrive(&mut lanes, arrival(3, 1, Block::Serial)), []);
    assert_eq!(end(&mut lanes, hold(1, 1)), [Step::Start(hold(2, 1))]);
    assert_eq!(end(&mut lanes, hold(2, 1)), [Step::Start(hold(3, 1))]);
    assert_eq!(end(&mut lanes, hold(3, 1)), []);
    assert_eq!(lanes.held(), 0);
    assert!(lanes.by_key.is_empty(), "an empty lane is forgotten");
}

#[test]
fn a_busy_discard_lane_discards_even_when_it_only_waits_for_room() {
    let mut lanes = Lanes::new(0);
    assert_eq!(arrive(&mut lanes, arrival(1, 1, Block::Discard)), []);
    assert_eq!(
        arrive(&mut lanes, arrival(2, 1, Block::Discard)),
        [Step::End(hold(2, 1), Unstarted::Busy)]
    );
}

#[test]
fn cover_stops_the_running_one_and_starts_the_newest_after_its_end() {
    let mut lanes = Lanes::new(8);
    arrive(&mut lanes, arrival(1, 1, Block::Cover));
    assert_eq!(
        arrive(&mut lanes, arrival(2, 1, Block::Cover)),
        [Step::Stop(hold(1, 1), StopReason::Covered)]
    );
    assert_eq!(
        arrive(&mut lanes, arrival(3, 1, Block::Cover)),
        [Step::End(
            hold(2, 1),
            Unstarted::Covered(RunKey::from_number(3))
        )]
    );
    assert_eq!(end(&mut lanes, hold(1, 1)), [Step::Start(hold(3, 1))]);
}

#[test]
fn a_full_backlog_discards_and_says_how_full() {
    let mut lanes = Lanes::new(8);
    let small = |run| Arrival {
        backlog: 1,
        ..arrival(run, 1, Block::Serial)
    };
    arrive(&mut lanes, small(1));
    arrive(&mut lanes, small(2));
    assert_eq!(
        arrive(&mut lanes, small(3)),
        [Step::End(hold(3, 1), Unstarted::Full(1))]
    );
}

#[test]
fn a_backlog_of_none_still_waits_for_room() {
    let mut lanes = Lanes::new(0);
    let none = Arrival {
        backlog: 0,
        ..arrival(1, 1, Block::Serial)
    };
    assert_eq!(arrive(&mut lanes, none), []);
    lanes.set_room(1);
    let mut steps = Vec::new();
    lanes.pump(&mut steps);
    assert_eq!(steps, [Step::Start(hold(1, 1))]);
}

#[test]
fn lanes_that_wait_for_room_go_by_priority_then_in_turn() {
    let mut lanes = Lanes::new(0);
    for run in 1..=3 {
        arrive(&mut lanes, arrival(run, 1, Block::Parallel(9)));
    }
    arrive(&mut lanes, arrival(4, 2, Block::Parallel(9)));
    arrive(
        &mut lanes,
        Arrival {
            priority: 9,
            ..arrival(5, 3, Block::Serial)
        },
    );
    lanes.set_room(4);
    let mut steps = Vec::new();
    lanes.pump(&mut steps);
    let order = [5, 1, 4, 2].map(|run| Step::Start(hold(run, 1)));
    assert_eq!(
        steps, order,
        "the backlog of job 1 does not hold back job 2"
    );
}

#[test]
fn a_newer_attempt_starts_only_after_the_older_one_ended() {
    let mut lanes = Lanes::new(8);
    arrive(&mut lanes, arrival(1, 1, Block::Parallel(4)));
    let newer = Arrival {
        id: hold(1, 2),
        ..arrival(1, 1, Block::Parallel(4))
    };
    assert_eq!(
        arrive(&mut lanes, newer),
        [Step::Stop(hold(1, 1), StopReason::Cancelled)]
    );
    assert_eq!(lanes.newest(RunKey::from_number(1)), Some(2));
    assert_eq!(end(&mut lanes, hold(1, 1)), [Step::Start(hold(1, 2))]);
}

#[test]
fn cancel_ends_what_waits_and_stops_what_runs() {
    let mut lanes = Lanes::new(8);
    arrive(&mut lanes, arrival(1, 1, Block::Serial));
    arrive(&mut lanes, arrival(2, 1, Block::Serial));
    let mut steps = Vec::new();
    lanes.cancel(RunKey::from_number(2), &mut steps);
    lanes.cancel(RunKey::from_number(1), &mut steps);
    lanes.cancel(RunKey::from_number(7), &mut steps);
    assert_eq!(
        steps,
        [
            Step::End(hold(2, 1), Unstarted::Cancelled),
            Step::Stop(hold(1, 1), StopReason::Cancelled),
        ]
    );
    assert_eq!(end(&mut lanes, hold(1, 1)), []);
}

#[test]
fn a_job_that_becomes_parallel_uses_its_new_slots_at_once() {
    let mut lanes = Lanes::new(8);
    for run in 1..=3 {
        arrive(&mut lanes, arrival(run, 1, Block::Serial));
    }
    let newer = Arrival {
        version: 2,
        ..arrival(4, 1, Block::Parallel(3))
    };
    assert_eq!(
        arrive(&mut lanes, newer),
        [Step::Start(hold(2, 1)), Step::Start(hold(3, 1))]
    );
    assert_eq!(
        arrive(&mut lanes, arrival(5, 1, Block::Discard)),
        [],
        "a trigger of an older version does not bring the old policy back"
    );
}

#[test]
fn a_drain_gives_back_what_waits_and_all_that_comes() {
    let mut lanes = Lanes::new(1);
    arrive(&mut lanes, arrival(1, 1, Block::Serial));
    arrive(&mut lanes, arrival(2, 1, Block::Serial));
    arrive(&mut lanes, arrival(3, 2, Block::Serial));
    let mut steps = Vec::new();
    lanes.close(Unstarted::Returned, &mut steps);
    let back = [2, 3].map(|run| Step::End(hold(run, 1), Unstarted::Returned));
    assert_eq!(steps, back);
    assert_eq!(
        arrive(&mut lanes, arrival(4, 3, Block::Serial)),
        [Step::End(hold(4, 1), Unstarted::Returned)]
    );
    assert_eq!(end(&mut lanes, hold(1, 1)), []);
    assert_eq!(lanes.held(), 0);
}

/// What a test does to the machine.
#[derive(Debug, Clone)]
enum Op {
    Arrive {
        job: i64,
        block: u8,
        newer_version: bool,
    },
    Again {
        nth: usize,
    },
    End {
        nth: usize,
    },
    Cancel {
        nth: usize,
    },
    Room(usize),
    /// The worker loses contact, or has it back.
    Turn,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1..4_i64, 0..4_u8, prop::bool::weighted(0.1))
            .prop_map(|(job, block, newer_version)| Op::Arrive { job, block, newer_version }),
        1 => (0..64_usize).prop_map(|nth| Op::Again { nth }),
        5 => (0..64_usize).prop_map(|nth| Op::End { nth }),
        1 => (0..64_usize).prop_map(|nth| Op::Cancel { nth }),
        1 => (0..6_usize).prop_map(Op::Room),
        1 => Just(Op::Turn),
    ]
}

/// What the promises are checked against.
#[derive(Default)]
struct Seen {
    jobs: BTreeMap<AttemptKey, i64>,
    sent: BTreeMap<AttemptKey, usize>,
    running: BTreeSet<AttemptKey>,
    over: BTreeSet<AttemptKey>,
    started: Vec<AttemptKey>,
}

impl Seen {
    fn take(&mut self, steps: &[Step]) {
        for step in steps {
            match *step {
                Step::Start(id) => {
                    assert!(self.jobs.contains_key(&id), "started what never came");
                    assert!(!self.over.contains(&id), "started what had ended");
                    assert!(
                        !self.running.iter().any(|r| r.run == id.run),
                        "two attempts of a run at once"
                    );
                    assert!(self.running.insert(id), "started twice");
                    self.started.push(id);
                }
                Step::Stop(id, _) => assert!(self.running.contains(&id), "stopped what is idle"),
                Step::End(id, _) => {
                    assert!(!self.running.contains(&id), "ended what runs");
                    assert!(self.over.insert(id), "ended twice");
                }
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

/// A machine, what it is given, and what it has to show for it.
struct Bench {
    lanes: Lanes,
    seen: Seen,
    run: i64,
    version: i64,
    /// Job 1 stays serial, 2 discard and 3 cover.
    fixed: bool,
}

impl Bench {
    fn send(&mut self, arrival: Arrival, steps: &mut Vec<Step>) {
        let (id, job) = (arrival.id, arrival.lane.job.0);
        let busy = self.seen.running_of(job) > 0;
        let discards = self.fixed && arrival.block == Block::Discard && id.attempt == 1;
        self.seen.jobs.insert(id, job);
        self.seen.sent.insert(id, self.seen.sent.len());
        self.lanes.arrive(arrival, steps);
        if discards && busy && self.lanes.closed.is_none() {
            assert_eq!(*steps, [Step::End(id, Unstarted::Busy)]);
        }
        let mut covers = self.lanes.by_key.values();
        assert!(
            !self.fixed || covers.all(|l| l.block != Block::Cover || l.waiting.len() <= 1),
            "cover keeps the newest only"
        );
    }

    fn apply(&mut self, op: &Op, steps: &mut Vec<Step>) {
        match *op {
            Op::Arrive {
                job,
                block,
                newer_version,
            } => {
                self.run += 1;
                self.version += i64::from(newer_version);
                self.send(self.arrival(self.run, 1, job, block), steps);
            }
            Op::Again { nth } => {
                let Some((&id, &job)) = self.seen.jobs.iter().nth(nth) else {
                    return;
                };
                if self.lanes.newest(id.run).is_some() {
                    let known = self.seen.jobs.keys().filter(|other| other.run == id.run);
                    let newest = known.map(|other| other.attempt).max().unwrap_or(0);
                    self.send(self.arrival(id.run.number(), newest + 1, job, 1), steps);
                }
            }
            Op::End { nth } => self.end(nth),
            Op::Cancel { nth } => {
                if let Some(id) = self.seen.jobs.keys().nth(nth) {
                    self.lanes.cancel(id.run, steps);
                }
            }
            Op::Room(room) => self.lanes.set_room(room),
            Op::Turn if self.lanes.closed.is_some() => self.lanes.reopen(),
            Op::Turn => self.lanes.close(Unstarted::Fenced, steps),
        }
    }

    fn arrival(&self, run: i64, attempt: u32, job: i64, block: u8) -> Arrival {
        Arrival {
            id: hold(run, attempt),
            version: self.version,
            backlog: 5,
            ..arrival(run, job, block_of(job, self.fixed, block))
        }
    }

    fn end(&mut self, nth: usize) {
        let running = self.seen.running.len().max(1);
        if let Some(&id) = self.seen.running.iter().nth(nth % running) {
            self.seen.running.remove(&id);
            self.seen.over.insert(id);
            self.lanes.ended(id);
        }
    }

    fn check(&self) {
        let (lanes, seen) = (&self.lanes, &self.seen);
        let open = seen.jobs.keys().filter(|id| !seen.over.contains(id));
        let nexts = lanes.runs.values().filter(|p| p.next.is_some()).count();
        assert_eq!(
            open.count(),
            lanes.held() + nexts,
            "each trigger has ended or is held"
        );
        assert_eq!(seen.running.len(), lanes.running());
        if self.fixed {
            let overlap = (1..=3).any(|job| seen.running_of(job) > 1);
            assert!(!overlap, "overlap in a lane");
            let serial = seen.started.iter().filter(|id| seen.jobs[id] == 1);
            let order: Vec<usize> = serial.map(|id| seen.sent[id]).collect();
            assert!(
                order.is_sorted(),
                "started in the order of publication: {order:?}"
            );
        }
    }
}

fn drive(ops: &[Op], fixed: bool) {
    let mut bench = Bench {
        lanes: Lanes::new(4),
        seen: Seen::default(),
        run: 0,
        version: 1,
        fixed,
    };
    for op in ops {
        let mut steps = Vec::new();
        bench.apply(op, &mut steps);
        bench.lanes.pump(&mut steps);
        bench.seen.take(&steps);
        bench.check();
    }
    bench.lanes.set_room(usize::MAX);
    while bench.lanes.held() > 0 {
        let mut steps = Vec::new();
        bench.lanes.pump(&mut steps);
        bench.seen.take(&steps);
        assert!(!bench.seen.running.is_empty(), "what is held gets to run");
        bench.end(0);
    }
    let empty = bench.lanes.by_key.is_empty() && bench.lanes.ready.is_empty();
    assert!(empty, "nothing is left behind");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn each_policy_keeps_its_promise(ops in prop::collection::vec(op(), 1..120)) {
        drive(&ops, true);
    }

    #[test]
    fn nothing_is_lost_when_policies_change(ops in prop::collection::vec(op(), 1..120)) {
        drive(&ops, false);
    }
}
