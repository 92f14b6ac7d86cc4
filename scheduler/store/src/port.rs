//! The port: one trait, one method per use case.

use std::sync::Arc;

use async_trait::async_trait;
use cueline_model::{
    Actor, AttemptId, ExecutorId, GroupName, Heartbeat, Job, JobId, JobName, JobSpec, Namespace,
    Rate, RunId, StoreId, Timestamp,
};

use crate::alarms::AlarmStore;
use crate::audit::Audit;
use crate::backfill::BackfillStore;
use crate::changes::{
    ChangedRuns, JobBrief, JobsFingerprint, KnownRun, LiveRuns, NewRuns, RunCursor,
};
use crate::dead_letter::{DeadLetter, DeadLetterFilter, NewDeadLetter};
use crate::dispatch::{
    BegunDispatch, CancelOutcome, ClaimedRun, DispatchRequest, FireDueRequest, FiredRuns, Planner,
    TriggerOutcome, TriggerRequest,
};
use crate::error::StoreError;
use crate::executor::{Executor, JobAttempt, OutstandingAttempt, PendingCancellation};
use crate::fire_rules::FireRuleStore;
use crate::flow::FlowStore;
use crate::job::{AppliedJob, JobFilter, JobList, JobSummary, LedgerEntry};
use crate::limits::GroupRate;
use crate::load::{OldestQueued, PoolUse};
use crate::namespaces::Namespaces;
use crate::node::{NodeId, RegisteredNode, RenewedLease};
use crate::precondition::{JobPreconditions, Precondition, Revision};
use crate::report::{AttemptReport, IngestSummary};
use crate::retention::RetentionStore;
use crate::run::{Run, RunDetail, RunFilter, RunList, StoreStats, StoredLogLine};
use crate::scripts::ScriptStore;
use crate::situation::Situations;
use crate::worker_keys::{
    EnrolOutcome, NewEnrolmentToken, NewWorkerKey, StoredEnrolmentToken, WorkerKeyState,
    WorkerKeysPage,
};

type Result<T> = std::result::Result<T, StoreError>;

