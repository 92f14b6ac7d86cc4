//! Claim: fires due jobs, and takes over waiting runs that no live node has claimed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cueline_model::{Namespace, OutcomeKind, Timestamp};
use cueline_runtime::{Duty, Next};
use cueline_store::{ClaimedRun, FireDueRequest, FiredRuns, NodeId, Planner, Store, StoreError};

use super::broadcast_hold::BroadcastHold;
use super::pace::Pace;
use super::plan::SchedulePlanner;
use super::quota_planner::QuotaPlanner;
use crate::claims::{NodeClaims, is_skipped_if_late};
use crate::counters::{Counters, add};
use crate::database_clock::DatabaseClock;
use crate::liveness::broker_reach::BrokerReach;
use crate::liveness::self_check::SelfCheck;
use crate::quotas::NamespaceQuotas;
use crate::scheduler_report::attempt_ended;

/// Claims runs that are due within the lookahead and puts them on the wheel.
pub(crate) struct Claim {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) claims: Arc<NodeClaims>,
    pub(crate) self_check: Arc<SelfCheck>,
    pub(crate) broker_reach: Arc<BrokerReach>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) quotas: Arc<NamespaceQuotas>,
    pub(crate) lookahead_ms: u64,
    pub(crate) poll_ms: u64,
    pub(crate) batch: usize,
    /// The size of the next transaction, at most `batch`: half of it after a failure, twice as much after a success.
    pub(crate) batch_now: usize,
    pub(crate) max_claimed: usize,
    /// Runs per due job in the last turn, at least 1. It determines how many jobs a batch has.
    pub(crate) runs_per_job: usize,
    /// Whether the last turn left due jobs.
    pub(crate) is_behind: bool,
    pub(crate) broadcast_hold: BroadcastHold,
    pub(crate) pace: Pace,
}

/// The wait while the node is not registered, has reached its memory limit, or may fire no more runs before others start or end.
const BLOCKED_WAIT: Duration = Duration::from_millis(20);
/// A held fire is planned at most this long after the end of the hold, because the next turn comes soon.
const HELD_MARGIN_MS: u64 = 1_000;

