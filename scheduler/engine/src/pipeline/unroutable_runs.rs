//! Runs that are due while no live executor can run them.
//!
//! They wait in memory until an executor appears; beyond a limit they wait in the store. After their dispatch deadline
//! they end `unroutable`.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use cueline_model::{JobId, OutcomeKind, Route, RunKind, Timestamp};
use cueline_runtime::Activator;
use cueline_store::{AttemptReport, ClaimedRun, Store, StoreError};

use crate::claims::NodeClaims;
use crate::counters::Counters;
use crate::database_clock::DatabaseClock;
use crate::liveness::self_check::SelfCheck;
use crate::scheduler_report::attempt_ended;

/// A run beyond the memory limit stays in the store for this long before it is claimed again.
const IN_STORE_MS: u64 = 10_000;

#[derive(Clone)]
pub(crate) struct UnroutableRuns {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) claims: Arc<NodeClaims>,
    pub(crate) self_check: Arc<SelfCheck>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) claim: Activator,
    /// The most runs held in memory.
    pub(crate) max_held: usize,
}

impl UnroutableRuns {
    /// Holds runs until an executor appears. Of the runs beyond the memory limit, it ends those whose deadline has
    /// passed and releases the others to the store.
    pub(crate) async fn hold(&self, runs: Vec<ClaimedRun>) -> Result<(), StoreError> {
        let mut runs = runs.into_iter();
        {
            let mut held = self.claims.unroutable();
            let room = self.max_held.saturating_sub(held.len());
            held.extend(runs.by_ref().take(room));
        }
        let now = self.clock.now();
        let is_expired = self.expiry();
        let (expired, rest): (Vec<_>, Vec<_>) = runs.partition(|run| is_expired(run, now));
        // Take the second step even if the first fails, because these runs are in no other list.
        let ended = self.end(expired, now).await;
        let released = self.release_to_store(rest, now).await;
        ended.and(released)
    }

    /// Ends the held runs whose dispatch deadline has passed.
    pub(crate) async fn end_expired(&self) -> Result<(), StoreError> {
        let now = self.clock.now();
        let is_expired = self.expiry();
        let mut expired: Vec<ClaimedRun> = self
            .claims
            .unroutable()
            .extract_if(.., |run| is_expired(run, now))
            .collect();
        if expired.is_empty() {
            return Ok(());
        }
        let jobs: BTreeSet<JobId> = expired.iter().map(|run| run.job.id).collect();
        let jobs: Vec<JobId> = jobs.into_iter().collect();
        let current = match self.store.definitions(&jobs).await {
            Ok(current) => current,
            Err(e) => {
                self.claims.unroutable().extend(expired);
                return Err(e);
            }
        };
        // An edit has released the runs of the old definition. The node that claims them applies the new deadline.
        let versions: HashMap<JobId, i64> =
            current.iter().map(|job| (job.id, job.version)).collect();
        expired.retain(|run| versions.get(&run.job.id) == Some(&run.job.version));
        self.end(expired, now).await
    }

    async fn release_to_store(
        &self,
        runs: Vec<ClaimedRun>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let Some(node) = self.claims.node().filter(|_| !runs.is_empty()) else {
            return Ok(());
        };
        let attempts: Vec<_> = runs.iter().map(ClaimedRun::attempt_id).collect();
        let due_at = now.plus_ms(IN_STORE_MS);
        let released = self
            .store
            .release_claims(node, &attempts, Some(due_at))
            .await;
        if released.is_err() {
            self.claims.schedule(runs);
        }
        released
    }

    async fn end(&self, expired: Vec<ClaimedRun>, now: Timestamp) -> Result<(), StoreError> {
        if expired.is_empty() {
            return Ok(());
        }
        let reports: Vec<AttemptReport> = expired.iter().map(|run| unroutable(run, now)).collect();
        match self.store.ingest_reports(&reports).await {
            Ok(ingested) => self.counters.note_ended(&ingested),
            Err(e) => {
                self.claims.unroutable().extend(expired);
                return Err(e);
            }
        }
        // The retry policy may have given them another attempt.
        self.claim.wake();
        Ok(())
    }

    /// Decides whether a run's dispatch deadline has passed.
    fn expiry(&self) -> impl Fn(&ClaimedRun, Timestamp) -> bool + use<> {
        let listening_since = self.self_check.listening_since();
        move |run, now| deadline(run, listening_since) <= now
    }
}

/// When the run ends `unroutable`.
///
/// A release to the store postpones the due time, so the wait of a first attempt counts from its fire time. A child has
/// the fire time of its parent, which may have run for long, and a backfill one of the past, so their wait counts from the
/// due time. The wait begins once
/// this node listens to heartbeats, because it knows no executors before that.
fn deadline(run: &ClaimedRun, listening_since: Option<Timestamp>) -> Timestamp {
    let is_late = matches!(run.kind, RunKind::Child | RunKind::Backfill);
    let since = if run.attempt == 1 && !is_late {
        run.fire_at
    } else {
        run.due_at
    };
    let spec = &run.job.spec;
    let since = listening_since.map_or(since, |listening| listening.max(since));
    since.plus_ms(spec.jitter.as_millis() + spec.dispatch_deadline.as_millis())
}

fn unroutable(run: &ClaimedRun, now: Timestamp) -> AttemptReport {
    let spec = &run.job.spec;
    let which = match &spec.route {
        Route::Executor(name) => format!(
            "executor {name} of group {} was not alive or could not",
            spec.group
        ),
        _ => format!("no live executor of group {} that can", spec.group),
    };
    let labels = if spec.selector.is_empty() {
        String::new()
    } else {
        format!(" with the labels {}", spec.selector)
    };
    let message = format!(
        "{which} run {}{labels} within {}",
        spec.handler.capability(),
        spec.dispatch_deadline
    );
    attempt_ended(run.attempt_id(), OutcomeKind::Unroutable, now, message)
}
