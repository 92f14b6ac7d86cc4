//! The fixture of the cases: a store with a settable clock, the usual steps as methods, and a simple planner.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use cueline_model::{
    Actor, ActorKind, After, AfterOn, AttemptEvent, AttemptId, Block, ExecutorId, ExecutorName,
    Fence, GroupName, HandlerSpec, Heartbeat, Job, JobId, JobName, JobSpec, LogLine, LogStream,
    Misfire, OnLost, Outcome, OutcomeKind, Parents, Retry, Route, RunId, RunState, Schedule, Scope,
    Timestamp, expand,
};

use crate::{
    Accounts, AttemptReport, ClaimedRun, DispatchRequest, FireDueRequest, FiredRuns, IngestSummary,
    NodeId, Plan, PlannedRun, Planner, Run, Store, StoreError, TriggerRequest,
};

/// The start time of the cases: a whole minute.
pub(super) const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

/// A lease that outlasts each case.
pub(super) const LONG_LEASE_MS: u64 = 365 * 24 * 3_600_000;

/// A database of its own for one case.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Opens the database again at each call, as another process would.
    async fn open(&self) -> Arc<dyn Store>;

    /// As [`open`](Self::open), for the accounts in the same database.
    async fn open_accounts(&self) -> Arc<dyn Accounts>;

    /// Runs a statement beside the store, as another program would. Returns the text that it selects; empty if none.
    async fn sql(&self, statement: &'static str) -> String;
}

/// The database's clock, set by the case. Clones show the same time.
#[derive(Debug, Clone)]
pub struct TestClock(Arc<AtomicI64>);

impl Default for TestClock {
    fn default() -> Self {
        Self(Arc::new(AtomicI64::new(START.as_millis())))
    }
}

impl TestClock {
    /// The time that the database has to return.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::SeqCst))
    }

    /// Advances the time.
    pub fn advance(&self, by_ms: u64) {
        let by = i64::try_from(by_ms).expect("a sensible step");
        self.0.fetch_add(by, Ordering::SeqCst);
    }
}

/// The fixture of one case.
pub struct Fixture {
    /// The store under test.
    pub store: Arc<dyn Store>,
    /// Its clock.
    pub clock: TestClock,
    /// Opens further connections to the same database.
    pub harness: Box<dyn Harness>,
    nodes: AtomicI64,
}

impl std::fmt::Debug for Fixture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fixture")
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

/// Fires each due job once for its fire time, on time or not.
#[derive(Debug, Clone, Copy)]
pub(super) struct EachFireTime;

impl Planner for EachFireTime {
    fn plan(&self, job: &Job, due: Timestamp, _now: Timestamp, live: &[ExecutorName]) -> Plan {
        let waits = matches!(job.spec.schedule, Schedule::FixedDelay { .. });
        Plan {
            runs: runs_at(job, due, live),
            next_fire: if waits { None } else { job.spec.next_fire(due) },
        }
    }
}

/// The runs of one fire time, one for each shard.
pub(super) fn runs_at(job: &Job, at: Timestamp, live: &[ExecutorName]) -> Vec<PlannedRun> {
    expand(&job.spec.route, live)
        .into_iter()
        .map(|shard| PlannedRun {
            fire_at: at,
            due_at: job.spec.due_at(job.id, at),
            shard: shard.shard,
            executor: shard.executor,
            skipped: None,
        })
        .collect()
}

/// A name for tests.
pub(super) fn name<T: std::str::FromStr>(text: &str) -> T
where
    T::Err: std::fmt::Debug,
{
    text.parse().expect("a valid name")
}

/// A user for tests.
pub(super) fn actor(name: &str) -> Actor {
    Actor::new(ActorKind::User, name)
}

/// A job that fires each second.
pub(super) fn each_second(job: &str) -> JobSpec {
    job_with(
        job,
        Schedule::FixedRate {
            every: cueline_model::DurationMs::secs(1),
            anchor: None,
        },
    )
}

/// A job that runs on request only.
pub(super) fn by_hand(job: &str) -> JobSpec {
    job_with(job, Schedule::Manual)
}

/// A job that runs after others.
pub(super) fn after(job: &str, parents: Parents, on: AfterOn) -> JobSpec {
    let mut spec = by_hand(job);
    spec.after = Some(Box::new(After {
        parents,
        on,
        pass_output: false,
    }));
    spec
}

/// A job that runs after the success of another one.
pub(super) fn child(job: &str, parent: &str) -> JobSpec {
    after(job, Parents::All(vec![name(parent)]), AfterOn::Success)
}

