//! Many fires under a random schedule of faults. Calls of the store and the broker fail before or after they were
//! done. Schedulers die and return. Executors come and go, forget triggers, fail, and report twice.

use std::collections::{BTreeMap, BTreeSet};

use cueline_broker::ErrorKind;
use cueline_broker::conformance::{Fault, Operation};
use cueline_engine::{EngineOptions, ManualEngine};
use cueline_model::{AttemptId, OutcomeKind, RunKind, RunState};
use cueline_protocol::Trigger;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

use crate::fixture::{FakeExecutor, Fixture, START_MS, actor, eventually, name};

/// Fire times are from 1 s to this second.
const SECONDS: i64 = 20;
/// Random simulations in one run of the test.
const SIMULATIONS: u64 = 4;

/// An executor with its journal.
struct SimulatedWorker {
    executor: FakeExecutor,
    /// The attempts that it has begun, and how they end.
    journal: BTreeMap<AttemptId, (Trigger, OutcomeKind)>,
    /// Attempts whose end is not reported yet.
    unreported: Vec<AttemptId>,
    is_present: bool,
}

struct Simulation {
    fixture: Fixture,
    rng: StdRng,
    nodes: Vec<(&'static str, Option<ManualEngine>)>,
    workers: Vec<SimulatedWorker>,
    /// The executors at which each attempt was seen.
    seen: BTreeMap<AttemptId, BTreeSet<&'static str>>,
    /// Attempts that a worker has begun and forgotten.
    forgotten: BTreeSet<AttemptId>,
    are_faults_over: bool,
}

impl Simulation {
    async fn new(seed: u64) -> Self {
        let fixture = Fixture::with_short_ack_wait().await;
        let mut workers = Vec::new();
        for name in ["e1", "e2", "e3"] {
            workers.push(SimulatedWorker {
                executor: fixture.executor(name).await,
                journal: BTreeMap::new(),
                unreported: Vec::new(),
                is_present: true,
            });
        }
        for (name, rest) in jobs() {
            fixture.apply(name, rest).await;
        }
        let mut rng = StdRng::seed_from_u64(seed);
        let for_the_store = StdRng::seed_from_u64(rng.random());
        fixture.store.fail_by_chance(for_the_store, 4);
        Self {
            fixture,
            rng,
            nodes: vec![("one", None), ("two", None)],
            workers,
            seen: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            are_faults_over: false,
        }
    }

    fn chance(&mut self, percent: u32) -> bool {
        !self.are_faults_over && self.rng.random_range(0..100) < percent
    }

    async fn step(&mut self) {
        if self.chance(30) {
            self.plan_broker_fault();
        }
        for at in 0..self.workers.len() {
            if self.chance(4) {
                self.workers[at].is_present ^= true;
            }
            let worker = &self.workers[at];
            let is_present = worker.is_present;
            // The heartbeat may fail too; the next one repeats it.
            let _ = worker
                .executor
                .try_heartbeat(|heartbeat| heartbeat.gone = !is_present)
                .await;
        }
        let first = self.rng.random_range(0..2);
        for at in [first, 1 - first] {
            self.node_turn(at).await;
        }
        for at in 0..self.workers.len() {
            self.worker_turn(at).await;
        }
        if self.chance(5) {
            self.cancel_random_run().await;
        }
    }

    fn plan_broker_fault(&mut self) {
        const OPERATIONS: [Operation; 6] = [
            Operation::Publish,
            Operation::Publish,
            Operation::Fetch,
            Operation::Settle,
            Operation::Announce,
            Operation::Declare,
        ];
        let operation = OPERATIONS[self.rng.random_range(0..OPERATIONS.len())];
        let fault = if self.rng.random() {
            Fault::Before(ErrorKind::Transient)
        } else {
            Fault::After(ErrorKind::Transient)
        };
        self.fixture.broker_faults.next(operation, fault, 1);
    }

    /// The node works, dies at one of its stages, or returns.
    async fn node_turn(&mut self, at: usize) {
        let dies = self.chance(4);
        let stage = self.rng.random_range(0..4);
        let seed = self.rng.random();
        let (name, node) = &mut self.nodes[at];
        let Some(engine) = node else {
            let options = EngineOptions {
                node_name: (*name).to_owned(),
                seed,
                ..EngineOptions::default()
            };
            *node = self.fixture.try_engine(options).await.ok();
            return;
        };
        if dies {
            let _ = engine.receive_heartbeats().await;
            if stage > 0 {
                let _ = engine.claim().await;
            }
            if stage > 1 {
                let _ = engine.prepare().await;
            }
            if stage > 2 {
                let _ = engine.ingest().await;
                let fault = crate::fixture::Fault::Before;
                self.fixture.store.fail_next("confirm_dispatch", fault);
                let _ = engine.publish().await;
            }
            *node = None;
        } else {
            let _ = engine.tick().await;
        }
    }

