//! The port.

use std::sync::Arc;

use async_trait::async_trait;
use cueline_model::{
    AttemptId, ExecutorName, Heartbeat, Job, JobId, JobName, JobSpec, RunId, StoreId, Timestamp,
};

use crate::error::StoreError;
use crate::types::{
    AppliedJob, AttemptReport, CancelOutcome, ClaimedRun, DeadLetter, DispatchRequest, Executor,
    FireDueRequest, FiredRuns, IngestSummary, JobSummary, LedgerEntry, NewDeadLetter, NodeId,
    OutstandingAttempt, PendingCancellation, Plan, RegisteredNode, Run, RunDetail, RunFilter,
    StoreStats, StoredLogLine, TriggerOutcome, TriggerRequest,
};

/// Decides what a due job does. Called inside the transaction of [`Store::fire_due`]: it must be quick and pure.
pub trait Planner: Send + Sync {
    /// The plan for `job`, whose next fire time was `due`, at `now` by the database's clock. `live` are the live executors
    /// that can run it, sorted by name.
    fn plan(&self, job: &Job, due: Timestamp, now: Timestamp, live: &[ExecutorName]) -> Plan;
}

type Result<T> = std::result::Result<T, StoreError>;

/// The store. Each method is one atomic transaction: it happens whole or not at all, and when it has returned it is on disk.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    // ── Nodes ────────────────────────────────────────────────────────────────────────────────────────────────

    /// The database's clock.
    async fn now(&self) -> Result<Timestamp>;

    /// Which store this is: made with it, kept in it, the same for all nodes and after each start. Run ids mean something only together with it.
    async fn store_id(&self) -> Result<StoreId>;

    /// Makes a scheduler process known, with a lease of `lease_ms`. A name belongs to one process at a time: the lease of an earlier
    /// node of the same name ends, so that a restart takes over at once what it had claimed before. If no other node is alive, each enabled
    /// `startup` job gets its run (fire time: now).
    async fn register_node(&self, name: &str, lease_ms: u64) -> Result<RegisteredNode>;

    /// Registers a process anew that goes on after it has lost track of its claims: its lease had run out, or it does not know what a failed
    /// call has done. The lease of `old`, and of any earlier node of the same name, ends, and others may take over what it had claimed. It is
    /// no start: no `startup` job gets a run.
    async fn rejoin_node(&self, old: NodeId, name: &str, lease_ms: u64) -> Result<NodeId>;

    /// Renews the node's lease; `false` when it had run out and others may have taken over its runs: register anew.
    async fn renew_lease(&self, node: NodeId, lease_ms: u64) -> Result<bool>;

    /// Ends the node's lease: others may take over its runs at once.
    async fn release_lease(&self, node: NodeId) -> Result<()>;

    // ── Jobs ─────────────────────────────────────────────────────────────────────────────────────────────────

    /// Creates and changes jobs so that they are as given; jobs not named stay as they are. All or none. A changed job gets a new version, its
    /// next fire time is found anew from now, and its runs that were written ahead of their fire time are withdrawn. Runs that
    /// wait past their fire time stay and go out by the new definition. With `dry_run` nothing changes.
    ///
    /// A parent that is neither in `specs` nor in the store is refused ([`ErrorKind::Invalid`](crate::ErrorKind)), and so is a circle of parents.
    async fn apply_jobs(&self, specs: &[JobSpec], dry_run: bool) -> Result<Vec<AppliedJob>>;

    /// Stops or starts a job's schedule (`enabled`, a new version). On a pause, runs written ahead of their fire time are withdrawn, and
    /// runs that wait in `scheduled` end `skipped` (first attempt) or `cancelled`. The job's id; a job that is like that already is left alone.
    async fn set_job_enabled(&self, job: &JobName, enabled: bool, by: &str) -> Result<JobId>;

    /// Deletes a job; its runs are kept, and those that wait end as with a pause. Refused while another job names it as its parent. Its id.
    async fn delete_job(&self, job: &JobName, by: &str) -> Result<JobId>;

    /// The attempts of these jobs that are `dispatching`. When those that were so after a change are so no more, no trigger of the old definition
    /// can be published any more.
    async fn dispatching_attempts(&self, jobs: &[JobId]) -> Result<Vec<AttemptId>>;

    /// One job.
    async fn job(&self, name: &JobName) -> Result<JobSummary>;

    /// The definitions with these ids, deleted ones included; ids that do not exist are left out.
    async fn definitions(&self, ids: &[JobId]) -> Result<Vec<Arc<Job>>>;

    /// Jobs by name, from `after` (exclusive) on, at most `limit`.
    async fn jobs(&self, after: Option<&JobName>, limit: usize) -> Result<Vec<JobSummary>>;

    // ── From due to queued ───────────────────────────────────────────────────────────────────────────────────

    /// Locks the jobs that are due, calls the planner for each, writes the runs (claimed by the node) and the next
    /// fire times. A fire time that has its run already is left alone, whoever wrote it.
    async fn fire_due(&self, request: FireDueRequest, planner: &dyn Planner) -> Result<FiredRuns>;

    /// Claims runs that nobody alive works on and that are due within `horizon_ms`: retries, manual triggers, child runs, and
    /// what a dead node left `scheduled` or `dispatching`. Oldest due first, at most `limit`.
    async fn claim_waiting(
        &self,
        node: NodeId,
        horizon_ms: u64,
        limit: usize,
    ) -> Result<Vec<ClaimedRun>>;

    /// When the next job or unclaimed run is due, whatever the horizon; `None` when there is none.
    async fn next_due_at(&self) -> Result<Option<Timestamp>>;

    /// Takes runs from `scheduled` to `dispatching`, if they are still in that attempt, claimed by `node`, and their job is still in that
    /// version. Runs that are already `dispatching` by this node for the same attempt and executor stay so and count as taken.
    /// Those taken, in the order given. The others must not be published; whoever changed them has released the claim where there is
    /// something left to do.
    async fn begin_dispatch(
        &self,
        node: NodeId,
        marks: &[DispatchRequest],
    ) -> Result<Vec<AttemptId>>;

    /// The broker has confirmed these: `dispatching` → `queued`. Runs that have gone further already are left alone.
    async fn confirm_dispatch(&self, attempts: &[AttemptId]) -> Result<()>;

    /// Gives up the claim of these runs, so that they are found by [`claim_waiting`](Self::claim_waiting) again, not before `due_at` if given.
    /// What was `dispatching` and surely not published goes back to `scheduled`; or it ends, if it was cancelled, or if its job was paused or
    /// deleted meanwhile: whoever did that waits for no more than that it is not [`publishing`](Self::publishing). A pause leaves alone what was
    /// triggered by hand.
    async fn release_claims(
        &self,
        node: NodeId,
        attempts: &[AttemptId],
        due_at: Option<Timestamp>,
    ) -> Result<()>;

    // ── From queued to ended ─────────────────────────────────────────────────────────────────────────────────

    /// Applies reports, in order, each once: guarded by state and attempt. What follows from an end (retry, child runs, next
    /// fixed-delay fire time; see [`cueline_model::conclude`]) is written in the same transaction.
    async fn ingest_reports(&self, reports: &[AttemptReport]) -> Result<IngestSummary>;

    /// Ends a run that has not been published, or notes the wish on one that has.
    async fn cancel_run(&self, run: RunId, by: &str) -> Result<CancelOutcome>;

    /// Cancellations that have not taken effect; at most `limit`.
    async fn pending_cancellations(&self, limit: usize) -> Result<Vec<PendingCancellation>>;

    /// Runs a job now, whether its schedule is enabled or not. The runs wait for a node.
    async fn trigger(&self, request: &TriggerRequest) -> Result<TriggerOutcome> {
        Ok(self.trigger_claimed(None, request).await?.0)
    }

    /// The same. Runs that are due by now are claimed by `node` at once, and returned as well, unless nobody would find them when it dies.
    async fn trigger_claimed(
        &self,
        node: Option<NodeId>,
        request: &TriggerRequest,
    ) -> Result<(TriggerOutcome, Vec<ClaimedRun>)>;

    // ── Executors ────────────────────────────────────────────────────────────────────────────────────────────

    /// Stores heartbeats, with the database's time.
    async fn record_heartbeats(&self, heartbeats: &[Heartbeat]) -> Result<()>;

    /// All executors that were ever heard and not forgotten, by group and name.
    async fn executors(&self) -> Result<Vec<Executor>>;

    /// Runs `queued` or `running` since more than `older_than_ms`, with an id above `after`, by id, at most `limit`.
    async fn outstanding_attempts(
        &self,
        older_than_ms: u64,
        after: Option<RunId>,
        limit: usize,
    ) -> Result<Vec<OutstandingAttempt>>;

    /// Puts attempts that their executor does not hold back into `dispatching`, claimed by `node`, if they are still `queued` or `running` in that
    /// attempt: they are to be published again as they are, to the group that they were sent to. With a line in their timeline. Those of a job that
    /// was paused or deleted meanwhile end instead, but for what was triggered by hand and whose job is only paused.
    async fn reclaim_attempts(
        &self,
        node: NodeId,
        attempts: &[AttemptId],
        reason: &str,
    ) -> Result<Vec<ClaimedRun>>;

    /// Runs `running` for longer than their job's timeout, kill grace and `slack_ms` together: nobody reports them any more. An edit that lowers
    /// the timeout while runs of the job are out does not count here: their workers go by the one that they went out with.
    async fn overdue_attempts(&self, slack_ms: u64, limit: usize) -> Result<Vec<AttemptId>>;

    // ── Dead letters ─────────────────────────────────────────────────────────────────────────────────────────

    /// Keeps messages that nobody could take, those that are new by their key; how many. Past [`MAX_DEAD_LETTERS`](crate::MAX_DEAD_LETTERS)
    /// the oldest are deleted.
    async fn insert_dead_letters(&self, letters: &[NewDeadLetter]) -> Result<u64>;

    /// Dead letters with a number below `before`, newest first, at most `limit`.
    async fn dead_letters(&self, before: Option<i64>, limit: usize) -> Result<Vec<DeadLetter>>;

    /// Those with these numbers, in the order given; numbers that do not exist are left out.
    async fn dead_letters_by_id(&self, ids: &[i64]) -> Result<Vec<DeadLetter>>;

    /// Deletes dead letters; how many there were.
    async fn delete_dead_letters(&self, ids: &[i64]) -> Result<u64>;

    // ── For people ───────────────────────────────────────────────────────────────────────────────────────────

    /// One run with its timeline.
    async fn run(&self, run: RunId) -> Result<RunDetail>;

    /// Runs, newest first.
    async fn runs(&self, filter: &RunFilter) -> Result<Vec<Run>>;

    /// Lines of a run's log with a cursor above `after`, at most `limit`.
    async fn log_lines(&self, run: RunId, after: i64, limit: usize) -> Result<Vec<StoredLogLine>>;

    /// Every expected fire time of `job` in `from..to` (by its present definition) with what became of it; at most `limit`. A fire time that a
    /// `skipped` run stands for has that run.
    async fn ledger(
        &self,
        job: &JobName,
        from: Timestamp,
        to: Timestamp,
        limit: usize,
    ) -> Result<Vec<LedgerEntry>>;

    /// Numbers about the whole.
    async fn stats(&self) -> Result<StoreStats>;

    // ── Upkeep ───────────────────────────────────────────────────────────────────────────────────────────────

    /// Deletes runs that ended before now − `older_than_ms`, with their logs and timelines, at most `limit`; how many. A store that keeps runs by
    /// the day may keep one up to two days longer, so as to drop its day whole; what it drops so comes on top of the limit, which is there to keep
    /// the work of one call short.
    async fn delete_expired_runs(&self, older_than_ms: u64, limit: usize) -> Result<u64>;

    /// Repairs what should not happen: an enabled `fixed_delay` job without a next fire time and without a live run gets one. How many.
    async fn repair_fixed_delay_jobs(&self) -> Result<u64>;
}
