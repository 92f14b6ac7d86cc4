//! Two nodes, each with a connection to the broker of its own that can be cut.

use std::collections::BTreeMap;

use cueline_broker::ErrorKind;
use cueline_broker::conformance::{Fault, Faults, Operation};
use cueline_engine::ManualEngine;
use cueline_model::{AttemptId, OutcomeKind, RunState, Timestamp};
use cueline_protocol::Trigger;
use serde_json::json;

use crate::fixture::{FakeExecutor, Fixture, tick};

pub(super) const STEP_MS: i64 = 500;
pub(super) const CUT_AT: i64 = 10_000;
pub(super) const HEALED_AT: i64 = 40_000;
/// A node notices after 4 s, and hands its claims over one and a half seconds later, in the steps of this test.
pub(super) const LATEST_MS: i64 = 7_000;
pub(super) const LOST: Fault = Fault::Before(ErrorKind::Transient);

/// Two nodes and two executors. Jobs fire each second. Each run ends at once, unless the test keeps it at work.
pub(super) struct Cluster {
    pub(super) fixture: Fixture,
    pub(super) one: ManualEngine,
    pub(super) faults_of_one: Faults,
    /// `None` if it is dead.
    pub(super) two: Option<ManualEngine>,
    pub(super) faults_of_two: Faults,
    pub(super) executors: [FakeExecutor; 2],
    pub(super) now_ms: i64,
    pub(super) reaches: [bool; 2],
    /// The executor of each started attempt, and how late it started.
    pub(super) starts: BTreeMap<AttemptId, (&'static str, i64)>,
    /// Triggers of attempts that had started.
    pub(super) repeated: usize,
    /// The job and the fire time of each started attempt, in the order of the starts.
    pub(super) started: Vec<(String, Timestamp)>,
    /// Whether runs go on until [`end_all`](Self::end_all).
    pub(super) keeps_at_work: bool,
    /// Started attempts that have not ended, with the places of their executors.
    at_work: Vec<(usize, Trigger)>,
    /// What executors announce beside `native:work`.
    pub(super) also_runs: Option<&'static str>,
}

impl Cluster {
    pub(super) async fn new(jobs: &[(&str, serde_json::Value)]) -> Self {
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
            started: Vec::new(),
            keeps_at_work: false,
            at_work: Vec::new(),
            also_runs: None,
        };
        cluster.run_until(STEP_MS).await;
        for (job, rest) in jobs {
            cluster.fixture.apply(job, rest.clone()).await;
        }
        cluster
    }

    /// Jobs in lanes of their group, one without lanes of its group, and one that is skipped if it is late.
    pub(super) async fn with_jobs() -> Self {
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

    pub(super) async fn cut_one(&mut self, fault: Fault) {
        self.run_until(CUT_AT).await;
        self.faults_of_one.always(Operation::Publish, fault);
        self.reaches[0] = false;
    }

    pub(super) fn heal(&mut self) {
        self.faults_of_one.clear();
        self.faults_of_two.clear();
        self.reaches = [true, true];
    }

    /// The nodes take turns in being the first, so that both claim runs.
    pub(super) async fn run_until(&mut self, until_ms: i64) {
        while self.now_ms < until_ms {
            self.now_ms += STEP_MS;
            self.fixture.set(self.now_ms);
            for executor in &self.executors {
                let also = self.also_runs.map(str::to_owned);
                let sent = executor.heartbeat_with(|h| h.capabilities.extend(also));
                sent.await;
            }
            let is_one_first = (self.now_ms / 1_000) % 2 == 0;
            for is_one in [is_one_first, !is_one_first] {
                self.take_turn(is_one).await;
            }
            self.take_triggers().await;
            // A slow call may have taken longer than a step.
            self.now_ms = self.fixture.now().since_ms(Fixture::at(0));
        }
    }

    /// Ends what was kept at work. Later runs end at once.
    pub(super) async fn end_all(&mut self) {
        self.keeps_at_work = false;
        for (executor, trigger) in std::mem::take(&mut self.at_work) {
            self.end(executor, &trigger).await;
        }
    }

    async fn end(&self, executor: usize, trigger: &Trigger) {
        let now = self.fixture.now();
        let executor = &self.executors[executor];
        executor.ended(trigger, OutcomeKind::Succeeded, now).await;
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
        for at in 0..self.executors.len() {
            for trigger in self.executors[at].take().await {
                let executor = &self.executors[at];
                let attempt = trigger.attempt_id();
                let late_ms = now.since_ms(trigger.fire_at);
                if let Some((first, _)) = self.starts.get(&attempt) {
                    assert_eq!(*first, executor.name, "{attempt:?} is at two executors");
                    self.repeated += 1;
                } else {
                    self.starts.insert(attempt, (executor.name, late_ms));
                    let job = trigger.job.name.to_string();
                    self.started.push((job, trigger.fire_at));
                    if self.keeps_at_work {
                        self.at_work.push((at, trigger));
                    } else {
                        self.end(at, &trigger).await;
                    }
                }
            }
        }
    }

    /// Each fire time of the job in `from_ms..=to_ms` has one run, whose only attempt succeeded. Returns the latest start
    /// of those.
    pub(super) async fn latest_start(&self, job: &str, from_ms: i64, to_ms: i64) -> i64 {
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
