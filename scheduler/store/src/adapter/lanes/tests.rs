//! Several nodes, executors and failures against the decisions, step by step. Each step of a node sees what is visible
//! then: a node looks, marks, looks again, and takes marks back, and other nodes may do anything in between.

use std::collections::{BTreeSet, HashSet};

use cueline_model::policy::spread;
use cueline_model::{AttemptId, ExecutorName, JobId, RunId, Timestamp};

use super::*;

mod model;

const NODES: usize = 3;
const EXECUTORS: u64 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Scheduled,
    Dispatching,
    Queued,
    Ended,
}

#[derive(Debug, Clone)]
struct Run {
    state: State,
    at: i64,
    executor: u64,
    claimed_by: usize,
    maybe_published: bool,
    /// What no store knows: the node may publish it, or has done so.
    accepted: bool,
    /// The number of its start.
    started: Option<u64>,
}

impl Run {
    fn is_live(&self) -> bool {
        matches!(self.state, State::Dispatching | State::Queued)
    }
}

/// What a node is about to do.
#[derive(Debug, Clone)]
enum Step {
    Mark(Vec<DispatchRequest>),
    LookAgain(Vec<DispatchRequest>, HashSet<i64>),
    TakeBack(Vec<DispatchRequest>, HashSet<i64>, Vec<i64>),
}

struct Model {
    runs: Vec<Run>,
    steps: [Option<Step>; NODES],
    slots: Option<u32>,
    seed: u64,
    starts: u64,
}

fn name(executor: u64) -> ExecutorName {
    format!("e{executor}").parse().expect("a name")
}

fn index(run: i64) -> usize {
    usize::try_from(run).expect("an index")
}

impl Model {
    fn chance(&mut self, n: u64) -> u64 {
        self.seed = self.seed.wrapping_add(1);
        spread(self.seed) % n
    }

    fn place(&self, run: usize) -> LanePosition {
        (self.runs[run].at, i64::try_from(run).expect("an id"))
    }

    fn request(&self, run: usize, executor: u64) -> DispatchRequest {
        let of = &self.runs[run];
        DispatchRequest {
            attempt: AttemptId {
                run: RunId(i64::try_from(run).expect("an id")),
                attempt: 1,
            },
            job_version: 1,
            executor: name(executor),
            lane: Some(LanePlace {
                lane: LaneKey {
                    job: JobId(1),
                    shard: 0,
                },
                slots: self.slots,
                at: Timestamp::from_millis(of.at),
                due_at: Timestamp::from_millis(of.at),
                maybe_published: of.maybe_published,
            }),
            limits: None,
        }
    }

    /// What is visible now.
    fn facts(&self, node: usize, requests: &[DispatchRequest], group: &LaneGroup<'_>) -> LaneFacts {
        let in_batch: HashSet<i64> = requests.iter().map(|r| r.attempt.run.0).collect();
        let mut facts = LaneFacts::default();
        let first = |place: &mut Option<LanePosition>, new: LanePosition| {
            *place = Some(place.map_or(new, |old| old.min(new)));
        };
        for (id, run) in self.runs.iter().enumerate() {
            let place = self.place(id);
            if run.is_live() {
                facts.live += 1;
                facts.first_live.get_or_insert(place.1);
                let executor = name(run.executor);
                if executor != *group.executor {
                    facts.first_elsewhere.get_or_insert(place.1);
                    facts.is_published_elsewhere |= run.state == State::Queued;
                    let text = executor.to_string();
                    let known = facts.executors.get_or_insert((text.clone(), text.clone()));
                    known.0 = known.0.clone().min(text.clone());
                    known.1 = known.1.clone().max(text);
                    if run.state == State::Dispatching {
                        first(&mut facts.dispatching_elsewhere, place);
                    }
                } else if run.state == State::Dispatching && run.claimed_by != node {
                    first(&mut facts.other_node, place);
                }
            } else if run.state == State::Scheduled && !in_batch.contains(&place.1) {
                first(&mut facts.waiting, place);
                facts.ahead += u64::from(place < group.first);
            }
        }
        facts
    }

    fn all_facts(&self, node: usize, requests: &[DispatchRequest]) -> Vec<LaneFacts> {
        let groups = lane_groups(requests);
        groups
            .iter()
            .map(|g| self.facts(node, requests, g))
            .collect()
    }

