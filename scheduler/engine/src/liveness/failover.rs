//! Failover (G10): moves the work of a silent executor to other executors.
//!
//! By then the executor has stopped its own attempts, because it fences itself earlier. Its start log tells which
//! attempts may have started. They end `lost`, and the job's `on_lost` decides what follows. All others are routed
//! again, wherever their triggers are. When the executor returns, the store refuses its reports about these attempts,
//! and the executor returns triggers from before its absence.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cueline_broker::{Broker, QueueId};
use cueline_model::{ExecutorId, OutcomeKind, RunState, Timestamp};
use cueline_runtime::{Activator, Duty, Next};
use cueline_store::{AttemptReport, OutstandingAttempt, Store};

use super::executor_attempts::{BATCH, Ending, ExecutorAttempts};
use super::queue_counts::QueueCounts;
use super::registry::Registry;
use super::results_queue::ResultsQueue;
use super::self_check::SelfCheck;
use super::start_evidence::StartEvidence;
use crate::addresses::{executor_queue, start_log};
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
    /// The results that were in the queue when this silence was first noticed. Reports of the executor may be among them.
    backlog: Option<Backlog>,
    /// Whether this failover was counted. One failover may take several turns but counts once.
    is_counted: bool,
    /// When the last turn failed for this executor, if it did. Then the others go first.
    failed_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy)]
struct Backlog {
    queue: ResultsQueue,
    /// When all of them had been fetched, by any node.
    fetched_at: Option<Timestamp>,
}

/// Attempts that one turn took from one executor.
#[derive(Debug, Clone, Copy, Default)]
struct Moved {
    routed_again: usize,
    lost: usize,
}

/// A silent executor in one turn.
struct Turn<'a> {
    executor: &'a ExecutorId,
    now: Timestamp,
    /// The executor and how long it has been silent, for the messages of its attempts.
    silence: &'a str,
    evidence: &'a StartEvidence,
}