/// A job with that schedule and defaults for the rest.
pub(super) fn job_with(job: &str, schedule: Schedule) -> JobSpec {
    let job: JobName = name(job);
    JobSpec {
        group: GroupName::in_namespace(&job.namespace(), "default").expect("a valid name"),
        name: job,
        description: String::new(),
        schedule,
        start_at: None,
        end_at: None,
        calendars: Vec::new(),
        retention: cueline_model::Retention::default(),
        jitter: cueline_model::DurationMs::default(),
        misfire: Misfire::default(),
        route: Route::default(),
        selector: cueline_model::Selector::default(),
        block: Block::default(),
        scope: Scope::default(),
        backlog: 1_000,
        rate_limit: None,
        concurrency: None,
        timeout: None,
        kill_grace: cueline_model::DurationMs::secs(5),
        retry: Retry::default(),
        on_lost: OnLost::default(),
        fence: Fence::default(),
        dispatch_deadline: cueline_model::DurationMs::secs(3_600),
        priority: 5,
        handler: HandlerSpec::Native("work".to_owned()),
        params: None,
        after: None,
        labels: std::collections::BTreeMap::new(),
        enabled: Some(true),
    }
}

/// The attempt of a claimed run.
pub(super) fn attempt(run: &ClaimedRun) -> AttemptId {
    AttemptId {
        run: run.id,
        attempt: run.attempt,
    }
}

/// A report of the executor `e1` of the group `default`, which [`Fixture::begin`] gives runs to.
pub(super) fn report(id: AttemptId, body: AttemptEvent) -> AttemptReport {
    AttemptReport {
        attempt: id,
        executor: Some(executor("default", "e1")),
        event: body,
    }
}

