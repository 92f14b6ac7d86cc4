//! Lanes against a small model: any order of triggers, ends, cancellations, changes of the capacity, drains and restarts.
//!
//! The model has one lane for each policy. It says exactly which steps follow from each event. What happens when a newer
//! attempt meets an older one of its run, and when a policy changes, other tests say.
//!
//! `CUELINE_TEST_MODEL_CASES` sets the number of cases (200).

use proptest::sample::select;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};

use super::*;

const BLOCKS: [Block; 4] = [
    Block::Serial,
    Block::Discard,
    Block::Cover,
    Block::Parallel(2),
];
const BACKLOG: u32 = 2;

#[derive(Debug, Clone)]
enum Event {
    /// A trigger, or a copy of one.
    Trigger(LaneRequest),
    /// The handler of a running attempt has returned.
    End(AttemptKey),
    Cancel(RunKey),
    Capacity(usize),
    /// The worker drains, or its lease has ended.
    Close(NotStarted),
    Reopen,
    /// The journal has these requests, in the order of arrival. The running attempts are gone.
    Restart(Vec<LaneRequest>),
}

#[derive(Debug, Clone)]
struct Held {
    request: LaneRequest,
    /// The number of its arrival.
    arrival: u64,
    is_stopping: bool,
}

#[derive(Debug, Clone, Default)]
struct ModelLane {
    running: Vec<Held>,
    /// By place.
    waiting: Vec<Held>,
    /// If it could start one: its priority, and when it got its turn.
    turn: Option<(u8, u64)>,
}

#[derive(Debug, Clone)]
struct Model {
    capacity: usize,
    lanes: [ModelLane; BLOCKS.len()],
    closed: Option<NotStarted>,
    counter: u64,
    /// What follows from the last event.
    steps: Vec<Step>,
}

/// The lane of a run. Its number says it, so that a run has one job.
fn lane_of(run: RunKey) -> usize {
    usize::try_from(run.run.0).expect("small") % BLOCKS.len()
}

fn slots(lane: usize) -> usize {
    match BLOCKS[lane] {
        Block::Parallel(n) => usize::try_from(n).expect("small"),
        _ => 1,
    }
}

impl ModelLane {
    fn all(&self) -> impl Iterator<Item = &Held> {
        self.waiting.iter().chain(&self.running)
    }

    fn holds(&self, run: RunKey) -> Option<AttemptKey> {
        let mut keys = self.all().map(|held| held.request.key);
        keys.find(|key| key.run == run)
    }

    fn insert(&mut self, held: Held) {
        self.waiting.push(held);
        self.waiting.sort_by_key(|held| held.request.place());
    }
}