/// An executor without attempts is checked again after this time.
const RECHECK_AFTER_MS: i64 = 30_000;
/// Results in the queue get this long to be ingested. After it, attempts without a result count as lost.
const RESULTS_WAIT_MS: i64 = 60_000;
/// Another node may have fetched results that are not counted. It gets this long to write them, or a sixth of
/// `failover_after` if that is less. If it was killed, the broker delivers them again, and they are counted.
const WRITE_MS: i64 = 5_000;
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
        // The time comes first: an attempt that was queued before it is not of a session whose heartbeat is missing in
        // the list.
        let now = self.clock.now();
        let executors = self.store.executors().await?;
        let failed: BTreeMap<ExecutorId, Timestamp> = executors
            .into_iter()
            .filter(|e| self.self_check.has_failed(e.last_heartbeat_at, now))
            .map(|e| (e.heartbeat.executor, e.last_heartbeat_at))
            .collect();
        self.silent
            .retain(|executor, s| failed.get(executor) == Some(&s.last_heartbeat_at));
        let due = self.due(failed, now);
        let queues = due.iter().map(|(executor, _)| queue_of(executor));
        let mut queues = QueueCounts::new(self.broker.clone(), queues.collect());
        let mut total = 0;
        let (mut failed_turn, mut failures) = (None, 0);
        for (executor, mut silent) in due {
            let mut moved = Moved::default();
            let is_empty = self
                .fail_over(&executor, &mut silent, now, &mut queues, &mut moved)
                .await;
            // The turn may have moved attempts before it failed.
            total += self.count(&executor, &mut silent, moved);
            if matches!(is_empty, Ok(true)) {
                silent.empty_at = Some(now);
            }
            silent.failed_at = is_empty.is_err().then_some(now);
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

    /// The failed executors, given with their last heartbeats, that are looked at now.
    fn due(
        &self,
        failed: BTreeMap<ExecutorId, Timestamp>,
        now: Timestamp,
    ) -> Vec<(ExecutorId, SilentExecutor)> {
        let state = |(executor, last_heartbeat_at): (ExecutorId, Timestamp)| {
            let known = self.silent.get(&executor).copied();
            let silent = known.unwrap_or(SilentExecutor {
                last_heartbeat_at,
                empty_at: None,
                backlog: None,
                is_counted: false,
                failed_at: None,
            });
            (executor, silent)
        };
        let is_due = |at: Timestamp| now.since_ms(at) >= RECHECK_AFTER_MS;
        let mut due: Vec<_> = failed
            .into_iter()
            .map(state)
            .filter(|(_, silent)| silent.empty_at.is_none_or(is_due))
            .collect();
        // A turn ends after some failures. The executor whose failure is the oldest comes before those that failed again
        // since, so that each gets its turn.
        due.sort_by_key(|(_, silent)| silent.failed_at);
        due
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
        queues: &mut QueueCounts,
        moved: &mut Moved,
    ) -> Result<bool, EngineError> {
        let last_heartbeat_at = silent.last_heartbeat_at;
        let outstanding = self.attempts.outstanding(executor).await?;
        // Most silent executors have nothing left until they are forgotten. Their logs need no reading.
        if outstanding.is_empty() && !queues.may_have_messages(&queue_of(executor)).await {
            return Ok(true);
        }
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
        // The executor starts nothing more, so a start that is not in the log now will never be. The log comes before
        // the queue, which may have a second copy of a trigger that has started.
        let records = self.broker.read_log(&start_log(executor)).await?;
        let evidence = StartEvidence::of(&records, self.attempts.store_id);
        let ending = Ending {
            kind: OutcomeKind::Returned,
            reason: &silence,
            evidence: &evidence,
        };
        let drained = self
            .attempts
            .drain(executor, &ending, is_silent, &mut moved.routed_again)
            .await;
        if !is_silent() {
            return drained.map(|_| false);
        }
        if outstanding.is_empty() {
            return drained.map(|_| true);
        }
        let turn = Turn {
            executor,
            now,
            silence: &silence,
            evidence: &evidence,
        };
        self.end_outstanding(&turn, silent, is_silent, drained, moved)
            .await
    }

    /// Ends the attempts that the store still lists after the queue was `drained`. Returns whether none is left.
    async fn end_outstanding(
        &self,
        turn: &Turn<'_>,
        silent: &mut SilentExecutor,
        is_silent: impl Fn() -> bool + Copy,
        drained: Result<bool, EngineError>,
        moved: &mut Moved,
    ) -> Result<bool, EngineError> {
        let Turn {
            executor,
            now,
            silence,
            evidence,
        } = *turn;
        // Skip attempts queued after this turn began: the silence says nothing about them.
        let (left, later): (Vec<_>, Vec<_>) = self
            .attempts
            .outstanding(executor)
            .await?
            .into_iter()
            .partition(|o| o.queued_at <= now);
        let (may_have_started, not_started): (Vec<_>, Vec<_>) = left.into_iter().partition(|o| {
            o.state == RunState::Running || evidence.may_have_started(o.attempt, o.queued_at)
        });
        let not_started = not_started.iter().map(|o| {
            let why = format!("{silence}; the attempt had not started");
            attempt_ended(o.attempt, OutcomeKind::Returned, now, why)
        });
        let returned = self
            .end(not_started.collect(), is_silent, &mut moved.routed_again)
            .await?;
        // The queue may have died with the host of the executor. What has not started does not wait for it. The others
        // do: a trigger that is still in the queue has not started either.
        let is_drained = drained?;
        if !returned || may_have_started.is_empty() {
            return Ok(returned && later.is_empty());
        }
        let is_settled = self.is_settled(silent, is_drained, now).await?;
        // The broker may have been unreachable during the call above.
        if !is_settled || !is_silent() {
            return Ok(false);
        }
        let lost = may_have_started
            .iter()
            .map(|o| attempt_ended(o.attempt, OutcomeKind::Lost, now, why_lost(o, silence)));
        let ended = self.end(lost.collect(), is_silent, &mut moved.lost).await?;
        Ok(ended && later.is_empty())
    }

    /// Ends attempts in batches. Returns false if the executor returned meanwhile.
    async fn end(
        &self,
        reports: Vec<AttemptReport>,
        is_silent: impl Fn() -> bool,
        count: &mut usize,
    ) -> Result<bool, EngineError> {
        for batch in reports.chunks(BATCH) {
            if !is_silent() {
                return Ok(false);
            }
            self.store.ingest_reports(batch).await?;
            *count += batch.len();
        }
        Ok(true)
    }

    /// Whether everything the executor received or reported is in the store, or has had enough time to arrive. First,
    /// its unsettled deliveries return to its queue and its published results are ingested.
    async fn is_settled(
        &self,
        silent: &mut SilentExecutor,
        is_drained: bool,
        now: Timestamp,
    ) -> Result<bool, EngineError> {
        if cueline_runtime::planted!("failover_without_quiet") {
            return Ok(true);
        }
        let stats = self.broker.stats(&[QueueId::Results]).await?;
        let ingested = self.counters.ingested_messages.load(Ordering::Relaxed);
        let Some(results) = ResultsQueue::of(&stats, ingested) else {
            return Ok(false);
        };
        let backlog = silent.backlog.get_or_insert(Backlog {
            queue: results,
            fetched_at: None,
        });
        if backlog.fetched_at.is_none() && results.has_passed(backlog.queue) {
            backlog.fetched_at = Some(now);
        }
        let write_ms = WRITE_MS.min(self.self_check.failover_after_ms() / 6);
        let is_ingested = backlog
            .fetched_at
            .is_some_and(|at| results.counts_all || now.since_ms(at) >= write_ms);
        let waited_ms = self
            .self_check
            .silent_past_limit_ms(silent.last_heartbeat_at, now);
        Ok(is_drained && (is_ingested || waited_ms > RESULTS_WAIT_MS))
    }
}

fn queue_of(executor: &ExecutorId) -> QueueId {
    executor_queue(&executor.group, &executor.name)
}

fn why_lost(o: &OutstandingAttempt, silence: &str) -> String {
    if o.state == RunState::Running {
        format!("{silence}, and the attempt was running there")
    } else {
        format!("{silence}; the attempt may have started there")
    }
}