    /// The node begins a batch: it looks.
    fn look(&mut self, node: usize) {
        let executor = self.chance(EXECUTORS);
        let mut requests = Vec::new();
        for id in 0..self.runs.len() {
            let run = &self.runs[id];
            let is_open = run.state == State::Scheduled
                || (run.state == State::Dispatching && run.maybe_published && !run.accepted);
            if run.claimed_by == node && is_open && requests.len() < 3 {
                let executor = if run.maybe_published {
                    run.executor
                } else {
                    executor
                };
                requests.push(self.request(id, executor));
            }
        }
        // Requests of a lane without places name one executor, apart from those that may be published.
        let facts = self.all_facts(node, &requests);
        let before = before_mark(&requests, &lane_groups(&requests), &facts);
        for taken in before.take_back {
            let run = &mut self.runs[index(requests[taken].attempt.run.0)];
            assert!(!run.accepted, "it was published");
            run.state = State::Scheduled;
            run.maybe_published = false;
        }
        // Most of the time it follows to the executor that has the lane.
        let holder = before.waits.iter().find_map(|w| w.holder.clone());
        if let Some(holder) = holder
            && self.chance(4) > 0
        {
            for request in requests.iter_mut().filter(|r| !may_be_marked(r)) {
                request.executor = holder.clone();
            }
            requests.retain(|r| self.runs[index(r.attempt.run.0)].state == State::Scheduled);
            let facts = self.all_facts(node, &requests);
            let before = before_mark(&requests, &lane_groups(&requests), &facts);
            self.proceed(node, &requests, &before.proceed);
            return;
        }
        self.proceed(node, &requests, &before.proceed);
    }

    fn proceed(&mut self, node: usize, requests: &[DispatchRequest], proceed: &[usize]) {
        let requests: Vec<_> = proceed.iter().map(|i| requests[*i].clone()).collect();
        if !requests.is_empty() {
            self.steps[node] = Some(Step::Mark(requests));
        }
    }

    fn advance(&mut self, node: usize) {
        match self.steps[node].take() {
            None => self.look(node),
            Some(Step::Mark(requests)) => {
                let mut marked = HashSet::new();
                for request in requests.iter().filter(|r| !may_be_marked(r)) {
                    let id = request.attempt.run.0;
                    let run = &mut self.runs[index(id)];
                    if run.state == State::Scheduled && run.claimed_by == node {
                        run.state = State::Dispatching;
                        run.executor = request.executor.as_str()[1..].parse().expect("a number");
                        marked.insert(id);
                    }
                }
                self.steps[node] = Some(Step::LookAgain(requests, marked));
            }
            Some(Step::LookAgain(requests, marked)) => {
                let facts = self.all_facts(node, &requests);
                let lost = after_mark(&requests, &lane_groups(&requests), &facts, |id| {
                    marked.contains(&id.run.0)
                });
                let lost: Vec<i64> = lost.into_iter().map(|wait| wait.attempt.run.0).collect();
                self.check_order(&requests, &marked, &lost);
                self.steps[node] = Some(Step::TakeBack(requests, marked, lost));
            }
            Some(Step::TakeBack(requests, marked, lost)) => {
                for id in &lost {
                    self.runs[index(*id)].state = State::Scheduled;
                }
                for request in &requests {
                    let id = request.attempt.run.0;
                    let run = &mut self.runs[index(id)];
                    let is_own = run.state == State::Dispatching && run.claimed_by == node;
                    if is_own
                        && (marked.contains(&id) || run.maybe_published)
                        && !lost.contains(&id)
                    {
                        run.accepted = true;
                    }
                }
            }
        }
    }

    /// The node ends. Its runs are taken over.
    fn crash(&mut self, node: usize) {
        // Two nodes that marked for two executors at the same moment and both end before their next statement: the one
        // case that the decisions do not settle.
        let unknown: BTreeSet<u64> = self
            .runs
            .iter()
            .filter(|run| run.state == State::Dispatching)
            .map(|run| run.executor)
            .collect();
        if unknown.len() > 1 && self.slots.is_none() {
            return;
        }
        self.steps[node] = None;
        let next = (node + 1) % NODES;
        for run in self.runs.iter_mut().filter(|run| run.claimed_by == node) {
            run.claimed_by = next;
            // An accepted one may be published; it is asked for again.
            run.maybe_published |= run.state == State::Dispatching;
        }
    }

    fn confirm(&mut self) {
        let first = self
            .runs
            .iter_mut()
            .find(|r| r.state == State::Dispatching && r.accepted);
        if let Some(run) = first {
            run.state = State::Queued;
        }
    }

    /// The executor starts its first attempt and ends it.
    fn end(&mut self) {
        let queued = (0..self.runs.len()).filter(|id| self.runs[*id].state == State::Queued);
        if let Some(id) = queued.min_by_key(|id| self.place(*id)) {
            self.starts += 1;
            self.runs[id].started = Some(self.starts);
            self.runs[id].state = State::Ended;
            self.runs[id].accepted = false;
        }
    }

    /// The attempts that are queued at an executor return.
    fn fail_over(&mut self, executor: u64) {
        for run in &mut self.runs {
            if run.state == State::Queued && run.executor == executor {
                run.state = State::Scheduled;
                run.accepted = false;
                run.maybe_published = false;
            }
        }
    }

    /// No accepted attempt overtakes a run that waits or was returned.
    fn check_order(&self, requests: &[DispatchRequest], marked: &HashSet<i64>, lost: &[i64]) {
        let in_batch = |id: usize| requests.iter().any(|r| index(r.attempt.run.0) == id);
        let runs = self.runs.iter().enumerate();
        let waiting = runs.filter(|(id, run)| run.state == State::Scheduled && !in_batch(*id));
        let Some(oldest) = waiting.map(|(id, _)| self.place(id)).min() else {
            return;
        };
        for run in marked.iter().filter(|run| !lost.contains(run)) {
            let place = self.place(index(*run));
            assert!(
                place < oldest,
                "seed {}: {run} overtakes {oldest:?}",
                self.seed
            );
        }
    }