impl Model {
    fn next(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// A lane takes its turn anew when it becomes able to start an attempt, or one of another priority.
    fn give_turn(&mut self, lane: usize) {
        let number = self.next();
        let ModelLane {
            running,
            waiting,
            turn,
        } = &mut self.lanes[lane];
        let first = waiting.first().filter(|_| running.len() < slots(lane));
        let priority = first.map(|held| held.request.priority);
        if turn.map(|(priority, _)| priority) != priority {
            *turn = priority.map(|priority| (priority, number));
        }
    }

    /// The reason not to take the request. In a `cover` lane it takes the place of what is there.
    fn refusal(&mut self, request: &LaneRequest) -> Option<NotStarted> {
        if self.closed.is_some() {
            return self.closed;
        }
        let index = lane_of(request.key.run);
        let lane = &mut self.lanes[index];
        match BLOCKS[index] {
            Block::Discard => lane.all().next().map(|_| NotStarted::LaneBusy),
            Block::Serial | Block::Parallel(_) => {
                let free = slots(index) - lane.running.len();
                let room = usize::try_from(BACKLOG).expect("small") + free;
                (lane.waiting.len() >= room).then_some(NotStarted::BacklogFull(BACKLOG))
            }
            Block::Cover => {
                let mut all = lane.all();
                if let Some(newer) = all.find(|held| held.request.place() > request.place()) {
                    return Some(NotStarted::CoveredBy(newer.request.key.run));
                }
                drop(all);
                let why = NotStarted::CoveredBy(request.key.run);
                let covered = lane.waiting.drain(..);
                let ends = covered.map(|held| Step::End(held.request.key, why));
                self.steps.extend(ends);
                for held in lane.running.iter_mut().filter(|held| !held.is_stopping) {
                    held.is_stopping = true;
                    let stop = Step::Stop(held.request.key, StopReason::Covered);
                    self.steps.push(stop);
                }
                None
            }
        }
    }

    fn trigger(&mut self, request: LaneRequest) {
        let lane = lane_of(request.key.run);
        if self.lanes[lane].holds(request.key.run).is_some() {
            return;
        }
        match self.refusal(&request) {
            Some(why) => self.steps.push(Step::End(request.key, why)),
            None => self.wait(request),
        }
    }

    fn wait(&mut self, request: LaneRequest) {
        let lane = lane_of(request.key.run);
        let arrival = self.next();
        self.lanes[lane].insert(Held {
            request,
            arrival,
            is_stopping: false,
        });
        self.give_turn(lane);
    }

    fn cancel(&mut self, run: RunKey) {
        let index = lane_of(run);
        let lane = &mut self.lanes[index];
        if let Some(held) = lane.running.iter_mut().find(|h| h.request.key.run == run) {
            held.is_stopping = true;
            let stop = Step::Stop(held.request.key, StopReason::Cancelled);
            self.steps.push(stop);
        } else if let Some(key) = lane.holds(run) {
            lane.waiting.retain(|held| held.request.key != key);
            self.steps.push(Step::End(key, NotStarted::Cancelled));
        }
        self.give_turn(index);
    }

    /// All that wait, in the order of arrival.
    fn waiting(&self) -> Vec<LaneRequest> {
        let lanes = self.lanes.iter();
        let mut all: Vec<&Held> = lanes.flat_map(|lane| &lane.waiting).collect();
        all.sort_by_key(|held| held.arrival);
        all.into_iter().map(|held| held.request.clone()).collect()
    }

    fn close(&mut self, why: NotStarted) {
        self.closed = Some(why);
        let ended = self.waiting();
        let ends = ended.iter().map(|request| Step::End(request.key, why));
        self.steps.extend(ends);
        for lane in &mut self.lanes {
            lane.waiting.clear();
            lane.turn = None;
        }
    }

    fn running(&self) -> usize {
        self.lanes.iter().map(|lane| lane.running.len()).sum()
    }

    /// Of the lanes that could start an attempt: the highest priority, and then who has waited longest for a turn.
    fn start(&mut self) {
        while self.running() < self.capacity {
            let of = |index: usize| self.lanes[index].turn.map(|turn| (turn, index));
            let ready = (0..BLOCKS.len()).filter_map(of);
            let first = ready.min_by_key(|((priority, since), _)| (u8::MAX - priority, *since));
            let Some((_, index)) = first else { return };
            let lane = &mut self.lanes[index];
            let held = lane.waiting.remove(0);
            self.steps.push(Step::Start(held.request.key));
            lane.running.push(held);
            lane.turn = None;
            self.give_turn(index);
        }
    }
}

fn trigger() -> impl Strategy<Value = LaneRequest> {
    (0..32_i64, 1..=2_u32, 0..20_i64, 4..=5_u8).prop_map(|(run, attempt, at, priority)| {
        let key = key(run, attempt);
        let lane = lane_of(key.run);
        LaneRequest {
            key,
            backlog: BACKLOG,
            priority,
            at: Timestamp::from_millis(at),
            ..request(run, i64::try_from(lane).expect("small"), BLOCKS[lane])
        }
    })
}

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Event;

    fn init_state() -> BoxedStrategy<Self> {
        let model = |capacity| Self {
            capacity,
            lanes: Default::default(),
            closed: None,
            counter: 0,
            steps: Vec::new(),
        };
        (0..5_usize).prop_map(model).boxed()
    }

