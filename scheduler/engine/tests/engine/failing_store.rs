//! A store that fails when it is told to, around a real one.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use cueline_model::{
    AttemptId, Heartbeat, Job, JobId, JobName, JobSpec, RunId, StoreId, Timestamp,
};
use cueline_runtime::ManualClock;
use cueline_store::{
    AppliedJob, AttemptReport, CancelOutcome, ClaimedRun, DeadLetter, DispatchRequest, ErrorKind,
    Executor, FireDueRequest, FiredRuns, IngestSummary, JobSummary, LedgerEntry, NewDeadLetter,
    NodeId, OutstandingAttempt, PendingCancellation, Planner, RegisteredNode, Run, RunDetail,
    RunFilter, Store, StoreError, StoreStats, StoredLogLine, TriggerOutcome, TriggerRequest,
};
use rand::RngExt as _;
use rand::rngs::StdRng;

/// What goes wrong with one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing has been done.
    Before,
    /// It is done; the answer was lost.
    After,
    /// Nothing has been done, and the same call would not succeed later.
    Broken,
    /// It is done, after so many milliseconds.
    Takes(i64),
}

#[derive(Debug, Default)]
struct Plan {
    next: HashMap<&'static str, VecDeque<Fault>>,
    chance: Option<(StdRng, u32)>,
    failed: u32,
    executors: Option<Vec<Executor>>,
}

/// The decorator.
pub(crate) struct FailingStore {
    inner: Arc<dyn Store>,
    clock: ManualClock,
    plan: Mutex<Plan>,
}

impl FailingStore {
    pub(crate) fn new(inner: Arc<dyn Store>, clock: ManualClock) -> Self {
        Self {
            inner,
            clock,
            plan: Mutex::default(),
        }
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next call of `method` goes wrong like this.
    pub(crate) fn fail_next(&self, method: &'static str, fault: Fault) {
        self.plan().next.entry(method).or_default().push_back(fault);
    }

    /// Who is asked next for the executors hears who there is now, and how long they have been silent now.
    pub(crate) async fn keep_executors(&self) {
        let executors = self.inner.executors().await.expect("reads");
        self.plan().executors = Some(executors);
    }

    async fn kept_executors(&self) -> Result<Vec<Executor>, StoreError> {
        let kept = self.plan().executors.take();
        match kept {
            Some(kept) => Ok(kept),
            None => self.inner.executors().await,
        }
    }

    /// Of all calls of the engine, `percent` go wrong.
    pub(crate) fn fail_by_chance(&self, rng: StdRng, percent: u32) {
        self.plan().chance = Some((rng, percent));
    }

    /// Nothing goes wrong any more; how many calls did.
    pub(crate) fn heal(&self) -> u32 {
        let mut plan = self.plan();
        plan.next.clear();
        plan.chance = None;
        std::mem::take(&mut plan.failed)
    }

    /// The real store, for the test itself.
    pub(crate) fn real(&self) -> &dyn Store {
        &*self.inner
    }

    fn fault(&self, method: &'static str) -> Option<Fault> {
        let mut plan = self.plan();
        let planned = plan.next.get_mut(method).and_then(VecDeque::pop_front);
        let fault = planned.or_else(|| {
            let (rng, percent) = plan.chance.as_mut()?;
            let after = rng.random::<bool>();
            (rng.random_range(0..100) < *percent).then_some(if after {
                Fault::After
            } else {
                Fault::Before
            })
        });
        plan.failed += u32::from(fault.is_some());
        fault
    }

    async fn call<T>(
        &self,
        method: &'static str,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let failed_as =
            |kind| StoreError::new(kind, format!("failed to {method}: the test wants it so"));
        let failed = || failed_as(ErrorKind::Transient);
        match self.fault(method) {
            None => call.await,
            Some(Fault::Takes(ms)) => {
                self.clock.advance(ms);
                call.await
            }
            Some(Fault::Broken) => Err(failed_as(ErrorKind::Broken)),
            Some(Fault::Before) => Err(failed()),
            Some(Fault::After) => {
                call.await?;
                Err(failed().with_unknown_outcome())
            }
        }
    }
}

macro_rules! passed_on {
    ($($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        #[async_trait]
        impl Store for FailingStore {
            $(async fn $name(&self, $($arg: $type),*) -> Result<$out, StoreError> {
                self.call(stringify!($name), self.inner.$name($($arg),*)).await
            })*

            async fn executors(&self) -> Result<Vec<Executor>, StoreError> {
                self.call("executors", self.kept_executors()).await
            }
        }
    };
}

passed_on! {
    now() -> Timestamp;
    store_id() -> StoreId;
    register_node(name: &str, lease_ms: u64) -> RegisteredNode;
    rejoin_node(old: NodeId, name: &str, lease_ms: u64) -> NodeId;
    renew_lease(node: NodeId, lease_ms: u64) -> bool;
    release_lease(node: NodeId) -> ();
    apply_jobs(specs: &[JobSpec], dry_run: bool) -> Vec<AppliedJob>;
    set_job_enabled(job: &JobName, enabled: bool, by: &str) -> JobId;
    delete_job(job: &JobName, by: &str) -> JobId;
    dispatching_attempts(jobs: &[JobId]) -> Vec<AttemptId>;
    job(name: &JobName) -> JobSummary;
    definitions(ids: &[JobId]) -> Vec<Arc<Job>>;
    jobs(after: Option<&JobName>, limit: usize) -> Vec<JobSummary>;
    fire_due(request: FireDueRequest, planner: &dyn Planner) -> FiredRuns;
    claim_waiting(node: NodeId, horizon_ms: u64, limit: usize) -> Vec<ClaimedRun>;
    next_due_at() -> Option<Timestamp>;
    begin_dispatch(node: NodeId, marks: &[DispatchRequest]) -> Vec<AttemptId>;
    confirm_dispatch(attempts: &[AttemptId]) -> ();
    release_claims(node: NodeId, attempts: &[AttemptId], due_at: Option<Timestamp>) -> ();
    ingest_reports(reports: &[AttemptReport]) -> IngestSummary;
    cancel_run(run: RunId, by: &str) -> CancelOutcome;
    pending_cancellations(limit: usize) -> Vec<PendingCancellation>;
    trigger_claimed(node: Option<NodeId>, request: &TriggerRequest) -> (TriggerOutcome, Vec<ClaimedRun>);
    record_heartbeats(heartbeats: &[Heartbeat]) -> ();
    outstanding_attempts(older_than_ms: u64, after: Option<RunId>, limit: usize) -> Vec<OutstandingAttempt>;
    reclaim_attempts(node: NodeId, attempts: &[AttemptId], reason: &str) -> Vec<ClaimedRun>;
    overdue_attempts(slack_ms: u64, limit: usize) -> Vec<AttemptId>;
    insert_dead_letters(letters: &[NewDeadLetter]) -> u64;
    dead_letters(before: Option<i64>, limit: usize) -> Vec<DeadLetter>;
    dead_letters_by_id(ids: &[i64]) -> Vec<DeadLetter>;
    delete_dead_letters(ids: &[i64]) -> u64;
    run(run: RunId) -> RunDetail;
    runs(filter: &RunFilter) -> Vec<Run>;
    log_lines(run: RunId, after: i64, limit: usize) -> Vec<StoredLogLine>;
    ledger(job: &JobName, from: Timestamp, to: Timestamp, limit: usize) -> Vec<LedgerEntry>;
    stats() -> StoreStats;
    delete_expired_runs(older_than_ms: u64, limit: usize) -> u64;
    repair_fixed_delay_jobs() -> u64;
}