    fn check(&self) {
        let live: Vec<&Run> = self
            .runs
            .iter()
            .filter(|r| r.is_live() && r.accepted)
            .collect();
        if let Some(slots) = self.slots {
            assert!(
                live.len() <= usize::try_from(slots).expect("few"),
                "{:#?}",
                self.runs
            );
        } else {
            let executors: BTreeSet<u64> = live.iter().map(|run| run.executor).collect();
            assert!(executors.len() <= 1, "seed {}: {:#?}", self.seed, self.runs);
        }
    }

    fn step(&mut self) {
        match self.chance(20) {
            0..=2 if self.runs.len() < 40 => {
                let at = i64::try_from(self.runs.len()).expect("few");
                let claimed_by = usize::try_from(self.chance(NODES as u64)).expect("a node");
                // Some come late.
                let late = if self.chance(8) == 0 { 3 } else { 0 };
                self.runs.push(Run {
                    at: at - late,
                    state: State::Scheduled,
                    executor: 0,
                    claimed_by,
                    maybe_published: false,
                    accepted: false,
                    started: None,
                });
            }
            3..=13 => {
                let node = usize::try_from(self.chance(NODES as u64)).expect("a node");
                self.advance(node);
            }
            14 | 15 => self.confirm(),
            16 | 17 => self.end(),
            18 => {
                let executor = self.chance(EXECUTORS);
                self.fail_over(executor);
            }
            _ => {
                let node = usize::try_from(self.chance(NODES as u64)).expect("a node");
                self.crash(node);
            }
        }
        self.check();
    }
}

fn simulate(seed: u64, slots: Option<u32>) -> Model {
    let mut model = Model {
        runs: Vec::new(),
        steps: [const { None }; NODES],
        slots,
        seed: seed << 20,
        starts: 0,
    };
    for _ in 0..600 {
        model.step();
    }
    // Without further faults all runs come to their end.
    for _ in 0..4_000 {
        let node = usize::try_from(model.chance(NODES as u64)).expect("a node");
        model.advance(node);
        model.confirm();
        model.end();
        model.check();
    }
    model
}

#[test]
fn accepted_attempts_of_a_lane_are_at_one_executor() {
    for seed in 0..60 {
        let model = simulate(seed, None);
        let open = model.runs.iter().filter(|r| r.state != State::Ended);
        assert_eq!(open.count(), 0, "seed {seed}: {:#?}", model.runs);
    }
}

#[test]
fn accepted_attempts_of_a_lane_with_places_are_no_more_than_these() {
    for seed in 0..40 {
        let model = simulate(seed, Some(3));
        let open = model.runs.iter().filter(|r| r.state != State::Ended);
        assert_eq!(open.count(), 0, "seed {seed}: {:#?}", model.runs);
    }
}

/// A mark reads the whole lane of its run, and there may be thousands of runs in it.
#[test]
fn several_runs_of_a_lane_are_looked_at_together_before_their_marks() {
    for slots in [None, Some(3)] {
        let of_job = |job: i64, run: i64| DispatchRequest {
            attempt: AttemptId {
                run: RunId(run),
                attempt: 1,
            },
            job_version: 1,
            executor: name(1),
            lane: Some(LanePlace {
                lane: LaneKey {
                    job: JobId(job),
                    shard: 0,
                },
                slots,
                at: Timestamp::from_millis(run),
                due_at: Timestamp::from_millis(run),
                maybe_published: false,
            }),
            limits: None,
        };
        let batch = [of_job(1, 0), of_job(2, 1), of_job(1, 2), of_job(3, 3)];
        assert_eq!(marked_if_idle(&batch, &lane_groups(&batch)), [1, 3]);
    }
}

/// An attempt that may be published, and a published one, were both given to one executor. Then their job moved.
#[test]
fn an_attempt_that_may_be_published_does_not_leave_the_earlier_group() {
    let lane = LaneKey {
        job: JobId(1),
        shard: 0,
    };
    let request = DispatchRequest {
        attempt: AttemptId {
            run: RunId(2),
            attempt: 1,
        },
        job_version: 1,
        executor: name(1),
        lane: Some(LanePlace {
            lane,
            slots: None,
            at: Timestamp::from_millis(2),
            due_at: Timestamp::from_millis(2),
            maybe_published: true,
        }),
        limits: None,
    };
    let requests = [request];
    for is_moved in [false, true] {
        let facts = LaneFacts {
            live: 2,
            first_live: Some(1),
            first_elsewhere: Some(1),
            is_published_elsewhere: true,
            is_moved,
            executors: Some(("e1".to_owned(), "e1".to_owned())),
            dispatching_elsewhere: is_moved.then_some((2, 2)),
            ..LaneFacts::default()
        };
        let before = before_mark(&requests, &lane_groups(&requests), &[facts]);
        assert_eq!(before.take_back.is_empty(), is_moved);
        assert_eq!(before.waits[0].undecided, is_moved);
        assert!(before.proceed.is_empty());
    }
}