    async fn worker_turn(&mut self, at: usize) {
        for trigger in self.begin(at).await {
            let id = trigger.attempt_id();
            if self.chance(4) {
                // Lost with its disk after its start.
                if !self.workers[at].journal.contains_key(&id) {
                    self.forgotten.insert(id);
                }
                continue;
            }
            let kind = self.random_outcome();
            let worker = &mut self.workers[at];
            worker.journal.entry(id).or_insert((trigger, kind));
            // A known attempt is reported again.
            worker.unreported.push(id);
        }
        for run in self.workers[at].executor.received_cancellations() {
            let worker = &mut self.workers[at];
            for (id, (_, kind)) in &mut worker.journal {
                if id.run.0 == run && worker.unreported.contains(id) {
                    *kind = OutcomeKind::Cancelled;
                }
            }
        }
        for id in std::mem::take(&mut self.workers[at].unreported) {
            let busy = self.chance(40);
            let twice = self.chance(10);
            let worker = &mut self.workers[at];
            let (trigger, kind) = &worker.journal[&id];
            let executor = &worker.executor;
            if busy {
                worker.unreported.push(id);
                continue;
            }
            let now = self.fixture.now();
            let reported = executor.try_end(trigger, *kind, now).await;
            if reported.is_err() || twice {
                worker.unreported.push(id);
            }
        }
    }

    /// Takes triggers and records their starts. Some are lost before that, with the disk or because of a fault.
    async fn begin(&mut self, at: usize) -> Vec<Trigger> {
        let mut begun = Vec::new();
        let triggers = self.workers[at].executor.try_accept().await;
        for trigger in triggers.unwrap_or_default() {
            let name = self.workers[at].executor.name;
            let seen = self.seen.entry(trigger.attempt_id()).or_default();
            seen.insert(name);
            if !self.chance(4) {
                begun.push(trigger);
            }
        }
        let recorded = self.workers[at].executor.record_starts(&begun).await;
        recorded.map_or_else(|_| Vec::new(), |()| begun)
    }

    fn random_outcome(&mut self) -> OutcomeKind {
        if self.are_faults_over {
            return OutcomeKind::Succeeded;
        }
        match self.rng.random_range(0..100) {
            0..70 => OutcomeKind::Succeeded,
            70..80 => OutcomeKind::Failed,
            80..85 => OutcomeKind::TimedOut,
            85..92 => OutcomeKind::Lost,
            _ => OutcomeKind::Returned,
        }
    }

    async fn cancel_random_run(&mut self) {
        let runs = self.fixture.runs("rate").await;
        if !runs.is_empty() {
            let run = &runs[self.rng.random_range(0..runs.len())];
            let cancelled = self
                .fixture
                .real()
                .cancel_run(run.id, &actor("a test"))
                .await;
            cancelled.expect("cancels");
        }
    }

    /// Ends the faults and lets time pass until all runs have ended. Returns the number of failed store calls.
    async fn end_faults(&mut self) -> u32 {
        self.are_faults_over = true;
        let failed = self.fixture.store.heal();
        self.fixture.broker_faults.clear();
        for worker in &mut self.workers {
            worker.is_present = true;
        }
        let mut ms = SECONDS * 1_000;
        eventually("everything ends", async || {
            ms += 1_000;
            self.fixture.set(ms);
            self.step().await;
            self.reconcile().await;
            let stats = self.fixture.real().stats().await.expect("counts");
            let next = self.fixture.real().next_due_at().await.expect("looks");
            let unreported = self.workers.iter().any(|w| !w.unreported.is_empty());
            stats.live.iter().all(|(_, n)| *n == 0) && next.is_none() && !unreported
        })
        .await;
        failed
    }

    async fn reconcile(&mut self) {
        let Some(engine) = &mut self.nodes[0].1 else {
            return;
        };
        let answers = async {
            let mut asked = Vec::new();
            for worker in &mut self.workers {
                let held: Vec<AttemptId> = worker.journal.keys().copied().collect();
                asked.push(async move {
                    loop {
                        worker.executor.answer_holdings(&held).await;
                    }
                });
            }
            let [a, b, c] = asked.try_into().ok().expect("three workers");
            tokio::join!(a, b, c);
        };
        tokio::select! {
            compared = engine.reconcile(5_000) => { compared.expect("compares"); }
            () = answers => {}
        }
    }

