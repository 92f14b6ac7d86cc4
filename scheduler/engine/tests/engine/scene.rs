//! Where the tests play: a real store and a real broker in a folder of their own, under a clock that the test sets.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::conformance::{Faults, Faulty};
use cueline_broker::{Broker, BrokerOptions, Outgoing, QueueId};
use cueline_broker_embedded::{EmbeddedDriver, EmbeddedOptions};
use cueline_engine::{Engine, EngineOptions, ManualEngine};
use cueline_model::{JobSpec, RunId, RunState, Timestamp};
use cueline_runtime::{Clock as _, Lifecycle, ManualClock};
use cueline_store::{Run, RunFilter, Store, TriggerRequest};
use cueline_store_sqlite::{SqliteOptions, SqliteStore};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::failing_store::FailingStore;

/// The time at which each test begins: a whole minute.
pub(crate) const START_MS: i64 = 1_800_000_000_000;

/// What should happen has to happen within this time; a slow machine needs some of it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Scene {
    pub(crate) clock: ManualClock,
    pub(crate) store: Arc<FailingStore>,
    pub(crate) broker: Broker,
    pub(crate) broker_faults: Faults,
    _folder: TempDir,
}

impl Scene {
    pub(crate) async fn new() -> Self {
        Self::with(EmbeddedOptions::default()).await
    }

    /// Messages that were handed out and not settled come back soon, so that a lost ack is seen in the time of a test.
    pub(crate) async fn with_short_ack_wait() -> Self {
        Self::with(EmbeddedOptions {
            ack_wait: Duration::from_millis(250),
            ..EmbeddedOptions::default()
        })
        .await
    }