impl Fixture {
    /// Opens the database of `harness`.
    pub async fn new(harness: Box<dyn Harness>, clock: TestClock) -> Self {
        Self {
            store: harness.open().await,
            clock,
            harness,
            nodes: AtomicI64::new(0),
        }
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// A node with a long lease.
    pub async fn node(&self) -> NodeId {
        self.node_for(LONG_LEASE_MS).await
    }

    /// A node with that lease, and a name of its own.
    pub async fn node_for(&self, lease_ms: u64) -> NodeId {
        let number = self.nodes.fetch_add(1, Ordering::SeqCst);
        let registered = self
            .store
            .register_node(&format!("node-{number}"), lease_ms)
            .await;
        registered.expect("registers").node
    }

    /// Applies jobs.
    pub async fn apply(&self, specs: &[JobSpec]) {
        self.store
            .apply_jobs(specs, false, &actor("a test"))
            .await
            .expect("applies");
    }

    /// Fires the jobs that are due now.
    pub async fn fire(&self, node: NodeId) -> FiredRuns {
        self.fire_ahead(node, 0).await
    }

    /// Fires the jobs that are due within `horizon_ms`.
    pub async fn fire_ahead(&self, node: NodeId, horizon_ms: u64) -> FiredRuns {
        let request = FireDueRequest {
            node,
            horizon_ms,
            limit: 2_000,
            max_runs: usize::MAX,
        };
        let fired = self.store.fire_due(request, &EachFireTime).await;
        fired.expect("fires")
    }

    /// Advances by a second and fires the one run that is due then.
    pub async fn fire_one(&self, node: NodeId) -> ClaimedRun {
        self.clock.advance(1_000);
        let mut runs = self.fire(node).await.runs;
        assert_eq!(runs.len(), 1, "one run is due");
        runs.remove(0)
    }

    /// Claims the runs that are due.
    pub async fn claim(&self, node: NodeId) -> Vec<ClaimedRun> {
        let claimed = self.store.claim_waiting(node, 0, 1_000).await;
        claimed.expect("claims")
    }

    /// Triggers a job by hand.
    pub async fn trigger(&self, job: &str) -> Vec<RunId> {
        let triggered = self.store.trigger(&ask(job)).await;
        triggered.expect("triggers").runs
    }

    /// `scheduled` → `dispatching`, for the executor `e1`.
    pub async fn begin(&self, node: NodeId, run: &ClaimedRun) {
        let taken = self.store.begin_dispatch(node, &[mark(run, "e1")]).await;
        assert_eq!(taken.expect("begins"), [attempt(run)]);
    }

    /// `scheduled` → `queued`.
    pub async fn publish(&self, node: NodeId, run: &ClaimedRun) {
        self.begin(node, run).await;
        let confirmed = self.store.confirm_dispatch(&[attempt(run)]).await;
        confirmed.expect("confirms");
    }

    /// Ingests reports.
    pub async fn ingest(&self, reports: &[AttemptReport]) -> IngestSummary {
        self.store.ingest_reports(reports).await.expect("ingests")
    }

    /// Ingests a report of one end.
    pub async fn end(&self, id: AttemptId, kind: OutcomeKind) -> IngestSummary {
        let outcome = Outcome::new(kind, self.now());
        self.ingest(&[report(id, AttemptEvent::Ended { outcome })])
            .await
    }

    /// Ingests a report of the scheduler itself about one end.
    pub async fn end_by_scheduler(&self, id: AttemptId, kind: OutcomeKind) -> IngestSummary {
        let outcome = Outcome::new(kind, self.now());
        self.ingest(&[AttemptReport {
            attempt: id,
            executor: None,
            event: AttemptEvent::Ended { outcome },
        }])
        .await
    }

    /// Publishes a run and reports its success.
    pub async fn succeed(&self, node: NodeId, run: &ClaimedRun) -> IngestSummary {
        self.publish(node, run).await;
        self.end(attempt(run), OutcomeKind::Succeeded).await
    }

    /// Reads the run.
    pub async fn run(&self, id: RunId) -> Run {
        self.store.run(id).await.expect("exists").run
    }

    /// How many runs of these jobs are being published.
    pub async fn dispatching_count(&self, jobs: &[JobId]) -> usize {
        self.store
            .dispatching_attempts(jobs)
            .await
            .expect("lists")
            .len()
    }

    /// Checks the state of a run.
    pub async fn expect(&self, id: RunId, state: RunState) {
        assert_eq!(self.run(id).await.state, state, "state of run {id}");
    }

    /// The events in a run's timeline.
    pub async fn timeline(&self, id: RunId) -> Vec<String> {
        let detail = self.store.run(id).await.expect("exists");
        detail.timeline.into_iter().map(|t| t.event).collect()
    }

    /// When a job is next due.
    pub async fn next_fire(&self, job: &str) -> Option<Timestamp> {
        let summary = self.store.job(&name(job)).await.expect("exists");
        summary.next_fire
    }

    /// Records heartbeats of executors that run `native:work` in the group `default`.
    pub async fn heartbeats(&self, executors: &[&str]) {
        let heartbeats: Vec<Heartbeat> = executors.iter().map(|e| heartbeat(e)).collect();
        let recorded = self.store.record_heartbeats(&heartbeats).await;
        recorded.expect("records");
    }
}

/// The identity of an executor.
pub(super) fn executor(group: &str, executor: &str) -> ExecutorId {
    ExecutorId {
        group: name(group),
        name: name(executor),
    }
}

/// A log line with this number.
pub(super) fn log_line(seq: u64, at: Timestamp, text: &str) -> LogLine {
    LogLine {
        seq,
        at,
        stream: LogStream::Out,
        text: text.to_owned(),
    }
}

/// The heartbeat of an executor that runs `native:work` in the group `default`.
pub(super) fn heartbeat(executor: &str) -> Heartbeat {
    Heartbeat {
        executor: self::executor("default", executor),
        incarnation: "1".to_owned(),
        session: cueline_model::Session(1),
        capabilities: vec!["native:work".to_owned()],
        capacity: 8,
        labels: cueline_model::ExecutorLabels::default(),
        weight: cueline_model::Weight::default(),
        held: 0,
        running: 0,
        draining: false,
        gone: false,
        refusal: None,
    }
}

/// A request to run a job now.
pub(super) fn ask(job: &str) -> TriggerRequest {
    TriggerRequest {
        job: name(job),
        params: None,
        idempotency_key: None,
        run_at: None,
        by: actor("a test"),
        condition: crate::Precondition::None,
    }
}

/// A request to publish a run to an executor.
pub(super) fn mark(run: &ClaimedRun, executor: &str) -> DispatchRequest {
    DispatchRequest {
        attempt: run.attempt_id(),
        job_version: run.job.version,
        executor: name(executor),
        lane: None,
        limits: None,
    }
}

/// The same with the place of the run in the lane of its group.
pub(super) fn mark_in_lane(run: &ClaimedRun, executor: &str) -> DispatchRequest {
    DispatchRequest {
        lane: run.lane(),
        ..mark(run, executor)
    }
}

/// Checks that a call failed with this kind of error.
pub(super) fn refused<T: std::fmt::Debug>(
    result: Result<T, StoreError>,
    kind: crate::ErrorKind,
    says: &str,
) {
    let error = result.expect_err("is refused");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(says), "{error} names {says}");
}