/// The database of jobs and runs.
///
/// Each method is one atomic transaction. Its effects are durable when it returns. Any number of nodes may call any
/// method at the same time. Durations are in milliseconds. Due times and leases are compared with the database's clock.
///
/// A method that takes an [`Actor`], by itself or in its request, writes an entry of the [audit log](Audit) in its
/// transaction for each object that it changes (G19). A call that changes nothing, and one that fails, writes none.
///
/// # Errors
///
/// Every method fails with one of these kinds. The sections of the methods list further ones.
///
/// - [`Transient`](crate::ErrorKind::Transient): the database is busy, unreachable or has no room. The same call may
///   succeed later. Nothing was changed, unless [`StoreError::is_outcome_unknown`] says that the commit was not
///   answered.
/// - [`Broken`](crate::ErrorKind::Broken): the database is damaged, or holds data that this program cannot read. An
///   operator has to act.
#[async_trait]
pub trait Store:
    Audit
    + Namespaces
    + FireRuleStore
    + FlowStore
    + RetentionStore
    + BackfillStore
    + Situations
    + ScriptStore
    + AlarmStore
{
    // ── Nodes ────────────────────────────────────────────────────────────────────────────────────────────────

    /// The time of the database's clock (G14).
    async fn now(&self) -> Result<Timestamp>;

    /// The identity of this store. It is created with the store, and stays the same for all nodes and after each
    /// restart.
    ///
    /// Run ids are unique only within one store, so executors remember an attempt together with this id.
    async fn store_id(&self) -> Result<StoreId>;

    /// Registers a scheduler process under `name`, with a lease of `lease_ms`.
    ///
    /// A name belongs to one process at a time, so the lease of an earlier node with that name ends. A restarted
    /// process can take over its earlier claims at once. If no other node is alive, each enabled `startup` job gets its
    /// runs, with the present time as fire time.
    async fn register_node(&self, name: &str, lease_ms: u64) -> Result<RegisteredNode>;

    /// Registers a running process again after it lost track of its claims. Returns its new identity.
    ///
    /// A process loses track when its lease expires, or when it does not know whether a failed call was carried out.
    /// The leases of `old` and of any other node with that name end, and other nodes may take over their claims. No
    /// `startup` job runs. Like a registration, it deletes nodes without claims whose lease ended a day ago.
    async fn rejoin_node(&self, old: NodeId, name: &str, lease_ms: u64) -> Result<NodeId>;

    /// Extends the lease of a node to `lease_ms` from now. Returns `None` if the lease has expired. Other nodes may
    /// have taken over its runs then (G13), and the node has to [rejoin](Self::rejoin_node).
    ///
    /// `reached_broker_at` is when the node last reached the broker, by the database's clock; `None` if it has not yet. A
    /// time in the future counts as now. The node forgets it when it rejoins.
    async fn renew_lease(
        &self,
        node: NodeId,
        lease_ms: u64,
        reached_broker_at: Option<Timestamp>,
    ) -> Result<Option<RenewedLease>>;

    /// Ends the lease of a node, so that other nodes may take over its runs at once. Does nothing for an unknown node.
    async fn release_lease(&self, node: NodeId) -> Result<()>;

    // ── Jobs ─────────────────────────────────────────────────────────────────────────────────────────────────

    /// Creates and updates jobs to match `specs`, all or none. Other jobs stay as they are. With `dry_run` nothing
    /// changes.
    ///
    /// The answer has the order of `specs`. An updated job gets a new version, and its next fire time is computed from
    /// now. Its runs that were written ahead of their fire time are deleted. Runs that are due stay, and are dispatched
    /// by the new definition (G3). The new version can be read with [`Audit::job_versions`]. A new job removes the
    /// versions of a deleted one of its name.
    /// It fails as [`apply_jobs_if`](Self::apply_jobs_if).
    async fn apply_jobs(
        &self,
        specs: &[JobSpec],
        dry_run: bool,
        by: &Actor,
    ) -> Result<Vec<AppliedJob>> {
        self.apply_jobs_if(specs, &JobPreconditions::new(), dry_run, by)
            .await
    }

    /// Like [`apply_jobs`](Self::apply_jobs), if the condition of each job is met. A dry run checks them too.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) if a job is named twice, if a parent is neither in `specs` nor in the
    /// store, or if parents form a cycle. [`Precondition`](crate::ErrorKind::Precondition) with each job whose condition
    /// is not met. [`Conflict`](crate::ErrorKind::Conflict) if the namespace of new jobs would have more jobs than its
    /// quota [`max_jobs`](crate::Quotas::max_jobs), also in a dry run.
    async fn apply_jobs_if(
        &self,
        specs: &[JobSpec],
        conditions: &JobPreconditions,
        dry_run: bool,
        by: &Actor,
    ) -> Result<Vec<AppliedJob>>;

    /// Pauses or resumes the schedule of a job and returns its id. A change creates a new version; otherwise nothing
    /// happens.
    ///
    /// A pause deletes runs that were written ahead of their fire time. Runs that wait in `scheduled` end: a first
    /// attempt as `skipped`, a later one as `cancelled`. Published runs continue (G3). `by` is noted in the timelines.
    ///
    /// The definition keeps fields that this program does not know. A pause does not read it. It fails as
    /// [`set_job_enabled_if`](Self::set_job_enabled_if).
    async fn set_job_enabled(&self, job: &JobName, enabled: bool, by: &Actor) -> Result<JobId> {
        let any = Precondition::None;
        let set = self.set_job_enabled_if(job, enabled, &any, by).await?;
        Ok(JobId(set.id))
    }

    /// Like [`set_job_enabled`](Self::set_job_enabled), if the condition is met. Returns the revision afterwards.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such job.
    /// [`Precondition`](crate::ErrorKind::Precondition) if the condition is not met, also if nothing would change.
    async fn set_job_enabled_if(
        &self,
        job: &JobName,
        enabled: bool,
        condition: &Precondition,
        by: &Actor,
    ) -> Result<Revision>;

    /// Deletes a job and returns its id. Its runs are kept. Waiting runs end as with a pause (G3). It fails as
    /// [`delete_job_if`](Self::delete_job_if).
    async fn delete_job(&self, job: &JobName, by: &Actor) -> Result<JobId> {
        self.delete_job_if(job, &Precondition::None, by).await
    }

    /// Like [`delete_job`](Self::delete_job), if the condition is met.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such job, [`Conflict`](crate::ErrorKind::Conflict) while
    /// other jobs run after it. [`Precondition`](crate::ErrorKind::Precondition) if the condition is not met.
    async fn delete_job_if(
        &self,
        job: &JobName,
        condition: &Precondition,
        by: &Actor,
    ) -> Result<JobId>;

    /// The `dispatching` attempts of these jobs.
    ///
    /// After an edit, a pause or a deletion, these attempts may still be published by the old definition. Once each of
    /// them has left `dispatching`, no trigger of the old definition can be published any more (G3).
    async fn dispatching_attempts(&self, jobs: &[JobId]) -> Result<Vec<AttemptId>>;

    /// One job.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such job.
    async fn job(&self, name: &JobName) -> Result<JobSummary>;

    /// The jobs with these ids, deleted ones included. Unknown ids are left out.
    async fn definitions(&self, ids: &[JobId]) -> Result<Vec<Arc<Job>>>;

    /// Jobs that match the filter, in its order.
    ///
    /// At most [`MAX_SCANNED`](crate::MAX_SCANNED) jobs are looked at, so a page may be short and still have a next one.
    /// In a list by next fire time, a job that fires between two pages moves.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) if no job ever had the id in `after`.
    async fn list_jobs(&self, filter: &JobFilter) -> Result<JobList>;

    // ── From due to queued ───────────────────────────────────────────────────────────────────────────────────

    /// Fires due jobs: locks them, calls the planner for each, and writes the planned runs and the next fire times
    /// (G1).
    ///
    /// The node claims the written runs. A fire time that already has its run gets no second one, whichever node wrote
    /// it (G2).
    ///
    /// # Errors
    ///
    /// [`Conflict`](crate::ErrorKind::Conflict) if the node is not registered.
    async fn fire_due(&self, request: FireDueRequest, planner: &dyn Planner) -> Result<FiredRuns>;

    /// Claims at most `limit` unclaimed runs that are due within `horizon_ms`, oldest due time first.
    ///
    /// These are retries, manual triggers, child runs, and the runs that an expired node left `scheduled` or
    /// `dispatching` (G13). Runs whose definition this program cannot read stay unclaimed, and are not due again for
    /// [`UNREADABLE_WAIT_MS`](crate::adapter::claimed::UNREADABLE_WAIT_MS), so that a newer program may claim them.
    ///
    /// # Errors
    ///
    /// [`Conflict`](crate::ErrorKind::Conflict) if the node is not registered.
    async fn claim_waiting(
        &self,
        node: NodeId,
        horizon_ms: u64,
        limit: usize,
    ) -> Result<Vec<ClaimedRun>>;

    /// When the next job or unclaimed run is due; `None` if there is none.
    async fn next_due_at(&self) -> Result<Option<Timestamp>>;

    /// Moves runs from `scheduled` to `dispatching`. Returns the accepted attempts, in the order of `requests`. The
    /// others must not be published.
    ///
    /// A run is accepted if the node has claimed it, it is at that attempt, and its job has that version (G3). A run
    /// that the node has moved to `dispatching` before, for the same attempt and executor, is accepted again. A run
    /// that is not accepted needs no further call. The change that prevented it released the claim, if the run is to be
    /// dispatched at all.
    async fn begin_dispatch(
        &self,
        node: NodeId,
        requests: &[DispatchRequest],
    ) -> Result<Vec<AttemptId>> {
        let begun = self.begin_dispatch_in_lanes(node, requests).await?;
        Ok(begun.accepted)
    }

    /// Like [`begin_dispatch`](Self::begin_dispatch). Also lists the attempts that have to wait for the
    /// [lane](LanePlace) of their group: the lane's attempts are at another executor, use all its places, or an older run
    /// of it comes first. They stay `scheduled` and claimed by the node, which asks again.
    ///
    /// Whatever nodes ask at the same time: the accepted attempts of a lane without places are all at one executor, and
    /// those of a lane with places are no more than these. An attempt counts from its acceptance until the store knows
    /// that it has ended.
    ///
    /// Attempts with [limits](DispatchRequest::limits) are accepted in the order of their places. Those that a limit
    /// refuses are listed too. They stay `scheduled` and claimed by the node, which asks again.
    /// Whatever nodes ask at the same time: no interval has more accepted attempts than a rate allows, and no more
    /// attempts are at work than a concurrency limit allows. An attempt counts for its rate when it is due, or when it is
    /// accepted if that is later. An interval begins anew for a limit that had no other dispatch within it.
    ///
    /// All requests for one lane without places name the same executor.
    async fn begin_dispatch_in_lanes(
        &self,
        node: NodeId,
        requests: &[DispatchRequest],
    ) -> Result<BegunDispatch>;

    /// Moves published attempts from `dispatching` to `queued`. Runs in a later state stay unchanged.
    async fn confirm_dispatch(&self, attempts: &[AttemptId]) -> Result<()>;

    /// Gives up the node's claim on these attempts. [`claim_waiting`](Self::claim_waiting) finds them again, at
    /// `due_at` at the earliest.
    ///
    /// An attempt in `dispatching` that was certainly not published goes back to `scheduled`. It ends instead if it was
    /// cancelled, or if its job was paused or deleted meanwhile (G3). A pause does not end a manual run.
    async fn release_claims(
        &self,
        node: NodeId,
        attempts: &[AttemptId],
        due_at: Option<Timestamp>,
    ) -> Result<()>;

    /// Moves `queued` attempts that their executor does not hold back to `dispatching`, claimed by `node`. Returns the
    /// runs. A `running` attempt stays: another node has published it again meanwhile, or its trigger was late.
    ///
    /// The caller publishes them again unchanged, to the same group as before (G4). `reason` is noted in the timelines.
    /// Runs whose job was paused or deleted meanwhile end instead (G3). A pause does not end a manual run.
    ///
    /// # Errors
    ///
    /// [`Conflict`](crate::ErrorKind::Conflict) if the node is not registered.
    async fn reclaim_attempts(
        &self,
        node: NodeId,
        attempts: &[AttemptId],
        reason: &str,
    ) -> Result<Vec<ClaimedRun>>;

    /// Runs a job outside of its schedule, whether it is paused or not. Any node may claim the runs.
    ///
    /// # Errors
    ///
    /// As [`trigger_claimed`](Self::trigger_claimed).
    async fn trigger(&self, request: &TriggerRequest) -> Result<TriggerOutcome> {
        Ok(self.trigger_claimed(None, request).await?.0)
    }

    /// Like [`trigger`](Self::trigger), but runs that are due now are claimed by `node` and returned. An unregistered
    /// node claims nothing.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such job.
    /// [`Precondition`](crate::ErrorKind::Precondition) if the condition of the request is not met.
    /// [`KeyReused`](crate::ErrorKind::KeyReused) if an earlier request with the idempotency key had other parameters, or
    /// another time.
    async fn trigger_claimed(
        &self,
        node: Option<NodeId>,
        request: &TriggerRequest,
    ) -> Result<(TriggerOutcome, Vec<ClaimedRun>)>;

    // ── From queued to ended ─────────────────────────────────────────────────────────────────────────────────

    /// Applies reports in their order. State and attempt guard every transition, so that a repeated report has no
    /// effect.
    ///
    /// Retries, child runs and the next fixed-delay fire time are written in the same transaction (G9; see
    /// [`cueline_model::conclude`]). Reports about unknown runs are counted as ignored.
    ///
    /// Successes on which nothing depends may be applied before the others of the batch, in a transaction of their own. So a
    /// call that fails may have ended some runs.
    ///
    /// A report of an executor counts only if its attempt was given to that executor (G16). Other reports change
    /// nothing, and the answer [lists](IngestSummary::foreign) them. An attempt that waits, or that does not exist yet,
    /// was given to no executor. A run keeps the executors of at most a thousand earlier attempts.
    async fn ingest_reports(&self, reports: &[AttemptReport]) -> Result<IngestSummary>;

    /// Cancels a run that has not been published, or records the request for one that has.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such run.
    async fn cancel_run(&self, run: RunId, by: &Actor) -> Result<CancelOutcome>;

    /// At most `limit` requested cancellations that have not taken effect, sorted by run id.
    async fn pending_cancellations(&self, limit: usize) -> Result<Vec<PendingCancellation>>;

    /// At most `limit` attempts after `after` that have been `queued` or `running` for more than `older_than_ms`,
    /// sorted by run id. With `executor`, only the attempts that were published to it.
    async fn outstanding_attempts(
        &self,
        older_than_ms: u64,
        executor: Option<&ExecutorId>,
        after: Option<RunId>,
        limit: usize,
    ) -> Result<Vec<OutstandingAttempt>>;

    /// At most `limit` attempts of these jobs that are `dispatching`, `queued` or `running` and have an executor, in no
    /// order. It reads all live runs until the limit, so it is not for each dispatch.
    async fn attempts_of_jobs(&self, jobs: &[JobId], limit: usize) -> Result<Vec<JobAttempt>>;

    /// At most `limit` attempts that have been `running` for longer than timeout, kill grace and `slack_ms` together,
    /// the longest overdue first.
    ///
    /// Their executors have stopped reporting. An edit that shortens the timeout has no effect on attempts that are
    /// published. An edit that lengthens or removes it has none on attempts that are `running`.
    async fn overdue_attempts(&self, slack_ms: u64, limit: usize) -> Result<Vec<AttemptId>>;

    // ── Executors ────────────────────────────────────────────────────────────────────────────────────────────

    /// Stores heartbeats, with the time of the database's clock.
    async fn record_heartbeats(&self, heartbeats: &[Heartbeat]) -> Result<()>;

    /// All executors with a stored heartbeat, sorted by group and name.
    async fn executors(&self) -> Result<Vec<Executor>>;

    /// Forgets executors that have sent no heartbeat since the given time, which was their last one. Returns those that
    /// were forgotten.
    ///
    /// An executor stays if it has sent a heartbeat meanwhile, or if one of its runs is `dispatching`, `queued` or
    /// `running`. Failover looks only at stored executors. A forgotten executor returns with its next heartbeat.
    async fn forget_executors(
        &self,
        executors: &[(ExecutorId, Timestamp)],
    ) -> Result<Vec<ExecutorId>>;

    // ── Dead letters ─────────────────────────────────────────────────────────────────────────────────────────

    /// Stores dead letters whose key is new. Returns their number. Deletes the oldest beyond
    /// [`MAX_DEAD_LETTERS`](crate::MAX_DEAD_LETTERS) (G15).
    async fn insert_dead_letters(&self, letters: &[NewDeadLetter]) -> Result<u64>;

    /// Dead letters that match the filter, in its order. Without a namespace, it looks at all that are stored.
    async fn list_dead_letters(&self, filter: &DeadLetterFilter) -> Result<Vec<DeadLetter>>;

    /// At most `limit` dead letters with an id below `before`, newest first. With `namespace`, only its letters (G18);
    /// without, also those of no namespace.
    async fn dead_letters(
        &self,
        namespace: Option<&Namespace>,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>> {
        let filter = DeadLetterFilter {
            namespace: namespace.cloned(),
            after: before,
            limit,
            ..DeadLetterFilter::default()
        };
        self.list_dead_letters(&filter).await
    }

    /// The dead letters with these ids, in the order given. Unknown ids are left out.
    async fn dead_letters_by_id(&self, ids: &[i64]) -> Result<Vec<DeadLetter>>;

    /// Deletes dead letters. Returns how many of them existed. With `namespace`, letters that are not its own stay, and
    /// count as unknown (G18).
    async fn delete_dead_letters(
        &self,
        namespace: Option<&Namespace>,
        ids: &[i64],
        by: &Actor,
    ) -> Result<u64>;

    // ── Keys of workers ──────────────────────────────────────────────────────────────────────────────────────

    /// Stores an enrolment token. Returns `false` and changes nothing if its id exists.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) for an id that is not 16 lower-case hexadecimal digits, for no uses, for
    /// a group of another namespace, and for an executor without a group. [`Conflict`](crate::ErrorKind::Conflict) if there are
    /// [`MAX_ENROLMENT_TOKENS`](crate::MAX_ENROLMENT_TOKENS) tokens that are not spent.
    /// [`AlreadyCreated`](crate::ErrorKind::AlreadyCreated) if an earlier request with the idempotency key created a token.
    async fn create_enrolment_token(&self, token: &NewEnrolmentToken) -> Result<bool>;

    /// All enrolment tokens, spent ones included, oldest first.
    async fn enrolment_tokens(&self) -> Result<Vec<StoredEnrolmentToken>>;

    /// Deletes an enrolment token. Returns whether it existed. Keys that it has enrolled stay.
    async fn delete_enrolment_token(&self, id: &str, by: &Actor) -> Result<bool>;

    /// The verifier of an enrolment token, which may be spent. `None` if there is no such token.
    async fn token_verifier(&self, id: &str) -> Result<Option<[u8; 32]>>;

    /// Allows new keys, one after the other in one transaction, and takes one use of the token that vouches for each.
    /// Returns the outcome of each.
    ///
    /// A rotation, and a token for this very executor, revoke the executor's other keys. Any other token enrols only an
    /// executor without a key, allowed or revoked. A repeated call answers [`AlreadyAllowed`](EnrolOutcome::AlreadyAllowed).
    /// With [`MAX_WORKER_KEYS`](crate::MAX_WORKER_KEYS) keys, a new one takes the place of the one that was revoked first.
    async fn enrol_workers(&self, keys: &[NewWorkerKey]) -> Result<Vec<EnrolOutcome>>;

    /// At most `limit` keys that changed after the change with this number, in the order of their last changes; 0 for
    /// all keys. See [`WorkerKeysPage::version`].
    async fn worker_keys(&self, changed_after: i64, limit: usize) -> Result<WorkerKeysPage>;

    /// Revokes a key, or allows it again. Returns whether the key exists.
    ///
    /// The first revocation by a user stays. A key that another one has replaced is not revoked by a user yet, so this
    /// call then sets [`changed_by`](crate::StoredWorkerKey::changed_by).
    async fn set_worker_key(
        &self,
        executor: &ExecutorId,
        key_id: &str,
        state: WorkerKeyState,
        by: &Actor,
    ) -> Result<bool>;

    // ── Queries ──────────────────────────────────────────────────────────────────────────────────────────────

    /// One run with its timeline.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such run.
    async fn run(&self, run: RunId) -> Result<RunDetail>;

    /// Runs that match the filter, in its order.
    ///
    /// It looks at [`MAX_SCANNED`](crate::MAX_SCANNED) runs, or 16 million ids of given jobs, so a page may be short.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if no job ever had one of the names.
    async fn list_runs(&self, filter: &RunFilter) -> Result<RunList>;

    /// The runs of one page of [`list_runs`](Self::list_runs), with its errors.
    async fn runs(&self, filter: &RunFilter) -> Result<Vec<Run>> {
        Ok(self.list_runs(filter).await?.runs)
    }

    /// At most `limit` lines of a run's log after the cursor `after`; 0 starts at the first line.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such run.
    async fn log_lines(&self, run: RunId, after: i64, limit: usize) -> Result<Vec<StoredLogLine>>;

    /// At most `limit` expected fire times of a job in `from..to`, each with the run that accounts for it (G1).
    ///
    /// The fire times follow from the present definition. A `skipped` run accounts for all fire times that it stands
    /// for.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such job.
    async fn ledger(
        &self,
        job: &JobName,
        from: Timestamp,
        to: Timestamp,
        limit: usize,
    ) -> Result<Vec<LedgerEntry>>;

    /// Counts over the whole store.
    async fn stats(&self) -> Result<StoreStats>;

    /// The oldest `queued` attempt of each executor that has one, in no order. It reads all live runs, so it is not for
    /// frequent calls.
    async fn oldest_queued_attempts(&self) -> Result<Vec<OldestQueued>>;

    /// The use of the adapter's connections at this instant. Asks nothing of the database. Empty if the adapter has no
    /// pools.
    fn pool_use(&self) -> Vec<PoolUse> {
        Vec::new()
    }

    // ── Changes ──────────────────────────────────────────────────────────────────────────────────────────────

    /// The present position for [`new_runs`](Self::new_runs), and at most `limit` live runs, newest first.
    ///
    /// A run that is written at the same time may be in this list and also be returned as a new one.
    async fn live_runs(&self, limit: usize) -> Result<LiveRuns>;

    /// Runs that were written after the cursor, about `limit` at most. Each run is returned once, also if its transaction
    /// commits after those of runs with higher ids.
    ///
    /// A run is passed over if its transaction commits later than
    /// [`MISSING_KEPT_MS`](crate::adapter::run_numbers::MISSING_KEPT_MS) after that of a run with a higher id. No call of
    /// a store takes that long.
    async fn new_runs(&self, after: &RunCursor, limit: usize) -> Result<NewRuns>;

    /// Which of these runs have another state or attempt now, or no longer exist. Each run is given once.
    async fn changed_runs(&self, known: &[KnownRun]) -> Result<ChangedRuns>;

    /// Numbers that tell whether any job was created, changed or deleted since they were read last.
    async fn jobs_fingerprint(&self) -> Result<JobsFingerprint>;

    /// At most `limit` jobs with an id above `after`, sorted by id. Deleted jobs are left out.
    async fn job_briefs(&self, after: Option<JobId>, limit: usize) -> Result<Vec<JobBrief>>;

    // ── Limits ───────────────────────────────────────────────────────────────────────────────────────────────

    /// The rate limits of groups, sorted by name.
    async fn group_rates(&self) -> Result<Vec<GroupRate>>;

    /// Sets the rate limit of a group, or removes it. Returns whether it has changed. Schedulers read it every
    /// second.
    ///
    /// # Errors
    ///
    /// [`Conflict`](crate::ErrorKind::Conflict) if there are [`MAX_GROUP_RATES`](crate::MAX_GROUP_RATES) others.
    async fn set_group_rate(
        &self,
        group: &GroupName,
        rate: Option<Rate>,
        by: &Actor,
    ) -> Result<bool>;

    // ── Maintenance ──────────────────────────────────────────────────────────────────────────────────────────

    /// Deletes at most `limit` sessions that have ended, and API tokens that ended more than `older_than_ms` ago. Returns
    /// their number. See [`Accounts`](crate::Accounts).
    async fn prune_accounts(&self, older_than_ms: u64, limit: usize) -> Result<u64>;

    /// Gives a part of the space of deleted rows back to the file system. Returns whether there is more to give back.
    ///
    /// The call is short, because other writers may have to wait for it. A store whose server does this on its own has
    /// nothing to do.
    async fn release_space(&self) -> Result<bool>;

    /// Repairs enabled `fixed_delay` jobs that neither run nor have a next fire time: sets that time. Returns their
    /// number, which should be 0.
    async fn repair_fixed_delay_jobs(&self) -> Result<u64>;
}
