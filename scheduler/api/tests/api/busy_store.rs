//! Decorators of a real store in which others make changes between two calls of one request.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use cueline_model::schedule::zones::ZoneDigest;
use cueline_model::{
    Actor, ActorKind, AttemptId, CalendarName, CalendarSpec, ExecutorId, FireRules, GroupName,
    Heartbeat, Job, JobId, JobName, JobSpec, Namespace, Rate, Retention, RunId, StoreId, Timestamp,
    WindowSpec,
};
use cueline_store::{
    Accounts, AdvancedBackfills, AppliedCalendar, AppliedJob, AttemptReport, Audit, AuditEntry,
    AuditFilter, Backfill, BackfillChange, BackfillDetail, BackfillFilter, BackfillStore,
    BegunDispatch, CancelOutcome, CancelledFlow, ChangedRuns, ChangedUser, ClaimedRun, DeadLetter,
    DeadLetterFilter, DispatchRequest, EnrolOutcome, Executor, ExpireRequest, Expired,
    FireDueRequest, FireRuleStore, FiredRuns, FlowCounts, FlowRun, FlowStore, GroupRate,
    GroupRetention, IngestSummary, JobAttempt, JobBrief, JobFilter, JobList, JobPreconditions,
    JobSummary, JobVersion, JobsFingerprint, KnownRun, LedgerEntry, LiveRuns, Login,
    NamespaceFilter, NamespaceSummary, Namespaces, NewApiToken, NewAuditEntry, NewBackfill,
    NewDeadLetter, NewEnrolmentToken, NewRuns, NewUser, NewWorkerKey, NodeId, OldestQueued, Order,
    OutstandingAttempt, PendingCancellation, Planner, Precondition, Principal, PruneRequest,
    Pruned, QuotaLoad, Quotas, RegisteredNode, RenewedLease, RetentionStore, RetriedFlow, Revision,
    RunCursor, RunDetail, RunFilter, RunList, SecretHash, Situation, Situations, Store, StoreError,
    StoreStats, StoredApiToken, StoredCalendar, StoredEnrolmentToken, StoredLogLine, StoredUser,
    Subject, TriggerOutcome, TriggerRequest, UserChange, UserId, WindowReplan, WorkerKeyState,
    WorkerKeysPage,
};

fn another() -> Actor {
    Actor::new(ActorKind::User, "another")
}

/// Changes that others make, each after a call of a method.
struct Planned<T>(Mutex<VecDeque<(&'static str, T)>>);

impl<T> Planned<T> {
    fn new() -> Self {
        Self(Mutex::new(VecDeque::new()))
    }

    fn push(&self, after: &'static str, change: T) {
        let mut planned = self.0.lock().expect("no panic");
        planned.push_back((after, change));
    }

    /// The next change, if it is made after this method.
    fn after(&self, method: &str) -> Option<T> {
        let mut planned = self.0.lock().expect("no panic");
        let is_next = planned.front().is_some_and(|(after, _)| *after == method);
        let next = if is_next { planned.pop_front() } else { None };
        next.map(|(_, change)| change)
    }
}

/// Jobs that others apply.
pub(crate) struct BusyStore {
    inner: Arc<dyn Store>,
    planned: Planned<JobSpec>,
}

impl BusyStore {
    pub(crate) fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            planned: Planned::new(),
        }
    }

    /// Another caller applies the definition after the next call of `method`. Each change waits for the one before it.
    pub(crate) fn apply_after(&self, method: &'static str, spec: JobSpec) {
        self.planned.push(method, spec);
    }

    async fn others(&self, method: &str) {
        if let Some(spec) = self.planned.after(method) {
            let (specs, by) = ([spec], another());
            let applied = self.inner.apply_jobs(&specs, false, &by);
            applied.await.expect("applies");
        }
    }
}

