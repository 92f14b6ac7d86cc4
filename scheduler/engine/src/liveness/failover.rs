//! Failover (G10): moves the work of a silent executor to other executors.
//!
//! By then the executor has stopped its own attempts, because it fences itself earlier. Triggers that are still in its
//! queue never reached it and are routed again. Triggers that it has received may have started. Their attempts end
//! `lost`, and the job's `on_lost` decides what follows. When the executor returns, the store refuses its reports about
//! these attempts.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cueline_broker::{Broker, QueueId};
use cueline_model::{ExecutorId, OutcomeKind, RunState, Timestamp};
use cueline_runtime::{Activator, Duty, Next};
use cueline_store::{AttemptReport, OutstandingAttempt, Store};

use super::executor_attempts::{BATCH, ExecutorAttempts};
use super::registry::Registry;
use super::self_check::SelfCheck;
use crate::addresses::executor_queue;
use crate::counters::{Counters, add};
use crate::database_clock::DatabaseClock;
use crate::error::EngineError;
use crate::scheduler_report::attempt_ended;

/// Fails over executors that have fallen silent.
pub(crate) struct Failover {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) broker: Broker,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) self_check: Arc<SelfCheck>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) attempts: ExecutorAttempts,
    pub(crate) claim: Activator,
    pub(crate) every: Duration,
    /// What failover remembers of each silent executor.
    pub(crate) silent: HashMap<ExecutorId, SilentExecutor>,
}

/// The state of one failover. A heartbeat of the executor ends it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SilentExecutor {
    last_heartbeat_at: Timestamp,
    /// When the executor was last found to have no attempts left.
    empty_at: Option<Timestamp>,
    /// Length of the results queue when this silence was first noticed.
    backlog: Option<Backlog>,
    /// Whether this failover was counted. One failover may take several turns but counts once.
    is_counted: bool,
}

/// Results that may include reports of the silent executor.
#[derive(Debug, Clone, Copy)]
struct Backlog {
    messages: u64,
    /// Messages that this node had ingested before.
    ingested_before: u64,
}

/// Attempts that one turn took from one executor.
#[derive(Debug, Clone, Copy, Default)]
struct Moved {
    routed_again: usize,
    lost: usize,
}

/// An executor without attempts is checked again after this time.
const RECHECK_AFTER_MS: i64 = 30_000;
/// Results in the queue get this long to be ingested. After it, attempts without a result count as lost.
const RESULTS_WAIT_MS: i64 = 60_000;
/// The turn ends after this many executors whose failover failed, because the store or the broker may be away.
const MAX_FAILURES: usize = 3;

impl Duty for Failover {
    type Error = EngineError;

    fn name(&self) -> &'static str {
        "failover"
    }

    async fn activate(&mut self) -> Result<Next, EngineError> {
        self.fail_over_all().await?;
        Ok(Next::After(self.every))
    }
}

impl Failover {
    /// Returns the number of attempts taken from silent executors.
    pub(crate) async fn fail_over_all(&mut self) -> Result<usize, EngineError> {
        let executors = self.store.executors().await?;
        let now = self.clock.now();
        let failed: BTreeMap<ExecutorId, Timestamp> = executors
            .into_iter()
            .filter(|e| self.self_check.has_failed(e.last_heartbeat_at, now))
            .map(|e| (e.heartbeat.executor, e.last_heartbeat_at))
            .collect();
        self.silent
            .retain(|executor, s| failed.get(executor) == Some(&s.last_heartbeat_at));
        let mut total = 0;
        let (mut failed_turn, mut failures) = (None, 0);
        for (executor, last_heartbeat_at) in failed {
            let mut silent = self
                .silent
                .get(&executor)
                .copied()
                .unwrap_or(SilentExecutor {
                    last_heartbeat_at,
                    empty_at: None,
                    backlog: None,
                    is_counted: false,
                });
            if silent
                .empty_at
                .is_some_and(|at| now.since_ms(at) < RECHECK_AFTER_MS)
            {
                continue;
            }
            let mut moved = Moved::default();
            let is_empty = self
                .fail_over(&executor, &mut silent, now, &mut moved)
                .await;
            // The turn may have moved attempts before it failed.
            total += self.count(&executor, &mut silent, moved);
            if matches!(is_empty, Ok(true)) {
                silent.empty_at = Some(now);
            }
            // One executor whose queue or attempts cannot be read must not keep the others waiting.
            if let Err(e) = is_empty {
                tracing::warn!(
                    group = %executor.group,
                    executor = %executor.name,
                    error = %e,
                    "failed to fail over an executor; trying again"
                );
                failed_turn.get_or_insert(e);
                failures += 1;
            }
            self.silent.insert(executor, silent);
            if failures >= MAX_FAILURES {
                break;
            }
        }
        failed_turn.map_or(Ok(total), Err)
    }