    pub(crate) async fn with(options: EmbeddedOptions) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let clock = ManualClock::at(START_MS);
        let shown = clock.clone();
        let sqlite = SqliteOptions {
            now: Some(Arc::new(move || Timestamp::from_millis(shown.now_ms()))),
            ..SqliteOptions::default()
        };
        let store = SqliteStore::open(&folder.path().join("store.db"), sqlite).await;
        let store = Arc::new(store.expect("the store opens"));
        let driver = EmbeddedDriver::open(&folder.path().join("broker.db"), options).await;
        let faulty = Faulty::new(Arc::new(driver.expect("the broker opens")));
        let broker_faults = faulty.faults();
        // Errors reach the engine at once: that the port itself repeats calls is its own suite's matter.
        let impatient = BrokerOptions {
            retry_for: Duration::ZERO,
            ..BrokerOptions::default()
        };
        Self {
            store: Arc::new(FailingStore::new(store, clock.clone())),
            clock,
            broker: Broker::new(faulty, impatient),
            broker_faults,
            _folder: folder,
        }
    }

    /// A scheduler node of that name.
    pub(crate) async fn engine(&self, node: &str) -> ManualEngine {
        self.engine_with(EngineOptions {
            node_name: node.to_owned(),
            ..EngineOptions::default()
        })
        .await
    }

    pub(crate) async fn engine_with(&self, options: EngineOptions) -> ManualEngine {
        self.try_engine(options).await.expect("the engine starts")
    }

    pub(crate) async fn try_engine(
        &self,
        options: EngineOptions,
    ) -> Result<ManualEngine, cueline_engine::EngineError> {
        let clock = Arc::new(self.clock.clone());
        ManualEngine::new(
            self.store.clone(),
            self.broker.clone(),
            clock,
            options,
            None,
        )
        .await
    }

    /// A scheduler node that moves by itself, until `lifecycle` stops it.
    pub(crate) async fn start(&self, lifecycle: &Lifecycle) -> Engine {
        let started = Engine::start(
            self.store.clone(),
            self.broker.clone(),
            Arc::new(self.clock.clone()),
            EngineOptions::default(),
            None,
            lifecycle,
        );
        started.await.expect("the engine starts")
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.clock.now_ms())
    }

    /// So many milliseconds after the start.
    pub(crate) fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(START_MS + ms)
    }

    /// Sets the clock to so many milliseconds after the start.
    pub(crate) fn set(&self, ms: i64) {
        self.clock.set(START_MS + ms);
    }

    /// The store without its faults.
    pub(crate) fn real(&self) -> &dyn Store {
        self.store.real()
    }

    /// Creates or changes a job: `rest` over the least that a definition needs.
    pub(crate) async fn apply(&self, name: &str, rest: Value) {
        let specs = [spec(name, rest)];
        let applied = self.real().apply_jobs(&specs, false).await;
        applied.expect("the job is accepted");
    }

    pub(crate) async fn pause(&self, job: &str) {
        let paused = self
            .real()
            .set_job_enabled(&name(job), false, "a test")
            .await;
        paused.expect("pauses");
    }

    pub(crate) async fn delete(&self, job: &str) {
        let deleted = self.real().delete_job(&name(job), "a test").await;
        deleted.expect("deletes");
    }

    /// Runs a job now; its first run.
    pub(crate) async fn trigger(&self, job: &str) -> RunId {
        let request = TriggerRequest {
            job: name(job),
            params: None,
            idempotency_key: None,
            run_at: None,
            by: "a test".to_owned(),
        };
        let triggered = self.real().trigger(&request).await.expect("triggers");
        triggered.runs[0]
    }

    pub(crate) async fn run(&self, id: RunId) -> Run {
        self.real().run(id).await.expect("the run exists").run
    }

    pub(crate) async fn state(&self, id: RunId) -> RunState {
        self.run(id).await.state
    }

    /// The words in a run's timeline.
    pub(crate) async fn timeline(&self, id: RunId) -> Vec<String> {
        let detail = self.real().run(id).await.expect("the run exists");
        detail.timeline.into_iter().map(|t| t.event).collect()
    }

    /// A job's runs, oldest first.
    pub(crate) async fn runs(&self, job: &str) -> Vec<Run> {
        let filter = RunFilter {
            job: Some(name(job)),
            limit: 1_000,
            ..RunFilter::default()
        };
        let mut runs = self.real().runs(&filter).await.expect("lists runs");
        runs.reverse();
        runs
    }

    /// The only run that the job has.
    pub(crate) async fn only_run(&self, job: &str) -> Run {
        let mut runs = self.runs(job).await;
        assert_eq!(runs.len(), 1, "{runs:#?}");
        runs.remove(0)
    }

    /// The states of a job's runs, oldest first.
    pub(crate) async fn states(&self, job: &str) -> Vec<RunState> {
        self.runs(job).await.iter().map(|r| r.state).collect()
    }

    /// Puts a message as it is into a queue.
    pub(crate) async fn put(&self, queue: &QueueId, payload: impl Into<Bytes>) {
        let message = Outgoing {
            queue: queue.clone(),
            topic: "test".to_owned(),
            id: String::new(),
            payload: payload.into(),
        };
        let answers = self.broker.publish(&[message]).await.expect("publishes");
        assert_eq!(answers, [Ok(())]);
    }
}

/// A definition: `rest` over the least that one needs.
pub(crate) fn spec(name: &str, rest: Value) -> JobSpec {
    let mut whole = json!({
        "name": name,
        "group": "default",
        "schedule": { "manual": true },
        "handler": { "native": "work" },
    });
    if let (Value::Object(whole), Value::Object(rest)) = (&mut whole, rest) {
        whole.extend(rest);
    }
    serde_json::from_value(whole).expect("a valid definition")
}

pub(crate) fn name<T: std::str::FromStr>(text: &str) -> T
where
    T::Err: std::fmt::Debug,
{
    text.parse().expect("a valid name")
}

/// One turn of every stage; how many triggers were published.
pub(crate) async fn tick(engine: &mut ManualEngine) -> usize {
    engine
        .tick()
        .await
        .expect("a turn without faults")
        .published
}

/// Does `step` until it says that it is done.
pub(crate) async fn until(what: &str, mut step: impl AsyncFnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !step().await {
        assert!(Instant::now() < give_up, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
