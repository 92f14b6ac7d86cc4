//! A node reaches the store and not the broker. Another node that reaches both publishes what is due, and nothing starts
//! twice.

use std::collections::BTreeMap;

use cueline_broker::ErrorKind;
use cueline_broker::conformance::{Fault, Faults, Operation};
use cueline_engine::ManualEngine;
use cueline_model::{AttemptId, OutcomeKind, RunState};
use cueline_store::TriggerRequest;
use serde_json::json;

use crate::fixture::{FakeExecutor, Fixture, actor, name, tick};

const STEP_MS: i64 = 500;
const CUT_AT: i64 = 10_000;
const HEALED_AT: i64 = 40_000;
/// A node notices after 4 s, and hands its claims over one and a half seconds later, in the steps of this test.
const LATEST_MS: i64 = 7_000;
const LOST: Fault = Fault::Before(ErrorKind::Transient);

/// Two nodes and two executors. Jobs fire each second, and each run ends at once.
struct Cluster {
    fixture: Fixture,
    one: ManualEngine,
    faults_of_one: Faults,
    /// `None` if it is dead.
    two: Option<ManualEngine>,
    faults_of_two: Faults,
    executors: [FakeExecutor; 2],
    now_ms: i64,
    reaches: [bool; 2],
    /// The executor of each started attempt, and how late it started.
    starts: BTreeMap<AttemptId, (&'static str, i64)>,
    /// Triggers of attempts that had started.
    repeated: usize,
}

impl Cluster {
    async fn new(jobs: &[(&str, serde_json::Value)]) -> Self {
        let fixture = Fixture::new().await;
        let (one, faults_of_one) = fixture.engine_apart("one").await;
        let (two, faults_of_two) = fixture.engine_apart("two").await;
        let executors = [fixture.executor("e1").await, fixture.executor("e2").await];
        let mut cluster = Self {
            fixture,
            one,
            faults_of_one,
            two: Some(two),
            faults_of_two,
            executors,
            now_ms: 0,
            reaches: [true, true],
            starts: BTreeMap::new(),
            repeated: 0,
        };
        cluster.run_until(STEP_MS).await;
        for (job, rest) in jobs {
            cluster.fixture.apply(job, rest.clone()).await;
        }
        cluster
    }

    /// Jobs in lanes of their group, one without lanes of its group, and one that is skipped if it is late.
    async fn with_jobs() -> Self {
        let every = json!({ "every": "1s" });
        let skip = json!({ "policy": "skip" });
        let jobs = [
            ("serial", json!({ "schedule": every })),
            (
                "apart",
                json!({ "schedule": every, "scope": "executor", "route": "round" }),
            ),
            ("skip", json!({ "schedule": every, "misfire": skip })),
        ];
        Box::pin(Self::new(&jobs)).await
    }

    async fn cut_one(&mut self, fault: Fault) {
        self.run_until(CUT_AT).await;
        self.faults_of_one.always(Operation::Publish, fault);
        self.reaches[0] = false;
    }

    fn heal(&mut self) {
        self.faults_of_one.clear();
        self.faults_of_two.clear();
        self.reaches = [true, true];
    }

    /// The nodes take turns in being the first, so that both claim runs.
    async fn run_until(&mut self, until_ms: i64) {
        while self.now_ms < until_ms {
            self.now_ms += STEP_MS;
            self.fixture.set(self.now_ms);
            for executor in &self.executors {
                executor.heartbeat().await;
            }
            let is_one_first = (self.now_ms / 1_000) % 2 == 0;
            for is_one in [is_one_first, !is_one_first] {
                self.take_turn(is_one).await;
            }
            self.take_triggers().await;
        }
    }

    async fn take_turn(&mut self, is_one: bool) {
        let reaches = self.reaches[usize::from(!is_one)];
        let node = if is_one {
            &mut self.one
        } else if let Some(two) = &mut self.two {
            two
        } else {
            return;
        };
        if reaches {
            node.receive_loopback_heartbeat();
            tick(node).await;
        } else if let Err(e) = node.tick().await {
            assert!(e.to_string().contains("Publish"), "{e}");
        }
    }

    async fn take_triggers(&mut self) {
        let now = self.fixture.now();
        for executor in &self.executors {
            for trigger in executor.take().await {
                let attempt = trigger.attempt_id();
                let late_ms = now.since_ms(trigger.fire_at);
                if let Some((at, _)) = self.starts.get(&attempt) {
                    assert_eq!(*at, executor.name, "{attempt:?} is at two executors");
                    self.repeated += 1;
                } else {
                    self.starts.insert(attempt, (executor.name, late_ms));
                    executor.ended(&trigger, OutcomeKind::Succeeded, now).await;
                }
            }
        }
    }

