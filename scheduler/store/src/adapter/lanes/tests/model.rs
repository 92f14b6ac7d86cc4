//! Nodes against the decisions, in any interleaving of their statements. See [`rows`] for what a statement sees, and
//! [`node`] for the statements of a node.
//!
//! Runs come, also late, and become due. Nodes look, mark, look again and take marks back, publish with or without an
//! answer, and are lost between any two of these. Executors start, end, return and fail attempts. Runs are cancelled,
//! triggers are lost with their queue, and jobs move to other groups.
//!
//! A node that is lost between its mark and its second look leaves a mark of which no store knows whether it was accepted.
//! The model leaves out the steps that lead to a state that the decisions do not settle:
//!
//! - In a lane without places, a younger attempt is accepted at another executor and not confirmed. Its node is lost too,
//!   it is still alive, or the queue of the attempt was lost. The older mark is published, and both are accepted.
//! - In a lane with places, such marks and the accepted attempts are more than the places. All marks are published.
//!
//! `CUELINE_TEST_MODEL_CASES` sets the number of cases (600).

mod node;
mod rows;

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::select;

use self::node::{Ask, Node};
use self::rows::{LANES, Lane, Rows, Run, State};

const NODES: usize = 3;
/// Runs that have not ended.
const MAX_OPEN: usize = 5;

#[derive(Debug, Clone)]
enum Step {
    /// A run with this time in its lane, relative to now. It is due later by its jitter. The node that has fired it claims it.
    Add {
        lane: usize,
        at: i64,
        jitter: i64,
        node: usize,
    },
    Clock(i64),
    Claim(usize),
    Advance(usize, Ask),
    Publish(usize, Answer),
    Confirm(usize),
    /// An executor and one of its attempts.
    Report(usize, Report),
    Cancel(usize),
    /// The queue of a published attempt is lost. The node publishes it again.
    Reclaim(usize, usize),
    /// The job of a lane moves to another group.
    Move(usize),
    /// The node is lost. Another one takes its place.
    Lose(usize),
}

#[derive(Debug, Clone, Copy)]
enum Answer {
    Accepted,
    /// The queue is full.
    Refused,
    /// The trigger may be in the queue.
    None {
        is_published: bool,
    },
}

#[derive(Debug, Clone, Copy)]
enum Report {
    Started,
    Ended,
    Returned,
    Failed,
}

#[derive(Debug, Clone)]
struct Cluster {
    rows: Rows,
    nodes: [Node; NODES],
    /// The number of the next node.
    next_node: u32,
}

impl Cluster {
    fn new(slots: [Option<u32>; LANES]) -> Self {
        Self {
            rows: Rows {
                runs: Vec::new(),
                lanes: slots.map(|slots| Lane { slots, group: 0 }),
                now: 0,
            },
            nodes: [0, 1, 2].map(Node::new),
            next_node: 3,
        }
    }

    fn open(&self) -> Vec<&Run> {
        let runs = self.rows.runs.iter();
        runs.filter(|run| run.state != State::Ended).collect()
    }

    fn add(&mut self, lane: usize, at: i64, jitter: i64, node: usize) {
        if self.open().len() >= MAX_OPEN {
            return;
        }
        let id = self.rows.runs.len();
        let at = self.rows.now + at;
        self.rows.runs.push(Run {
            id: i64::try_from(id).expect("small"),
            lane,
            at,
            due_at: at + jitter,
            attempt: 1,
            state: State::Scheduled,
            executor: 0,
            published_group: None,
            claimed_by: Some(self.nodes[node].id),
            maybe_published: false,
            cancel_requested: false,
            is_accepted: false,
            is_published: false,
        });
    }

    fn publish(&mut self, node: usize, answer: Answer) {
        let node = &mut self.nodes[node];
        if node.pending.is_empty() {
            return;
        }
        let id = node.pending.remove(0);
        let run = self.rows.at_attempt(id).filter(|run| run.is_live());
        let Some(run) = run else { return };
        match answer {
            Answer::Accepted => {
                run.is_published = true;
                node.unconfirmed.push(id);
            }
            Answer::None { is_published } => {
                run.is_published |= is_published;
                node.unanswered.insert(id);
            }
            Answer::Refused if run.is_published || run.maybe_published => {
                node.unanswered.insert(id);
            }
            Answer::Refused => {
                run.is_accepted = false;
                run.take_back(None);
            }
        }
    }

    fn confirm(&mut self, node: usize) {
        for id in std::mem::take(&mut self.nodes[node].unconfirmed) {
            let run = self.rows.at_attempt(id);
            if let Some(run) = run.filter(|run| run.is_dispatching()) {
                run.state = State::Queued;
            }
        }
    }

