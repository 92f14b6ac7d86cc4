//! Registry and router against the [model](super::model): executors come, change, drain, leave and fall silent, answer pings or
//! not, and runs of every route are given to them and end.
//!
//! `CUELINE_TEST_MODEL_CASES` sets the number of cases (150).

use std::sync::Arc;

use cueline_model::{
    AttemptId, ExecutorId, Heartbeat, JobId, RunId, Session, Shard, Timestamp, Weight,
};
use cueline_store::ClaimedRun;
use proptest::prelude::*;
use proptest_state_machine::{StateMachineTest, prop_state_machine};
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::model::{DEAD_AFTER_MS, EXECUTORS, Event, Expected, Model, NewRun, ROUTES, id, name};
use crate::liveness::registry::Registry;
use crate::route::tests::run;
use crate::route::*;

const HOUR_MS: i64 = 3_600_000;

struct Node {
    router: Router,
    registry: Registry,
    outstanding: Arc<Outstanding>,
    /// As the model has them, in the same order.
    attempts: Vec<(AttemptId, ExecutorId)>,
    now: Timestamp,
    next_run: i64,
}

impl Node {
    fn claimed(&self, new: &NewRun) -> ClaimedRun {
        let route = match ROUTES[new.route] {
            "executor" => serde_json::json!({ "executor": "e2" }),
            "sharded" => serde_json::json!({ "sharded": ["", "", ""] }),
            other => other.into(),
        };
        let mut run = run(&route, new.turn);
        let job = Arc::get_mut(&mut run.job).expect("the only owner");
        job.id = JobId(i64::try_from(new.route).expect("small"));
        if new.in_zone_a {
            job.spec.selector = "zone=a".parse().expect("a selector");
        }
        let late_ms = if new.is_late { HOUR_MS } else { 0 };
        let fire_at = self.now.as_millis() - late_ms;
        run.id = RunId(self.next_run);
        run.attempt = new.attempt;
        run.fire_at = Timestamp::from_millis(fire_at);
        run.due_at = run.fire_at;
        run.executor = new.pinned.map(name);
        if ROUTES[new.route] == "sharded" {
            run.shard = Shard {
                index: new.shard,
                total: 3,
                item: None,
            };
        }
        run
    }

    fn batch(&mut self, runs: &[NewRun], expected: &[Expected]) {
        self.router.begin_batch();
        let mut given = Vec::new();
        for (new, expected) in runs.iter().zip(expected) {
            let run = self.claimed(new);
            let candidates = self.registry.candidates(&run.job.spec);
            let choice = self
                .router
                .choose(&run, &candidates, &self.registry, self.now);
            let one = |index: &usize| Choice::Executor(name(*index));
            let is_expected = match expected {
                Expected::One(index) => choice == one(index),
                Expected::Among(some) => some.iter().any(|index| choice == one(index)),
                Expected::NoExecutor => choice == Choice::NoExecutor,
                Expected::AwaitAnswers => choice == Choice::AwaitAnswers,
                Expected::AwaitRoom => choice == Choice::AwaitRoom,
            };
            let route = ROUTES[new.route];
            assert!(
                is_expected,
                "{route}: {choice:?} instead of {expected:?} for {new:?}"
            );
            // The model cannot know where a random one is, so it counts for none of them.
            if let (Choice::Executor(executor), Expected::One(_)) = (choice, expected) {
                self.router.record(&run, &executor, self.now);
                let executor = ExecutorId {
                    name: executor,
                    ..id(0)
                };
                self.attempts.push((run.attempt_id(), executor.clone()));
                given.push(executor);
            }
            self.next_run += 1;
        }
        for executor in given {
            assert!(self.registry.note_given(&executor).is_some(), "it is alive");
        }
    }
}

struct NodeUnderTest;

impl StateMachineTest for NodeUnderTest {
    type SystemUnderTest = Node;
    type Reference = Model;

    fn init_test(model: &Model) -> Node {
        let outstanding = Arc::new(Outstanding::default());
        let registry = Registry::new(DEAD_AFTER_MS.unsigned_abs());
        // Ends are counted from the first look on.
        registry.loads(&id(0).group, &[]);
        Node {
            router: Router::new(StdRng::seed_from_u64(1), outstanding.clone()),
            registry,
            outstanding,
            attempts: Vec::new(),
            now: Timestamp::from_millis(model.now),
            next_run: 1,
        }
    }

    fn apply(mut node: Node, model: &Model, event: Event) -> Node {
        match event {
            Event::Heartbeat(executor, announced) => {
                let heartbeat = Heartbeat {
                    executor: id(executor),
                    incarnation: "1".to_owned(),
                    session: Session(1),
                    capabilities: announced
                        .can_run
                        .then(|| "native:noop".to_owned())
                        .into_iter()
                        .collect(),
                    capacity: announced.capacity,
                    labels: [("zone".to_owned(), announced.zone.to_owned())].into(),
                    weight: Weight::clamped(announced.weight),
                    held: announced.held,
                    running: 0,
                    draining: announced.takes_none,
                    gone: announced.takes_none && announced.weight % 2 == 0,
                    refusal: None,
                };
                node.registry.record(&heartbeat, node.now);
            }
            Event::Advance(_) => {
                node.now = Timestamp::from_millis(model.now);
                node.registry.expire(node.now);
            }
            Event::Answer(executor, yes) => {
                let _ = node.registry.note_answer(&id(executor), yes, node.now);
            }
            Event::Batch(runs) => node.batch(&runs, &model.expected),
            Event::End(nth) => {
                let (attempt, executor) = node.attempts.remove(nth);
                node.registry.note_ended(std::iter::once(&executor));
                node.outstanding.end([attempt]);
            }
        }
        node
    }

    fn check_invariants(node: &Node, model: &Model) {
        for index in 0..EXECUTORS {
            let is_alive = node.registry.is_alive(&id(index));
            assert_eq!(is_alive, model.is_alive(index), "e{index}");
        }
    }
}

fn cases() -> ProptestConfig {
    let cases = std::env::var("CUELINE_TEST_MODEL_CASES").map(|n| n.parse().expect("a number"));
    ProptestConfig::with_cases(cases.unwrap_or(150))
}

prop_state_machine! {
    #![proptest_config(cases())]
    #[test]
    fn the_router_does_what_the_model_says(sequential 1..60 => NodeUnderTest);
}
