//! The port, method by method; the work is in the modules of the concerns.

use std::sync::Arc;

use async_trait::async_trait;
use cueline_model::{
    AttemptId, Heartbeat, Job, JobId, JobName, JobSpec, RunId, StoreId, Timestamp,
};
use cueline_store::{
    AppliedJob, AttemptReport, CancelOutcome, ClaimedRun, DeadLetter, DispatchRequest, Executor,
    FireDueRequest, FiredRuns, IngestSummary, JobSummary, LedgerEntry, NewDeadLetter, NodeId,
    OutstandingAttempt, PendingCancellation, Planner, RegisteredNode, Run, RunDetail, RunFilter,
    Store, StoreError, StoreStats, StoredLogLine, TriggerOutcome, TriggerRequest,
};

use crate::SqliteStore;

type Result<T> = std::result::Result<T, StoreError>;

#[async_trait]
impl Store for SqliteStore {
    async fn now(&self) -> Result<Timestamp> {
        Ok(self.db.now())
    }

    async fn store_id(&self) -> Result<StoreId> {
        self.read_identity().await
    }

    async fn register_node(&self, name: &str, lease_ms: u64) -> Result<RegisteredNode> {
        self.register(name, lease_ms).await
    }

    async fn rejoin_node(&self, old: NodeId, name: &str, lease_ms: u64) -> Result<NodeId> {
        self.rejoin(old, name, lease_ms).await
    }

    async fn renew_lease(&self, node: NodeId, lease_ms: u64) -> Result<bool> {
        self.renew(node, lease_ms).await
    }

    async fn release_lease(&self, node: NodeId) -> Result<()> {
        self.release(node).await
    }

    async fn apply_jobs(&self, specs: &[JobSpec], dry_run: bool) -> Result<Vec<AppliedJob>> {
        self.apply(specs, dry_run).await
    }

    async fn set_job_enabled(&self, job: &JobName, enabled: bool, by: &str) -> Result<JobId> {
        self.switch(job, enabled, by).await
    }

    async fn delete_job(&self, job: &JobName, by: &str) -> Result<JobId> {
        self.delete(job, by).await
    }

    async fn dispatching_attempts(&self, jobs: &[JobId]) -> Result<Vec<AttemptId>> {
        self.list_publishing(jobs).await
    }

    async fn job(&self, name: &JobName) -> Result<JobSummary> {
        self.one_job(name).await
    }

    async fn definitions(&self, ids: &[JobId]) -> Result<Vec<Arc<Job>>> {
        self.read_definitions(ids).await
    }

    async fn jobs(&self, after: Option<&JobName>, limit: usize) -> Result<Vec<JobSummary>> {
        self.list_jobs(after, limit).await
    }

    async fn fire_due(&self, request: FireDueRequest, planner: &dyn Planner) -> Result<FiredRuns> {
        self.fire(request, planner).await
    }

    async fn claim_waiting(
        &self,
        node: NodeId,
        horizon_ms: u64,
        limit: usize,
    ) -> Result<Vec<ClaimedRun>> {
        self.claim(node, horizon_ms, limit).await
    }

    async fn next_due_at(&self) -> Result<Option<Timestamp>> {
        self.next().await
    }

    async fn begin_dispatch(
        &self,
        node: NodeId,
        marks: &[DispatchRequest],
    ) -> Result<Vec<AttemptId>> {
        self.begin(node, marks).await
    }

    async fn confirm_dispatch(&self, attempts: &[AttemptId]) -> Result<()> {
        self.confirm(attempts).await
    }

    async fn release_claims(
        &self,
        node: NodeId,
        attempts: &[AttemptId],
        due_at: Option<Timestamp>,
    ) -> Result<()> {
        self.give_up(node, attempts, due_at).await
    }

    async fn ingest_reports(&self, reports: &[AttemptReport]) -> Result<IngestSummary> {
        self.apply_reports(reports).await
    }

    async fn cancel_run(&self, run: RunId, by: &str) -> Result<CancelOutcome> {
        self.cancel_run(run, by).await
    }

    async fn pending_cancellations(&self, limit: usize) -> Result<Vec<PendingCancellation>> {
        self.cancels(limit).await
    }

    async fn trigger_claimed(
        &self,
        node: Option<NodeId>,
        request: &TriggerRequest,
    ) -> Result<(TriggerOutcome, Vec<ClaimedRun>)> {
        self.run_now(node, request).await
    }

    async fn record_heartbeats(&self, beats: &[Heartbeat]) -> Result<()> {
        self.write_beats(beats).await
    }

    async fn executors(&self) -> Result<Vec<Executor>> {
        self.all_executors().await
    }

    async fn outstanding_attempts(
        &self,
        older_than_ms: u64,
        after: Option<RunId>,
        limit: usize,
    ) -> Result<Vec<OutstandingAttempt>> {
        self.held(older_than_ms, after, limit).await
    }

    async fn reclaim_attempts(
        &self,
        node: NodeId,
        attempts: &[AttemptId],
        reason: &str,
    ) -> Result<Vec<ClaimedRun>> {
        self.publish_again(node, attempts, reason).await
    }

    async fn overdue_attempts(&self, slack_ms: u64, limit: usize) -> Result<Vec<AttemptId>> {
        self.too_long(slack_ms, limit).await
    }

    async fn insert_dead_letters(&self, letters: &[NewDeadLetter]) -> Result<u64> {
        self.keep_dead(letters).await
    }

    async fn dead_letters(&self, before: Option<i64>, limit: usize) -> Result<Vec<DeadLetter>> {
        self.list_dead(before, limit).await
    }

    async fn dead_letters_by_id(&self, ids: &[i64]) -> Result<Vec<DeadLetter>> {
        self.find_dead(ids).await
    }

    async fn delete_dead_letters(&self, ids: &[i64]) -> Result<u64> {
        self.delete_dead(ids).await
    }

    async fn run(&self, run: RunId) -> Result<RunDetail> {
        self.one_run(run).await
    }

    async fn runs(&self, filter: &RunFilter) -> Result<Vec<Run>> {
        self.list_runs(filter).await
    }

    async fn log_lines(&self, run: RunId, after: i64, limit: usize) -> Result<Vec<StoredLogLine>> {
        self.log_lines(run, after, limit).await
    }

    async fn ledger(
        &self,
        job: &JobName,
        from: Timestamp,
        to: Timestamp,
        limit: usize,
    ) -> Result<Vec<LedgerEntry>> {
        self.fire_times(job, from, to, limit).await
    }

    async fn stats(&self) -> Result<StoreStats> {
        self.numbers().await
    }

    async fn delete_expired_runs(&self, older_than_ms: u64, limit: usize) -> Result<u64> {
        self.forget(older_than_ms, limit).await
    }

    async fn repair_fixed_delay_jobs(&self) -> Result<u64> {
        self.mend().await
    }
}