    fn report(&mut self, nth: usize, report: Report) {
        let now = self.rows.now;
        let runs = self.rows.runs.iter_mut();
        let mut published: Vec<&mut Run> = runs
            .filter(|run| run.is_live() && run.is_published)
            .collect();
        if published.is_empty() {
            return;
        }
        let nth = nth % published.len();
        let run = &mut *published[nth];
        match report {
            Report::Started => run.state = State::Running,
            Report::Ended => run.end(),
            Report::Returned => run.schedule_again(run.at, now),
            Report::Failed => run.schedule_again(now + 1, now + 1),
        }
    }

    fn cancel(&mut self, nth: usize) {
        if self.rows.runs.is_empty() {
            return;
        }
        let nth = nth % self.rows.runs.len();
        let run = &mut self.rows.runs[nth];
        run.cancel_requested = true;
        if run.state == State::Scheduled {
            run.end();
        }
    }

    fn reclaim(&mut self, node: usize, nth: usize) {
        let node = self.nodes[node].id;
        let runs = self.rows.runs.iter_mut();
        let mut queued: Vec<&mut Run> = runs.filter(|run| run.state == State::Queued).collect();
        if queued.is_empty() {
            return;
        }
        let nth = nth % queued.len();
        let run = &mut *queued[nth];
        run.state = State::Dispatching;
        run.claimed_by = Some(node);
        run.maybe_published = true;
        run.is_published = false;
    }

    fn move_job(&mut self, lane: usize) {
        let group = self.rows.lanes[lane].group;
        self.rows.lanes[lane].group += 1;
        for run in self.rows.runs.iter_mut().filter(|run| run.lane == lane) {
            if run.is_live() {
                run.published_group = run.published_group.or(Some(group));
            } else {
                run.claimed_by = None;
            }
        }
    }

    /// Whether the state is one that the decisions do not settle, see the [module](self).
    fn is_unsettled(&self) -> bool {
        let is_left = |run: &&Run| {
            let is_marked = run.is_dispatching() && !run.is_accepted;
            is_marked && (run.claimed_by.is_none() || run.maybe_published)
        };
        self.rows.lanes.iter().enumerate().any(|(index, lane)| {
            let left = || self.rows.of_lane(index).filter(is_left);
            let mut accepted = self.rows.of_lane(index).filter(|run| run.is_accepted);
            if let Some(slots) = lane.slots {
                let used = accepted.count() + left().count();
                return left().count() > 0 && used > usize::try_from(slots).expect("small");
            }
            accepted.any(|run| {
                let is_older = |mark: &Run| {
                    mark.place() < run.place() && lane.executor(mark) != lane.executor(run)
                };
                run.is_dispatching() && left().any(is_older)
            })
        })
    }

    /// Undoes a step that leads to an unsettled state.
    fn apply_if_settled(&mut self, step: impl FnOnce(&mut Self)) {
        let before = self.clone();
        step(self);
        if self.is_unsettled() {
            *self = before;
        }
    }

    fn lose(&mut self, node: usize) {
        let lost = self.nodes[node].id;
        for run in &mut self.rows.runs {
            run.claimed_by = run.claimed_by.filter(|id| *id != lost);
        }
        self.nodes[node] = Node::new(self.next_node);
        self.next_node += 1;
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Add {
                lane,
                at,
                jitter,
                node,
            } => self.add(lane, at, jitter, node),
            Step::Clock(ms) => self.rows.now += ms,
            Step::Claim(node) => self.nodes[node].claim(&mut self.rows),
            Step::Advance(node, ask) => self.nodes[node].advance(&mut self.rows, ask),
            Step::Publish(node, answer) => self.publish(node, answer),
            Step::Confirm(node) => self.confirm(node),
            Step::Report(nth, report) => self.report(nth, report),
            Step::Cancel(nth) => self.cancel(nth),
            Step::Reclaim(node, nth) => {
                self.apply_if_settled(|cluster| cluster.reclaim(node, nth));
            }
            Step::Move(lane) => self.move_job(lane),
            Step::Lose(node) => self.apply_if_settled(|cluster| cluster.lose(node)),
        }
        self.check();
    }

    /// The accepted attempts of a lane without places are at one executor. Those of a lane with places are no more than
    /// these.
    fn check(&self) {
        for (index, lane) in self.rows.lanes.iter().enumerate() {
            let accepted = self.rows.of_lane(index).filter(|run| run.is_accepted);
            let accepted: Vec<&Run> = accepted.collect();
            let executors = accepted.iter().map(|run| lane.executor(run));
            let executors: BTreeSet<_> = executors.collect();
            let (used, places) = match lane.slots {
                None => (executors.len(), 1),
                Some(slots) => (accepted.len(), usize::try_from(slots).expect("small")),
            };
            assert!(used <= places, "{used} instead of {places}: {accepted:#?}");
        }
    }

    /// Without further faults, all runs come to their end. The nodes go in step: each executes a statement before any
    /// executes the next one, which is the worst for those that refuse each other.
    fn check_progress(mut self) {
        self.rows.now += 1_000;
        let ask = |node: usize| Ask {
            picks: u8::MAX,
            executor: node as u64,
            follows: true,
        };
        for _ in 0..4 * MAX_OPEN {
            if self.open().is_empty() {
                return;
            }
            for node in 0..NODES {
                self.apply(&Step::Claim(node));
            }
            for _ in 0..20 {
                for node in 0..NODES {
                    self.apply(&Step::Advance(node, ask(node)));
                }
            }
            for node in 0..NODES {
                while !self.nodes[node].pending.is_empty() {
                    self.apply(&Step::Publish(node, Answer::Accepted));
                }
                self.apply(&Step::Confirm(node));
            }
            for _ in 0..MAX_OPEN {
                self.apply(&Step::Report(0, Report::Ended));
            }
        }
        panic!("they wait for ever: {:#?}", self.open());
    }
}

