//! The port, method by method; the work is in the modules of the concerns.
//!
//! Each call is bounded in time. One whose transaction the server has undone because it collided with others, or because a day's
//! partition was dropped under it, is made again; it has not happened.

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

use crate::PgStore;
use crate::error::{is_collision, is_missing_day};

type Result<T> = std::result::Result<T, StoreError>;

/// A call that was undone is made again so many times.
const MOST_REPEATS: u32 = 5;

impl PgStore {
    /// Whether to make a call again, that has been repeated so many times.
    fn again<T>(&self, result: &Result<T>, repeats: u32) -> bool {
        let Err(error) = result else { return false };
        if is_missing_day(error) {
            self.db.forget_days();
        }
        repeats < MOST_REPEATS && (is_collision(error) || is_missing_day(error))
    }
}

macro_rules! writing {
    ($self:ident, $call:expr) => {{
        let mut repeats = 0;
        loop {
            let result = $self.db.bounded($call).await;
            if !$self.again(&result, repeats) {
                return result;
            }
            repeats += 1;
        }
    }};
}

macro_rules! reading {
    ($self:ident, $call:expr) => {
        $self.db.bounded($call).await
    };
}

#[async_trait]
impl Store for PgStore {
    async fn now(&self) -> Result<Timestamp> {
        reading!(self, async {
            self.db.now(&mut *self.db.glance().await?).await
        })
    }

    async fn store_id(&self) -> Result<StoreId> {
        reading!(self, self.read_identity())
    }

    async fn register_node(&self, name: &str, lease_ms: u64) -> Result<RegisteredNode> {
        writing!(self, self.register(name, lease_ms))
    }

    async fn rejoin_node(&self, old: NodeId, name: &str, lease_ms: u64) -> Result<NodeId> {
        writing!(self, self.rejoin(old, name, lease_ms))
    }

    async fn renew_lease(&self, node: NodeId, lease_ms: u64) -> Result<bool> {
        writing!(self, self.renew(node, lease_ms))
    }

    async fn release_lease(&self, node: NodeId) -> Result<()> {
        writing!(self, self.release(node))
    }

    async fn apply_jobs(&self, specs: &[JobSpec], dry_run: bool) -> Result<Vec<AppliedJob>> {
        writing!(self, self.apply(specs, dry_run))
    }

    async fn set_job_enabled(&self, job: &JobName, enabled: bool, by: &str) -> Result<JobId> {
        writing!(self, self.switch(job, enabled, by))
    }

    async fn delete_job(&self, job: &JobName, by: &str) -> Result<JobId> {
        writing!(self, self.delete(job, by))
    }

    async fn dispatching_attempts(&self, jobs: &[JobId]) -> Result<Vec<AttemptId>> {
        reading!(self, self.list_publishing(jobs))
    }

    async fn job(&self, name: &JobName) -> Result<JobSummary> {
        reading!(self, self.one_job(name))
    }

    async fn definitions(&self, ids: &[JobId]) -> Result<Vec<Arc<Job>>> {
        reading!(self, self.read_definitions(ids))
    }

    async fn jobs(&self, after: Option<&JobName>, limit: usize) -> Result<Vec<JobSummary>> {
        reading!(self, self.list_jobs(after, limit))
    }

    async fn fire_due(&self, request: FireDueRequest, planner: &dyn Planner) -> Result<FiredRuns> {
        writing!(self, self.fire(request, planner))
    }

    async fn claim_waiting(
        &self,
        node: NodeId,
        horizon_ms: u64,
        limit: usize,
    ) -> Result<Vec<ClaimedRun>> {
        writing!(self, self.claim(node, horizon_ms, limit))
    }

    async fn next_due_at(&self) -> Result<Option<Timestamp>> {
        reading!(self, self.next())
    }

    async fn begin_dispatch(
        &self,
        node: NodeId,
        marks: &[DispatchRequest],
    ) -> Result<Vec<AttemptId>> {
        writing!(self, self.begin(node, marks))
    }