/// While due jobs are left, a job gets this many fire times in a turn. The store returns the jobs with the oldest fire
/// times first, so the runs are claimed nearly in the order of their due times. Otherwise one job's runs of several
/// seconds would come at once and wait for each other in their lane.
const ON_TIME_WHILE_BEHIND: usize = 8;

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
        // Half a lookahead is short enough: a run is claimed at least that long before its due time.
        let wait = Duration::from_millis(self.poll_ms.min(self.lookahead_ms / 2));
        // A claimed run that this node cannot publish would hold up its lane on all nodes.
        if self.broker_reach.is_cut_off(self.clock.now()) {
            return Ok(Next::After(wait));
        }
        let more_waiting = self.claim_waiting(node).await?;
        let now = self.clock.now();
        let room = self.pace.room(self.counters.left_queue(), now);
        self.counters.set_room_for_fires(room);
        // While many jobs are due, a batch is full: small ones would cost as much as large ones.
        if room < if self.is_behind { self.batch_now } else { 1 } {
            self.pace.wait(now);
            return Ok(if more_waiting {
                Next::Now
            } else {
                Next::After(BLOCKED_WAIT)
            });
        }
        let more_due = self.fire_due(node, room).await?;
        if more_waiting || more_due {
            return Ok(Next::Now);
        }
        Ok(Next::After(wait))
    }

    /// Claims retries, manual and child runs, and the runs of dead nodes. Returns whether there may be more.
    async fn claim_waiting(&self, node: NodeId) -> Result<bool, StoreError> {
        let waiting = self
            .store
            .claim_waiting(node, self.lookahead_ms, self.batch)
            .await?;
        add(&self.counters.claimed_runs, waiting.len());
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

    /// Fires due jobs, at most `room` runs and those of one job. Returns whether there may be more.
    async fn fire_due(&mut self, node: NodeId, room: usize) -> Result<bool, StoreError> {
        let now = self.clock.now();
        let has_all_heartbeats = self.self_check.has_all_heartbeats(now);
        let max_allowance_ms = self.self_check.intervals.all_heartbeats_after_ms + HELD_MARGIN_MS;
        let broadcasts = self
            .broadcast_hold
            .rule(has_all_heartbeats, max_allowance_ms, now);
        let mut planner = SchedulePlanner {
            lookahead_ms: self.lookahead_ms,
            max_on_time: if self.is_behind {
                ON_TIME_WHILE_BEHIND
            } else {
                usize::MAX
            },
            broadcasts,
            allowance_ms: self.pace.allowance_ms(now),
            ..SchedulePlanner::default()
        };
        let batch = self.batch_now.min(room);
        if batch < self.batch {
            planner.max_fire_times = planner.max_fire_times.min(batch);
        }
        let request = FireDueRequest {
            node,
            horizon_ms: self.lookahead_ms,
            // A job that fires often has many runs within the lookahead. A batch then has fewer jobs, which keeps the
            // transaction short.
            // Held jobs come first, because they are due for long. They must not keep the others out of the batch.
            limit: if broadcasts.holds {
                self.batch
            } else {
                (batch / self.runs_per_job).max(1)
            },
            max_runs: batch,
        };
        let fired = match self.fire(request, planner).await {
            Ok(fired) => fired,
            Err(e) => {
                // A transaction that is too large for this database would fail in the same way again.
                self.batch_now = (batch / 2).max(1);
                return Err(e);
            }
        };
        if batch == self.batch_now {
            self.batch_now = batch.saturating_mul(2).min(self.batch);
        }
        self.counters
            .set_room_for_fires(self.pace.take(fired.runs.len()));
        if !fired.limit_reached {
            self.pace.caught_up();
        }
        self.runs_per_job = fired.runs.len().div_ceil(fired.due_jobs.max(1)).max(1);
        self.is_behind = fired.limit_reached;
        add(&self.counters.fires, fired.runs.len());
        add(&self.counters.claimed_runs, fired.runs.len());
        self.claims.schedule(fired.runs);
        if has_all_heartbeats && !fired.limit_reached {
            self.broadcast_hold.finish();
        }
        // A batch of held jobs only is the same at once again.
        let is_all_held = broadcasts.holds && fired.due_jobs == 0;
        Ok(fired.limit_reached && !is_all_held)
    }

    /// Fires due jobs within the quotas of their namespaces.
    async fn fire(
        &self,
        request: FireDueRequest,
        schedule: SchedulePlanner,
    ) -> Result<FiredRuns, StoreError> {
        let waiting = self.quotas.waiting();
        let with_quotas = QuotaPlanner {
            schedule,
            waiting: &waiting,
        };
        let planner: &dyn Planner = if waiting.is_empty() {
            &with_quotas.schedule
        } else {
            &with_quotas
        };
        let fired = self.store.fire_due(request, planner).await?;
        if !waiting.is_empty() {
            self.note_fired(&fired);
        }
        Ok(fired)
    }

    fn note_fired(&self, fired: &FiredRuns) {
        let mut written: HashMap<Namespace, usize> = HashMap::new();
        for run in &fired.runs {
            *written.entry(run.job.spec.name.namespace()).or_default() += 1;
        }
        for (namespace, runs) in &written {
            self.quotas.add_waiting(namespace, *runs);
        }
        for (namespace, fires) in &fired.skipped_by_quota {
            self.quotas.note_skipped(namespace, *fires);
        }
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
        written.map(|ingested| self.counters.note_ended(&ingested))
    }
}

/// Whether a node that died wrote the run ahead of its fire time, and it is now too late for policy `skip`. A run whose
/// due time was postponed, because it waited for an executor, is not a misfire.
fn is_misfire(run: &ClaimedRun, now: Timestamp) -> bool {
    let spec = &run.job.spec;
    is_skipped_if_late(run)
        && run.due_at == spec.due_at(run.job.id, run.fire_at)
        && run.due_at.plus_ms(spec.misfire.grace.as_millis()) < now
}
