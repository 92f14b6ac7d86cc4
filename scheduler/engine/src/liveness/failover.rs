//! Failover (G10): moves the work of silent executors to other executors.
//!
//! This duty finds the executors that have failed and remembers the state of each failover. [`ExecutorFailover`] takes
//! the attempts of one executor.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cueline_broker::Broker;
use cueline_model::{ExecutorId, Timestamp};
use cueline_runtime::{Activator, Duty, Next};
use cueline_store::Store;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use super::executor_failover::{Backlog, ExecutorFailover, Moved, Turn};
use super::queue_counts::QueueCounts;
use super::self_check::SelfCheck;
use crate::addresses::executor_queue;
use crate::counters::{Counters, add};
use crate::database_clock::DatabaseClock;
use crate::error::EngineError;

/// Fails over executors that have fallen silent.
pub(crate) struct Failover {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) broker: Broker,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) self_check: Arc<SelfCheck>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) of_executor: ExecutorFailover,
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

/// What a turn did about one executor.
struct Ended {
    executor: ExecutorId,
    silent: SilentExecutor,
    /// The number of attempts that were taken from it.
    moved: usize,
    error: Option<EngineError>,
}

/// An executor without attempts is checked again after this time.
const RECHECK_AFTER_MS: i64 = 30_000;
/// Silent executors that are worked on at once. Each of them uses at most one connection to the store at a time. This
/// leaves half of PostgreSQL's eight writing connections to others, such as the node's lease.
const CONCURRENCY: usize = 4;
/// After this many executors whose failover failed, the turn begins no further one, because the store or the broker may
/// be away.
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
        let ended = self.fail_over_due(due, now).await;
        let (mut total, mut first_error) = (0, None);
        for Ended {
            executor,
            silent,
            moved,
            error,
        } in ended
        {
            self.silent.insert(executor, silent);
            total += moved;
            first_error = first_error.or(error);
        }
        if total > 0 {
            // Once for all of them. Until then the claim stage finds their runs by its own timer, many at a time.
            self.claim.wake();
        }
        first_error.map_or(Ok(total), Err)
    }

    /// Fails over these executors, a few at once, so that a slow one does not delay the others.
    async fn fail_over_due(
        &self,
        due: Vec<(ExecutorId, SilentExecutor)>,
        now: Timestamp,
    ) -> Vec<Ended> {
        let queues = due.iter().map(|(e, _)| executor_queue(&e.group, &e.name));
        let (broker, counters) = (self.broker.clone(), self.counters.clone());
        let counts = QueueCounts::new(broker, counters, queues.collect());
        let mut waiting = due.into_iter();
        let mut running = FuturesUnordered::new();
        let (mut ended, mut failures) = (Vec::new(), 0);
        loop {
            while running.len() < CONCURRENCY
                && failures < MAX_FAILURES
                && let Some((executor, silent)) = waiting.next()
            {
                running.push(self.fail_over_one(executor, silent, now, &counts));
            }
            let Some(done) = running.next().await else {
                return ended;
            };
            failures += usize::from(done.error.is_some());
            ended.push(done);
        }
    }

    async fn fail_over_one(
        &self,
        executor: ExecutorId,
        mut silent: SilentExecutor,
        now: Timestamp,
        counts: &QueueCounts,
    ) -> Ended {
        let turn = Turn {
            executor: &executor,
            last_heartbeat_at: silent.last_heartbeat_at,
            now,
            counts,
        };
        let mut moved = Moved::default();
        let is_empty = self
            .of_executor
            .fail_over(&turn, &mut silent.backlog, &mut moved)
            .await;
        // The turn may have moved attempts before it failed.
        let total = self.count(&executor, &mut silent, moved);
        if matches!(is_empty, Ok(true)) {
            silent.empty_at = Some(now);
        }
        let error = is_empty.err();
        silent.failed_at = error.is_some().then_some(turn.now);
        // Not returned: one executor whose queue or attempts cannot be read must not keep the others waiting.
        if let Some(e) = &error {
            tracing::warn!(
                group = %executor.group,
                executor = %executor.name,
                error = %e,
                "failed to fail over an executor; trying again"
            );
        }
        Ended {
            executor,
            silent,
            moved: total,
            error,
        }
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
        total
    }
}
