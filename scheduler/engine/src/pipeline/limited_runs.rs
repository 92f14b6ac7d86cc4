//! Runs that wait for a rate limit or a concurrency limit of their jobs.
//!
//! They stay `scheduled` and claimed by this node. The store decides which ones pass ([`Store::begin_dispatch_in_lanes`]),
//! so a limit holds over all nodes. A run that is cancelled, paused or edited meanwhile is refused when it is tried, and
//! leaves. A node that ends leaves its waiting runs in the store, where the next claim finds them.

use std::sync::Arc;

use cueline_model::{AttemptId, OutcomeKind};
use cueline_runtime::Activator;
use cueline_store::{ClaimedRun, LimitWait, NodeId, Store, StoreError};

use super::ended_runs::EndedRuns;
use crate::claims::NodeClaims;
use crate::database_clock::DatabaseClock;
use crate::quotas::group_rates::GroupRates;
use crate::scheduler_report::attempt_ended;

/// A run beyond the memory limit stays in the store for this long before it is claimed again.
const IN_STORE_MS: u64 = 10_000;

pub(crate) struct LimitedRuns {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) claims: Arc<NodeClaims>,
    pub(crate) claim: Activator,
    pub(crate) group_rates: Arc<GroupRates>,
    pub(crate) ends: EndedRuns,
    /// The most runs held in memory.
    pub(crate) max_held: usize,
}

impl LimitedRuns {
    /// Adds the waiting runs that are to be tried now to the runs of a batch, and removes those that have to wait behind
    /// others.
    pub(crate) fn take(&self, due: Vec<ClaimedRun>, max: usize) -> Vec<ClaimedRun> {
        let mut waits = self.claims.limit_waits();
        if waits.is_empty() {
            return due;
        }
        let rates = self.group_rates.present();
        let mut runs = Vec::with_capacity(due.len());
        for run in due {
            let limits = run.limits(rates.get(&run.job.spec.group).copied());
            // The store refuses a run that has no room in its lane, and says how many are before it. A run whose executor has
            // the lane has none here, see `settle`.
            let has_room =
                waits.len() < self.max_held && waits.len_of_lane(&run) < run.job.spec.backlog;
            match limits.filter(|_| has_room) {
                Some(limits) => runs.extend(waits.join(run, &limits)),
                None => runs.push(run),
            }
        }
        let mut all = waits.pop(self.clock.now(), max);
        all.append(&mut runs);
        all
    }

    /// Notes a run that was let pass.
    pub(crate) fn note_dispatched(&self, run: &ClaimedRun) {
        if run.job.spec.concurrency.is_some() {
            self.claims.limit_waits().note_use(run);
        }
    }

    /// Ends a batch: holds the runs that were refused. Releases those beyond the memory limit to the store.
    ///
    /// Runs whose executors have lanes of their own are in none of them yet. Those beyond the backlog of their job or shard
    /// end here.
    pub(crate) async fn settle(
        &self,
        node: NodeId,
        refused: Vec<(ClaimedRun, LimitWait)>,
    ) -> Result<(), StoreError> {
        let mut beyond: Vec<AttemptId> = Vec::new();
        let mut discarded = Vec::new();
        {
            let mut waits = self.claims.limit_waits();
            if refused.is_empty() && waits.is_empty() {
                return Ok(());
            }
            let now = self.clock.now();
            for (run, wait) in refused {
                let backlog = run.job.spec.backlog;
                if run.lane().is_none() && waits.len_of_lane(&run) >= backlog {
                    let why = format!("the backlog of {backlog} is full");
                    let report = attempt_ended(wait.attempt, OutcomeKind::Discarded, now, why);
                    discarded.push((run, report));
                    continue;
                }
                if waits.len() >= self.max_held {
                    beyond.push(wait.attempt);
                    continue;
                }
                tracing::debug!(run_id = %run.id, limit = %wait.key, reason = %wait.reason, "run waits for a limit");
                waits.hold(wait.key, wait.reason, run, now);
            }
            waits.end_try(now);
        }
        let ended = self.ends.write(discarded).await;
        if beyond.is_empty() {
            return ended;
        }
        let due_at = Some(self.clock.now().plus_ms(IN_STORE_MS));
        let released = self.store.release_claims(node, &beyond, due_at).await;
        if released.is_err() {
            self.claims.set_uncertain();
        }
        self.claim.wake();
        ended.and(released)
    }
}