    fn transitions(model: &Self) -> BoxedStrategy<Event> {
        let others = prop_oneof![
            4 => (0..32_i64).prop_map(|n| Event::Cancel(run(n))),
            2 => (0..5_usize).prop_map(Event::Capacity),
            1 => select(vec![NotStarted::Draining, NotStarted::Fenced]).prop_map(Event::Close),
            2 => Just(Event::Reopen),
            1 => Just(Event::Restart(model.waiting())),
        ];
        let lanes = model.lanes.iter();
        let running: Vec<_> = lanes
            .flat_map(|lane| &lane.running)
            .map(|held| held.request.key)
            .collect();
        let ends = if running.is_empty() {
            Just(Event::Reopen).boxed()
        } else {
            select(running).prop_map(Event::End).boxed()
        };
        let triggers = trigger().prop_map(Event::Trigger);
        prop_oneof![20 => triggers, 8 => ends, 4 => others].boxed()
    }

    fn preconditions(model: &Self, event: &Event) -> bool {
        match event {
            Event::Trigger(request) => {
                let held = model.lanes[lane_of(request.key.run)].holds(request.key.run);
                held.is_none_or(|held| request.key.attempt <= held.attempt)
            }
            Event::Restart(waiting) => *waiting == model.waiting(),
            _ => true,
        }
    }

    fn apply(mut model: Self, event: &Event) -> Self {
        model.steps.clear();
        match event {
            Event::Trigger(request) => model.trigger(request.clone()),
            Event::End(key) => {
                let lane = lane_of(key.run);
                model.lanes[lane].running.retain(|h| h.request.key != *key);
                model.give_turn(lane);
            }
            Event::Cancel(run) => model.cancel(*run),
            Event::Capacity(capacity) => model.capacity = *capacity,
            Event::Close(why) => model.close(*why),
            Event::Reopen => model.closed = None,
            Event::Restart(waiting) => {
                model.lanes = Default::default();
                model.closed = None;
                for request in waiting {
                    model.wait(request.clone());
                }
            }
        }
        model.start();
        model
    }
}

struct LanesUnderTest;

impl StateMachineTest for LanesUnderTest {
    type SystemUnderTest = Lanes;
    type Reference = Model;

    fn init_test(model: &Model) -> Lanes {
        Lanes::new(model.capacity)
    }

    fn apply(mut lanes: Lanes, model: &Model, event: Event) -> Lanes {
        let mut steps = Vec::new();
        match event {
            Event::Trigger(request) => lanes.accept(request, &mut steps),
            Event::End(key) => lanes.finished(key),
            Event::Cancel(run) => lanes.cancel(run, &mut steps),
            Event::Capacity(capacity) => lanes.set_capacity(capacity),
            Event::Close(why) => lanes.close(why, &mut steps),
            Event::Reopen => lanes.reopen(),
            Event::Restart(waiting) => {
                lanes = Lanes::new(model.capacity);
                for request in waiting {
                    lanes.restore(request);
                }
            }
        }
        lanes.start_ready(&mut steps);
        assert_eq!(steps, model.steps);
        lanes
    }

    fn check_invariants(lanes: &Lanes, model: &Model) {
        let busy = model
            .lanes
            .iter()
            .filter(|lane| lane.all().next().is_some());
        let ready = model.lanes.iter().filter(|lane| lane.turn.is_some());
        assert_eq!(lanes.counts(), (busy.count(), ready.count()));
        assert_eq!(lanes.running(), model.running());
        assert_eq!(lanes.held(), model.running() + model.waiting().len());
    }
}

fn cases() -> ProptestConfig {
    let cases = std::env::var("CUELINE_TEST_MODEL_CASES").map(|n| n.parse().expect("a number"));
    ProptestConfig::with_cases(cases.unwrap_or(200))
}

prop_state_machine! {
    #![proptest_config(cases())]
    #[test]
    fn lanes_do_what_the_model_says(sequential 1..80 => LanesUnderTest);
}