    async fn confirm_dispatch(&self, attempts: &[AttemptId]) -> Result<()> {
        writing!(self, self.confirm(attempts))
    }

    async fn release_claims(
        &self,
        node: NodeId,
        attempts: &[AttemptId],
        due_at: Option<Timestamp>,
    ) -> Result<()> {
        writing!(self, self.give_up(node, attempts, due_at))
    }

    async fn ingest_reports(&self, reports: &[AttemptReport]) -> Result<IngestSummary> {
        writing!(self, self.apply_reports(reports))
    }

    async fn cancel_run(&self, run: RunId, by: &str) -> Result<CancelOutcome> {
        writing!(self, self.cancel_run(run, by))
    }

    async fn pending_cancellations(&self, limit: usize) -> Result<Vec<PendingCancellation>> {
        reading!(self, self.cancels(limit))
    }

    async fn trigger_claimed(
        &self,
        node: Option<NodeId>,
        request: &TriggerRequest,
    ) -> Result<(TriggerOutcome, Vec<ClaimedRun>)> {
        writing!(self, self.run_now(node, request))
    }

    async fn record_heartbeats(&self, beats: &[Heartbeat]) -> Result<()> {
        writing!(self, self.write_beats(beats))
    }

    async fn executors(&self) -> Result<Vec<Executor>> {
        reading!(self, self.all_executors())
    }

    async fn outstanding_attempts(
        &self,
        older_than_ms: u64,
        after: Option<RunId>,
        limit: usize,
    ) -> Result<Vec<OutstandingAttempt>> {
        reading!(self, self.held(older_than_ms, after, limit))
    }

    async fn reclaim_attempts(
        &self,
        node: NodeId,
        attempts: &[AttemptId],
        reason: &str,
    ) -> Result<Vec<ClaimedRun>> {
        writing!(self, self.publish_again(node, attempts, reason))
    }

    async fn overdue_attempts(&self, slack_ms: u64, limit: usize) -> Result<Vec<AttemptId>> {
        reading!(self, self.too_long(slack_ms, limit))
    }

    async fn insert_dead_letters(&self, letters: &[NewDeadLetter]) -> Result<u64> {
        writing!(self, self.keep_dead(letters))
    }

    async fn dead_letters(&self, before: Option<i64>, limit: usize) -> Result<Vec<DeadLetter>> {
        reading!(self, self.list_dead(before, limit))
    }

    async fn dead_letters_by_id(&self, ids: &[i64]) -> Result<Vec<DeadLetter>> {
        reading!(self, self.find_dead(ids))
    }

    async fn delete_dead_letters(&self, ids: &[i64]) -> Result<u64> {
        writing!(self, self.delete_dead(ids))
    }

    async fn run(&self, run: RunId) -> Result<RunDetail> {
        reading!(self, self.one_run(run))
    }

    async fn runs(&self, filter: &RunFilter) -> Result<Vec<Run>> {
        reading!(self, self.list_runs(filter))
    }

    async fn log_lines(&self, run: RunId, after: i64, limit: usize) -> Result<Vec<StoredLogLine>> {
        reading!(self, self.log_lines(run, after, limit))
    }

    async fn ledger(
        &self,
        job: &JobName,
        from: Timestamp,
        to: Timestamp,
        limit: usize,
    ) -> Result<Vec<LedgerEntry>> {
        reading!(self, self.fire_times(job, from, to, limit))
    }

    async fn stats(&self) -> Result<StoreStats> {
        reading!(self, self.numbers())
    }

    async fn delete_expired_runs(&self, older_than_ms: u64, limit: usize) -> Result<u64> {
        writing!(self, self.forget(older_than_ms, limit))
    }

    async fn repair_fixed_delay_jobs(&self) -> Result<u64> {
        writing!(self, self.mend())
    }
}