macro_rules! forward_store {
    ($($kind:ident $method:ident($($arg:ident: $type:ty),*) -> $answer:ty: $what:literal;)*) => {
        #[async_trait]
        impl Store for BusyStore {
            $(async fn $method(&self, $($arg: $type),*) -> Result<$answer, StoreError> {
                let answer = self.inner.$method($($arg),*).await;
                self.others(stringify!($method)).await;
                answer
            })*
        }
    };
}

cueline_store::with_store_methods!(forward_store);

#[async_trait]
impl Audit for BusyStore {
    async fn record(&self, entries: &[NewAuditEntry]) -> Result<(), StoreError> {
        self.inner.record(entries).await
    }

    async fn audit_entries(&self, filter: &AuditFilter) -> Result<Vec<AuditEntry>, StoreError> {
        self.inner.audit_entries(filter).await
    }

    async fn prune_audit(&self, older_than_ms: u64, limit: usize) -> Result<u64, StoreError> {
        self.inner.prune_audit(older_than_ms, limit).await
    }

    async fn prune_versions(&self, older_than_ms: u64, limit: usize) -> Result<u64, StoreError> {
        self.inner.prune_versions(older_than_ms, limit).await
    }

    async fn job_versions(
        &self,
        job: &JobName,
        order: Order,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<JobVersion>, StoreError> {
        self.inner.job_versions(job, order, after, limit).await
    }
}

macro_rules! forward_retention {
    ($($kind:ident $method:ident($($arg:ident: $type:ty),*) -> $answer:ty: $what:literal;)*) => {
        #[async_trait]
        impl RetentionStore for BusyStore {
            $(async fn $method(&self, $($arg: $type),*) -> Result<$answer, StoreError> {
                self.inner.$method($($arg),*).await
            })*
        }
    };
}

cueline_store::with_retention_methods!(forward_retention);

macro_rules! forward_alarms {
    ($($kind:ident $method:ident($($arg:ident: $type:ty),*) -> $answer:ty: $what:literal;)*) => {
        #[async_trait]
        impl cueline_store::AlarmStore for BusyStore {
            $(async fn $method(&self, $($arg: $type),*) -> Result<$answer, StoreError> {
                let answer = self.inner.$method($($arg),*).await;
                self.others(stringify!($method)).await;
                answer
            })*
        }
    };
}

cueline_store::with_alarm_methods!(forward_alarms);

#[async_trait]
impl FireRuleStore for BusyStore {
    async fn fire_rules(&self) -> Result<Arc<FireRules>, StoreError> {
        self.inner.fire_rules().await
    }

    async fn calendars(
        &self,
        namespace: &Namespace,
        name: Option<&CalendarName>,
    ) -> Result<Vec<StoredCalendar>, StoreError> {
        self.inner.calendars(namespace, name).await
    }

    async fn put_calendars(
        &self,
        specs: &[CalendarSpec],
        condition: &Precondition,
        dry_run: bool,
        by: &Actor,
    ) -> Result<(Vec<AppliedCalendar>, Vec<JobId>), StoreError> {
        let put = self.inner.put_calendars(specs, condition, dry_run, by);
        put.await
    }

    async fn delete_calendar(
        &self,
        name: &CalendarName,
        condition: &Precondition,
        by: &Actor,
    ) -> Result<(), StoreError> {
        self.inner.delete_calendar(name, condition, by).await
    }

    async fn add_window(&self, spec: &WindowSpec, by: &Actor) -> Result<i64, StoreError> {
        self.inner.add_window(spec, by).await
    }

    async fn end_window(&self, id: i64, by: &Actor) -> Result<(), StoreError> {
        self.inner.end_window(id, by).await
    }

    async fn replan_window(
        &self,
        window: Option<i64>,
        limit: usize,
    ) -> Result<WindowReplan, StoreError> {
        self.inner.replan_window(window, limit).await
    }

    async fn known_zones(&self) -> Result<Vec<ZoneDigest>, StoreError> {
        self.inner.known_zones().await
    }

