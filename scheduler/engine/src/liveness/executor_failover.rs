//! Takes the attempts of one silent executor, so that other executors get them (G10).
//!
//! By then the executor has stopped its own attempts, because it fences itself earlier. Its start log tells which
//! attempts may have started. They end `lost`, and the job's `on_lost` decides what follows. All others are routed
//! again, wherever their triggers are. When the executor returns, the store refuses its reports about these attempts,
//! and the executor returns triggers from before its absence.

use std::collections::HashMap;
use std::sync::Arc;

use cueline_broker::Broker;
use cueline_model::{ExecutorId, OutcomeKind, RunState, Timestamp};
use cueline_store::{AttemptReport, OutstandingAttempt, Store};

use super::executor_attempts::{BATCH, Ending, ExecutorAttempts};
use super::queue_counts::QueueCounts;
use super::registry::Registry;
use super::results_queue::ResultsQueue;
use super::self_check::SelfCheck;
use super::start_evidence::StartEvidence;
use crate::addresses::{executor_queue, start_log};
use crate::counters::Counters;
use crate::database_clock::DatabaseClock;
use crate::error::EngineError;
use crate::scheduler_report::attempt_ended;

/// Fails over one executor at a time.
pub(crate) struct ExecutorFailover {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) broker: Broker,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) self_check: Arc<SelfCheck>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) attempts: ExecutorAttempts,
}

/// A silent executor in one turn.
pub(crate) struct Turn<'a> {
    pub(crate) executor: &'a ExecutorId,
    pub(crate) last_heartbeat_at: Timestamp,
    /// The beginning of the turn.
    pub(crate) now: Timestamp,
    pub(crate) counts: &'a QueueCounts,
}

/// The results that were in the queue when a silence was first noticed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backlog {
    queue: ResultsQueue,
    /// When all of them had been fetched, by any node.
    fetched_at: Option<Timestamp>,
}

/// Attempts that one turn took from one executor.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Moved {
    pub(crate) routed_again: usize,
    pub(crate) lost: usize,
}

/// Results in the queue get this long to be ingested. After it, attempts without a result count as lost.
const RESULTS_WAIT_MS: i64 = 60_000;
/// Another node may have fetched results that are not counted. It gets this long to write them, or a sixth of
/// `failover_after` if that is less. If it was killed, the broker delivers them again, and they are counted.
const WRITE_MS: i64 = 5_000;

impl ExecutorFailover {
    /// Takes the attempts of the executor away. Returns whether none is left.
    pub(crate) async fn fail_over(
        &self,
        turn: &Turn<'_>,
        backlog: &mut Option<Backlog>,
        moved: &mut Moved,
    ) -> Result<bool, EngineError> {
        let Turn {
            executor,
            last_heartbeat_at,
            now,
            counts,
        } = *turn;
        let outstanding = self.attempts.outstanding(executor).await?;
        // Most silent executors have nothing left until they are forgotten. Their logs need no reading.
        if outstanding.is_empty() {
            let queue = executor_queue(&executor.group, &executor.name);
            if !counts.may_have_messages(&queue).await {
                return Ok(true);
            }
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
        let evidence = self.start_evidence(executor).await?;
        let listed: HashMap<_, _> = outstanding.iter().map(|o| (o.attempt, o)).collect();
        let ending = Ending {
            reason: &silence,
            evidence: &evidence,
            listed: &listed,
        };
        // Only attempts that may have started wait until the queue is known to be empty. A product may list all queues
        // to count one. Such an attempt that is listed only after the drain waits for the next turn.
        let is_check_needed = outstanding.iter().any(|o| is_perhaps_started(o, &evidence));
        let (attempts, count) = (&self.attempts, &mut moved.routed_again);
        let drained = if is_check_needed {
            let drained = attempts.drain_and_check(executor, &ending, is_silent, count);
            drained.await
        } else {
            let drained = attempts.drain(executor, &ending, is_silent, count).await;
            drained.map(|()| false)
        };
        if !is_silent() {
            return drained.map(|_| false);
        }
        if outstanding.is_empty() {
            return drained.map(|_| true);
        }
        self.end_outstanding(turn, &ending, is_silent, drained, backlog, moved)
            .await
    }

    async fn start_evidence(&self, executor: &ExecutorId) -> Result<StartEvidence, EngineError> {
        let records = self.broker.read_log(&start_log(executor)).await?;
        Ok(StartEvidence::of(&records, self.attempts.store_id))
    }

    /// Ends the attempts that the store still lists after the queue was `drained`, which tells whether it is known to be
    /// empty. Returns whether no attempt is left.
    async fn end_outstanding(
        &self,
        turn: &Turn<'_>,
        ending: &Ending<'_>,
        is_silent: impl Fn() -> bool + Copy,
        drained: Result<bool, EngineError>,
        backlog: &mut Option<Backlog>,
        moved: &mut Moved,
    ) -> Result<bool, EngineError> {
        let (now, silence, evidence) = (turn.now, ending.reason, ending.evidence);
        // Skip attempts queued after this turn began: the silence says nothing about them.
        let (left, later): (Vec<_>, Vec<_>) = self
            .attempts
            .outstanding(turn.executor)
            .await?
            .into_iter()
            .partition(|o| o.queued_at <= now);
        let (may_have_started, not_started): (Vec<_>, Vec<_>) = left
            .into_iter()
            .partition(|o| is_perhaps_started(o, evidence));
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
        let is_settled = self.is_settled(turn, is_drained, backlog).await?;
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
            let ingested = self.store.ingest_reports(batch).await?;
            self.counters.note_ended(&ingested);
            *count += batch.len();
        }
        Ok(true)
    }

    /// Whether everything the executor received or reported is in the store, or has had enough time to arrive. First,
    /// its unsettled deliveries return to its queue and its published results are ingested.
    async fn is_settled(
        &self,
        turn: &Turn<'_>,
        is_drained: bool,
        backlog: &mut Option<Backlog>,
    ) -> Result<bool, EngineError> {
        if cueline_runtime::planted!("failover_without_quiet") {
            return Ok(true);
        }
        let now = turn.now;
        let Some(results) = turn.counts.results().await? else {
            return Ok(false);
        };
        let backlog = backlog.get_or_insert(Backlog {
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
            .silent_past_limit_ms(turn.last_heartbeat_at, now);
        Ok(is_drained && (is_ingested || waited_ms > RESULTS_WAIT_MS))
    }
}

fn is_perhaps_started(o: &OutstandingAttempt, evidence: &StartEvidence) -> bool {
    o.state == RunState::Running || evidence.may_have_started(o.attempt, o.dispatched_at)
}

fn why_lost(o: &OutstandingAttempt, silence: &str) -> String {
    if o.state == RunState::Running {
        format!("{silence}, and the attempt was running there")
    } else {
        format!("{silence}; the attempt may have started there")
    }
}