    /// Each fire time of the job in `from_ms..=to_ms` has one run, whose only attempt succeeded. Returns the latest start
    /// of those.
    async fn latest_start(&self, job: &str, from_ms: i64, to_ms: i64) -> i64 {
        let runs = self.fixture.runs(job).await;
        let runs = runs
            .iter()
            .filter(|run| (from_ms..=to_ms).contains(&run.fire_at.since_ms(Fixture::at(0))));
        let mut latest = 0;
        let mut fire_times = Vec::new();
        for run in runs {
            let end = (run.state, run.attempt);
            assert_eq!(end, (RunState::Succeeded, 1), "{job}: {run:#?}");
            let attempt = AttemptId {
                run: run.id,
                attempt: 1,
            };
            latest = latest.max(self.starts[&attempt].1);
            fire_times.push(run.fire_at);
        }
        let expected: Vec<_> = (from_ms..=to_ms)
            .filter(|ms| ms % 1_000 == 0)
            .map(Fixture::at)
            .collect();
        assert_eq!(fire_times, expected, "{job}");
        latest
    }
}

#[tokio::test]
async fn runs_of_a_node_that_is_cut_off_start_at_others_within_seconds() {
    let answer_lost = Fault::After(ErrorKind::Transient);
    for fault in [LOST, answer_lost, Fault::Unanswered] {
        let mut cluster = Box::pin(Cluster::with_jobs()).await;
        cluster.cut_one(fault).await;
        cluster.run_until(HEALED_AT).await;
        cluster.heal();
        cluster.run_until(HEALED_AT + 10_000).await;
        for job in ["serial", "apart", "skip"] {
            let at_first = cluster.latest_start(job, 2_000, CUT_AT + LATEST_MS).await;
            assert!(at_first <= LATEST_MS, "{fault:?} {job}: {at_first}");
            let then = CUT_AT + LATEST_MS + 1_000;
            let later = cluster.latest_start(job, then, HEALED_AT + 8_000).await;
            assert!(later <= STEP_MS, "{fault:?} {job}: {later}");
        }
        if fault == LOST {
            // Nothing was left to publish when the cut ended.
            assert_eq!(cluster.repeated, 0);
        }
    }
}

/// No node can publish, so no other node is better off with the claims. All fire times are planned in time.
#[tokio::test]
async fn in_an_outage_of_the_whole_broker_both_nodes_claim_as_before() {
    let mut cluster = Box::pin(Cluster::with_jobs()).await;
    cluster.cut_one(LOST).await;
    cluster.faults_of_two.always(Operation::Publish, LOST);
    cluster.reaches[1] = false;
    let rejoins = cluster.fixture.store.calls("rejoin_node");
    cluster.run_until(HEALED_AT).await;
    for job in ["serial", "apart", "skip"] {
        let runs = cluster.fixture.runs(job).await;
        let last = runs.last().expect("a run").fire_at;
        assert!(last >= Fixture::at(HEALED_AT), "{job}: {last}");
    }
    cluster.heal();
    cluster.run_until(HEALED_AT + 30_000).await;
    for job in ["serial", "apart", "skip"] {
        cluster.latest_start(job, 2_000, HEALED_AT + 20_000).await;
    }
    assert_eq!(cluster.fixture.store.calls("rejoin_node"), rejoins);
    assert_eq!(cluster.repeated, 0);
}

/// Its lease holds for longer than what it said about the broker counts.
#[tokio::test]
async fn a_node_that_is_cut_off_claims_again_when_the_other_one_is_dead_or_cut_off_too() {
    for is_dead in [true, false] {
        let mut cluster = Box::pin(Cluster::with_jobs()).await;
        cluster.cut_one(LOST).await;
        let alone_at = CUT_AT + 10_000;
        cluster.run_until(alone_at).await;
        if is_dead {
            cluster.two = None;
        } else {
            cluster.faults_of_two.always(Operation::Publish, LOST);
            cluster.reaches[1] = false;
        }
        cluster.run_until(alone_at + 8_000).await;
        let fired = cluster.fixture.runs("serial").await.len();
        cluster.run_until(HEALED_AT).await;
        assert!(cluster.fixture.runs("serial").await.len() >= fired + 10);
        assert_eq!(cluster.one.admin().claims_paused(), None);
        cluster.heal();
        cluster.run_until(HEALED_AT + 30_000).await;
        let late = cluster.latest_start("apart", HEALED_AT + 10_000, HEALED_AT + 28_000);
        assert_eq!(late.await, 0, "{is_dead}");
    }
}

#[tokio::test]
async fn a_run_that_is_triggered_at_a_node_that_is_cut_off_starts_at_another_one() {
    let mut cluster = Box::pin(Cluster::new(&[("job", json!({}))])).await;
    cluster.cut_one(LOST).await;
    cluster.run_until(CUT_AT + LATEST_MS).await;
    let admin = cluster.one.admin();
    let why = admin.claims_paused().expect("it claims nothing");
    assert!(why.contains("does not reach the broker"), "{why}");
    let request = TriggerRequest {
        job: name("job"),
        params: None,
        idempotency_key: None,
        run_at: None,
        by: actor("a test"),
        condition: cueline_store::Precondition::None,
    };
    let triggered = admin.trigger(request).await.expect("triggers");
    cluster.run_until(CUT_AT + LATEST_MS + 2 * STEP_MS).await;
    let run = cluster.fixture.run(triggered.runs[0]).await;
    assert_eq!(run.state, RunState::Succeeded);
}