    async fn note_zones(&self, zones: &[ZoneDigest]) -> Result<u64, StoreError> {
        self.inner.note_zones(zones).await
    }
}

cueline_store::forward_scripts!(BusyStore);

#[async_trait]
impl Situations for BusyStore {
    async fn situation(&self, subject: Subject<'_>) -> Result<Situation, StoreError> {
        self.inner.situation(subject).await
    }
}

#[async_trait]
impl BackfillStore for BusyStore {
    async fn start_backfill(&self, new: &NewBackfill) -> Result<Backfill, StoreError> {
        self.inner.start_backfill(new).await
    }

    async fn backfills(&self, filter: &BackfillFilter) -> Result<Vec<Backfill>, StoreError> {
        self.inner.backfills(filter).await
    }

    async fn backfill(&self, id: i64) -> Result<BackfillDetail, StoreError> {
        self.inner.backfill(id).await
    }

    async fn change_backfill(
        &self,
        id: i64,
        change: BackfillChange,
        by: &Actor,
    ) -> Result<Backfill, StoreError> {
        self.inner.change_backfill(id, change, by).await
    }

    async fn advance_backfills(&self) -> Result<AdvancedBackfills, StoreError> {
        self.inner.advance_backfills().await
    }
}

#[async_trait]
impl Namespaces for BusyStore {
    async fn namespaces(
        &self,
        filter: &NamespaceFilter,
    ) -> Result<Vec<NamespaceSummary>, StoreError> {
        self.inner.namespaces(filter).await
    }

    async fn quota_loads(&self) -> Result<Vec<QuotaLoad>, StoreError> {
        self.inner.quota_loads().await
    }

    async fn set_quotas(
        &self,
        namespace: &Namespace,
        quotas: &Quotas,
        if_version: Option<u64>,
        by: &Actor,
    ) -> Result<u64, StoreError> {
        self.inner
            .set_quotas(namespace, quotas, if_version, by)
            .await
    }
}

/// Users whom others change.
pub(crate) struct BusyAccounts {
    inner: Arc<dyn Accounts>,
    planned: Planned<(String, UserChange)>,
}

impl BusyAccounts {
    pub(crate) fn new(inner: Arc<dyn Accounts>) -> Self {
        Self {
            inner,
            planned: Planned::new(),
        }
    }

    /// Another caller changes the user after the next call of `method`. Each change waits for the one before it.
    pub(crate) fn change_after(&self, method: &'static str, name: &str, change: UserChange) {
        self.planned.push(method, (name.to_owned(), change));
    }

    async fn others(&self, method: &str) {
        if let Some((name, change)) = self.planned.after(method) {
            let by = another();
            let changed = self.inner.change_user(&name, &change, &by);
            changed.await.expect("changes");
        }
    }
}

macro_rules! forward_accounts {
    ($($kind:ident $method:ident($($arg:ident: $type:ty),*) -> $answer:ty: $what:literal;)*) => {
        #[async_trait]
        impl Accounts for BusyAccounts {
            $(async fn $method(&self, $($arg: $type),*) -> Result<$answer, StoreError> {
                let answer = self.inner.$method($($arg),*).await;
                self.others(stringify!($method)).await;
                answer
            })*
        }
    };
}

cueline_store::with_accounts_methods!(forward_accounts);

#[async_trait]
impl FlowStore for BusyStore {
    async fn flow_run(&self, run: RunId) -> Result<FlowRun, StoreError> {
        self.inner.flow_run(run).await
    }

    async fn flow_counts(&self, flows: &[RunId]) -> Result<Vec<FlowCounts>, StoreError> {
        self.inner.flow_counts(flows).await
    }

    async fn parent_jobs(
        &self,
        namespace: Option<&Namespace>,
        limit: usize,
    ) -> Result<Vec<JobName>, StoreError> {
        self.inner.parent_jobs(namespace, limit).await
    }

    async fn cancel_flow(&self, run: RunId, by: &Actor) -> Result<CancelledFlow, StoreError> {
        self.inner.cancel_flow(run, by).await
    }

    async fn retry_flow(&self, run: RunId, by: &Actor) -> Result<RetriedFlow, StoreError> {
        self.inner.retry_flow(run, by).await
    }
}