fn step() -> impl Strategy<Value = Step> {
    let add = (
        select(vec![0, 0, 0, 0, 1]),
        -3..4_i64,
        select(vec![0, 3, 5_i64]),
        0..NODES,
    );
    let picks = prop_oneof![2 => Just(u8::MAX), 1 => any::<u8>()];
    let follows = prop::bool::weighted(0.7);
    let ask = (picks, 0..3_u64, follows).prop_map(|(picks, executor, follows)| Ask {
        picks,
        executor,
        follows,
    });
    let answer = prop_oneof![
        6 => Just(Answer::Accepted),
        1 => Just(Answer::Refused),
        2 => any::<bool>().prop_map(|is_published| Answer::None { is_published }),
    ];
    let report = select(vec![
        Report::Started,
        Report::Ended,
        Report::Ended,
        Report::Returned,
        Report::Failed,
    ]);
    prop_oneof![
        12 => add.prop_map(|(lane, at, jitter, node)| Step::Add { lane, at, jitter, node }),
        8 => (1..3_i64).prop_map(Step::Clock),
        6 => (0..NODES).prop_map(Step::Claim),
        60 => (0..NODES, ask).prop_map(|(node, ask)| Step::Advance(node, ask)),
        8 => (0..NODES, answer).prop_map(|(node, answer)| Step::Publish(node, answer)),
        6 => (0..NODES).prop_map(Step::Confirm),
        10 => (any::<usize>(), report).prop_map(|(nth, report)| Step::Report(nth, report)),
        1 => any::<usize>().prop_map(Step::Cancel),
        1 => (0..NODES, any::<usize>()).prop_map(|(node, nth)| Step::Reclaim(node, nth)),
        1 => (0..LANES).prop_map(Step::Move),
        4 => (0..NODES).prop_map(Step::Lose),
    ]
}

fn cases() -> ProptestConfig {
    let cases = std::env::var("CUELINE_TEST_MODEL_CASES").map(|n| n.parse().expect("a number"));
    ProptestConfig::with_cases(cases.unwrap_or(600))
}

/// A trigger without an answer, behind a mark of a lost node that is older. The job has moved, so each may be at another
/// executor than the other: the trigger waits, and the mark is published first.
#[test]
fn an_older_mark_of_a_lost_node_comes_before_a_trigger_without_an_answer() {
    let ask = Ask {
        picks: u8::MAX,
        executor: 2,
        follows: false,
    };
    let add = |at, node| Step::Add {
        lane: 0,
        at,
        jitter: 0,
        node,
    };
    let mut cluster = Cluster::new([None, None]);
    cluster.apply(&add(0, 1));
    for _ in 0..4 {
        cluster.apply(&Step::Advance(1, ask));
    }
    cluster.apply(&add(-1, 2));
    // It looks, decides and marks.
    for _ in 0..3 {
        cluster.apply(&Step::Advance(2, ask));
    }
    let answer = Answer::None {
        is_published: false,
    };
    for step in [
        Step::Publish(1, answer),
        Step::Move(0),
        Step::Lose(2),
        Step::Claim(1),
    ] {
        cluster.apply(&step);
    }
    cluster.check_progress();
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn lanes_keep_their_rules_in_any_interleaving(
        slots in prop::array::uniform2(select(vec![None, Some(1), Some(2)])),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut cluster = Cluster::new(slots);
        for step in &steps {
            cluster.apply(step);
        }
        cluster.check_progress();
    }
}