    fn count(&self, executor: &ExecutorId, silent: &mut SilentExecutor, moved: Moved) -> usize {
        let Moved { routed_again, lost } = moved;
        let total = routed_again + lost;
        if total == 0 {
            return 0;
        }
        tracing::warn!(
            group = %executor.group,
            executor = %executor.name,
            routed_again,
            lost,
            "failed over an executor that fell silent; check its process and its connection to the broker"
        );
        add(&self.counters.failed_over, total);
        add(&self.counters.failovers, usize::from(!silent.is_counted));
        silent.is_counted = true;
        self.claim.wake();
        total
    }

    /// Takes the attempts of the executor away. Returns whether none is left.
    async fn fail_over(
        &self,
        executor: &ExecutorId,
        silent: &mut SilentExecutor,
        now: Timestamp,
        moved: &mut Moved,
    ) -> Result<bool, EngineError> {
        let last_heartbeat_at = silent.last_heartbeat_at;
        let outstanding = self.attempts.outstanding(executor).await?;
        let silence = format!(
            "executor {} has been silent for {} s",
            executor.name,
            now.since_ms(last_heartbeat_at) / 1_000
        );
        // Asked again after each slow step, because the executor may have returned meanwhile.
        let is_silent = || {
            let now = self.clock.now();
            self.self_check.has_failed(last_heartbeat_at, now) && !self.registry.is_alive(executor)
        };
        let routed_again = &mut moved.routed_again;
        self.attempts
            .drain(
                executor,
                OutcomeKind::Returned,
                &silence,
                is_silent,
                routed_again,
            )
            .await?;
        if !is_silent() {
            return Ok(false);
        }
        if outstanding.is_empty() {
            return Ok(true);
        }
        let is_settled = self.is_settled(executor, silent, now).await?;
        // The broker may have been unreachable during the call above.
        if !is_settled || !is_silent() {
            return Ok(false);
        }
        // Skip attempts queued after this turn began: the silence says nothing about them.
        let (left, later): (Vec<_>, Vec<_>) = self
            .attempts
            .outstanding(executor)
            .await?
            .into_iter()
            .partition(|o| o.queued_at <= now);
        for batch in left.chunks(BATCH) {
            if !is_silent() {
                return Ok(false);
            }
            let reports: Vec<AttemptReport> = batch
                .iter()
                .map(|o| attempt_ended(o.attempt, OutcomeKind::Lost, now, why_lost(o, &silence)))
                .collect();
            self.store.ingest_reports(&reports).await?;
            moved.lost += batch.len();
        }
        Ok(later.is_empty())
    }

    /// Whether everything the executor received or reported is in the store, or has had enough time to arrive. First,
    /// its unsettled deliveries return to its queue and its published results are ingested.
    async fn is_settled(
        &self,
        executor: &ExecutorId,
        silent: &mut SilentExecutor,
        now: Timestamp,
    ) -> Result<bool, EngineError> {
        let queue = executor_queue(&executor.group, &executor.name);
        let asked = [queue, QueueId::Results];
        let stats = self.broker.stats(&asked).await?;
        let [queued, results] = asked.map(|queue| {
            let found = stats.iter().find(|s| s.queue == queue);
            found.map_or(0, |s| s.ready + s.unsettled)
        });
        let ingested = self.counters.ingested_messages.load(Ordering::Relaxed);
        let backlog = *silent.backlog.get_or_insert(Backlog {
            messages: results,
            ingested_before: ingested,
        });
        // Under load the results queue is never empty. Results arrive in order. Once this node has ingested as many
        // messages as the queue held, all of those are ingested.
        let passed = ingested - backlog.ingested_before >= backlog.messages;
        let waited_ms = self
            .self_check
            .silent_past_limit_ms(silent.last_heartbeat_at, now);
        Ok(queued == 0 && (results == 0 || passed || waited_ms > RESULTS_WAIT_MS))
    }
}

fn why_lost(o: &OutstandingAttempt, silence: &str) -> String {
    if o.state == RunState::Running {
        format!("{silence}, and the attempt was running there")
    } else {
        format!("{silence}; it had received the trigger; it is unknown whether the attempt started")
    }
}