    async fn check(&self) {
        for (job, every, shards) in [("rate", 1, 1), ("shards", 4, 2), ("parent", 3, 1)] {
            let expected = usize::try_from((SECONDS - 1) / every * shards).expect("small");
            self.check_ledger(job, expected).await;
        }
        let mut ends = BTreeMap::new();
        for worker in &self.workers {
            ends.extend(worker.journal.iter().map(|(id, (_, kind))| (*id, *kind)));
        }
        for (job, _) in jobs() {
            let mut unique = BTreeSet::new();
            for run in self.fixture.runs(job).await {
                assert!(run.state.is_terminal(), "{run:#?}");
                if run.kind == RunKind::Schedule {
                    let key = (run.fire_at, run.shard.index);
                    assert!(unique.insert(key), "fired twice: {run:#?}");
                }
                assert!(run.retries <= 2, "{run:#?}");
                self.check_attempts(&run, &ends);
            }
        }
        self.check_children().await;
    }

    async fn check_ledger(&self, job: &str, expected: usize) {
        let ledger = self
            .fixture
            .real()
            .ledger(
                &name(job),
                Fixture::at(1),
                Fixture::at(SECONDS * 1_000),
                1_000,
            )
            .await
            .expect("reads the ledger");
        assert_eq!(ledger.len(), expected, "of {job}");
        for entry in ledger {
            assert!(entry.run.is_some(), "{job} has no run for {entry:?}");
        }
    }

    fn check_attempts(&self, run: &cueline_store::Run, ends: &BTreeMap<AttemptId, OutcomeKind>) {
        for attempt in 1..=run.attempt {
            let id = AttemptId {
                run: run.id,
                attempt,
            };
            let Some(at) = self.seen.get(&id) else {
                assert_eq!(run.state, RunState::Cancelled, "never sent: {run:#?}");
                assert_eq!(attempt, run.attempt, "never sent: {run:#?}");
                continue;
            };
            assert_eq!(at.len(), 1, "attempt {attempt} was at {at:?}: {run:#?}");
            let was_lost = run.state == RunState::Lost && self.forgotten.contains(&id);
            if attempt == run.attempt && run.state != RunState::Cancelled && !was_lost {
                let end = ends[&id].state();
                assert_eq!(end, Some(run.state), "not what happened: {run:#?}");
            }
        }
        let beyond = AttemptId {
            run: run.id,
            attempt: run.attempt + 1,
        };
        assert!(!self.seen.contains_key(&beyond), "too many: {run:#?}");
    }

    /// Each successful parent run has one child run; no other run has one.
    async fn check_children(&self) {
        let parents = self.fixture.runs("parent").await;
        let succeeded = parents.iter().filter(|r| r.state == RunState::Succeeded);
        let expected: BTreeSet<_> = succeeded.map(|r| Some(r.id)).collect();
        let children = self.fixture.runs("child").await;
        let of: BTreeSet<_> = children.iter().map(|r| r.parent).collect();
        assert_eq!(of, expected);
        assert_eq!(children.len(), expected.len());
    }
}

fn jobs() -> Vec<(&'static str, Value)> {
    let end = Fixture::at(SECONDS * 1_000).to_string();
    let retry = json!({ "max": 2, "first": "1s", "jitter_percent": 0 });
    // No fire time is a misfire, however late it is found.
    let misfire = json!({ "grace": "1h" });
    let job = |schedule: Value, route: Value| {
        json!({
            "schedule": schedule, "route": route, "retry": retry, "misfire": misfire, "end_at": end, "on_lost": "rerun",
        })
    };
    let child = json!({
        "after": { "all": ["parent"] }, "route": "random", "retry": { "max": 0 }, "on_lost": "rerun",
    });
    vec![
        ("rate", job(json!({ "every": "1s" }), json!("random"))),
        (
            "shards",
            job(json!({ "every": "4s" }), json!({ "sharded": ["a", "b"] })),
        ),
        ("all", job(json!({ "every": "5s" }), json!("broadcast"))),
        ("delay", job(json!({ "after": "2s" }), json!("round"))),
        ("parent", job(json!({ "every": "3s" }), json!("random"))),
        ("child", child),
    ]
}

async fn simulate(seed: u64) {
    println!("CUELINE_TEST_SEED={seed}");
    let mut simulation = Simulation::new(seed).await;
    let mut ms = 0;
    while ms < SECONDS * 1_000 {
        ms += simulation.rng.random_range(100..900);
        simulation.fixture.clock.set(START_MS + ms);
        simulation.step().await;
    }
    let failed = simulation.end_faults().await;
    assert!(failed > 0, "the store never failed");
    simulation.check().await;
}

#[expect(
    clippy::disallowed_methods,
    reason = "new simulations at each run of the test; their seeds are printed"
)]
fn new_seed() -> u64 {
    rand::random()
}

#[tokio::test]
async fn nothing_is_lost_or_doubled_under_random_faults() {
    let given = std::env::var("CUELINE_TEST_SEED").ok();
    match given.and_then(|seed| seed.parse().ok()) {
        Some(seed) => simulate(seed).await,
        None => {
            for _ in 0..SIMULATIONS {
                simulate(new_seed()).await;
            }
        }
    }
}
