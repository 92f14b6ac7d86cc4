//! Claim: fires due jobs, and takes over waiting runs that no live node has claimed.

use std::sync::Arc;
use std::time::Duration;

use cueline_model::{MisfirePolicy, OutcomeKind, RunKind, Timestamp};
use cueline_runtime::{Duty, Next};
use cueline_store::{ClaimedRun, FireDueRequest, NodeId, Store, StoreError};

use super::node_claims::NodeClaims;
use super::plan::SchedulePlanner;
use crate::database_clock::DatabaseClock;
use crate::scheduler_report::attempt_ended;

/// Claims runs that are due within the lookahead and puts them on the wheel.
pub(crate) struct Claim {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) claims: Arc<NodeClaims>,
    pub(crate) lookahead_ms: u64,
    pub(crate) poll_ms: u64,
    pub(crate) batch: usize,
    /// The size of the next transaction, at most `batch`: half of it after a failure, twice as much after a success.
    pub(crate) batch_now: usize,
    pub(crate) max_claimed: usize,
    /// Runs per due job in the last turn, at least 1. It determines how many jobs a batch has.
    pub(crate) runs_per_job: usize,
}

/// The wait while the node is not registered or has reached its memory limit.
const BLOCKED_WAIT: Duration = Duration::from_millis(20);

impl Duty for Claim {
    type Error = StoreError;

    fn name(&self) -> &'static str {
        "claim"
    }

    async fn activate(&mut self) -> Result<Next, StoreError> {
        let turn = self.turn().await;
        self.claims.note_uncertain_result(turn)
    }
}

impl Claim {
    async fn turn(&mut self) -> Result<Next, StoreError> {
        let Some(node) = self.claims.node() else {
            return Ok(Next::After(BLOCKED_WAIT));
        };
        // At the memory limit, due runs safely wait in the store.
        if self.max_claimed.saturating_sub(self.claims.claimed_count()) < self.batch {
            return Ok(Next::After(BLOCKED_WAIT));
        }
        let more_waiting = self.claim_waiting(node).await?;
        let more_due = self.fire_due(node).await?;
        if more_waiting || more_due {
            return Ok(Next::Now);
        }
        // Half a lookahead is short enough: a run is claimed at least that long before its due time.
        let wait = self.poll_ms.min(self.lookahead_ms / 2);
        Ok(Next::After(Duration::from_millis(wait)))
    }

    /// Claims retries, manual and child runs, and the runs of dead nodes. Returns whether there may be more.
    async fn claim_waiting(&self, node: NodeId) -> Result<bool, StoreError> {
        let waiting = self
            .store
            .claim_waiting(node, self.lookahead_ms, self.batch)
            .await?;
        let may_be_more = waiting.len() >= self.batch;
        let now = self.clock.now();
        let (misfires, waiting): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|run| is_misfire(run, now));
        // Schedule before writing the misfires, which may fail. No other node looks for runs that this node has
        // claimed.
        self.claims.schedule(waiting);
        self.skip_misfires(misfires).await?;
        Ok(may_be_more)
    }

    /// Fires due jobs. Returns whether there may be more.
    async fn fire_due(&mut self, node: NodeId) -> Result<bool, StoreError> {
        let mut planner = SchedulePlanner {
            lookahead_ms: self.lookahead_ms,
            ..SchedulePlanner::default()
        };
        let batch = self.batch_now;
        if batch < self.batch {
            planner.max_fire_times = planner.max_fire_times.min(batch);
        }
        let request = FireDueRequest {
            node,
            horizon_ms: self.lookahead_ms,
            // A job that fires often has many runs within the lookahead. A batch then has fewer jobs, which keeps the
            // transaction short.
            limit: (batch / self.runs_per_job).max(1),
            max_runs: batch,
        };
        let fired = match self.store.fire_due(request, &planner).await {
            Ok(fired) => fired,
            Err(e) => {
                // A transaction that is too large for this database would fail in the same way again.
                self.batch_now = (batch / 2).max(1);
                return Err(e);
            }
        };
        self.batch_now = batch.saturating_mul(2).min(self.batch);
        self.runs_per_job = fired.runs.len().div_ceil(fired.due_jobs.max(1)).max(1);
        self.claims.schedule(fired.runs);
        Ok(fired.limit_reached)
    }

    async fn skip_misfires(&self, misfires: Vec<ClaimedRun>) -> Result<(), StoreError> {
        if misfires.is_empty() {
            return Ok(());
        }
        let now = self.clock.now();
        let reports: Vec<_> = misfires
            .iter()
            .map(|run| {
                let late_ms = now.since_ms(run.due_at);
                let message = format!("skipped by misfire policy skip; it was {late_ms} ms late");
                attempt_ended(run.attempt_id(), OutcomeKind::Skipped, now, message)
            })
            .collect();
        let written = self.store.ingest_reports(&reports).await;
        if written.is_err() {
            // These runs are claimed, but neither skipped nor on the wheel. Only a new claim finds them.
            self.claims.set_uncertain();
        }
        written.map(drop)
    }
}

/// Whether a node that died wrote the run ahead of its fire time, and it is now too late for policy `skip`. A run whose
/// due time was postponed, because it waited for an executor, is not a misfire.
fn is_misfire(run: &ClaimedRun, now: Timestamp) -> bool {
    let spec = &run.job.spec;
    run.kind == RunKind::Schedule
        && run.attempt == 1
        && !run.maybe_published
        && spec.misfire.policy == MisfirePolicy::Skip
        && run.due_at == spec.due_at(run.job.id, run.fire_at)
        && run.due_at.plus_ms(spec.misfire.grace.as_millis()) < now
}
