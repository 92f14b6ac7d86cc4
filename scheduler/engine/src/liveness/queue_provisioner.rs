//! Declares the queues and start logs of executors in the background, so that a slow broker cannot delay heartbeats.
//!
//! No trigger waits for a declaration here, because publishing to a missing queue declares it. The provisioner serves
//! executors whose own rights do not let them declare their queue and their log.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex};

use cueline_broker::{Broker, QueueId, StartLog};
use cueline_model::{ExecutorId, Timestamp};
use cueline_protocol::{StartRecord, VERSION, encode};
use cueline_runtime::{Activator, Stop};
use cueline_store::Store;
use tokio::task::JoinSet;

use crate::addresses::{executor_queue, start_log};
use crate::database_clock::DatabaseClock;
use crate::error::EngineError;
use crate::lock::lock;

/// The most executors that are tracked. Further requests are dropped. An executor that waits for its queue repeats the
/// request with its next heartbeat.
const MAX_EXECUTORS: usize = 10_000;
/// Executors whose queues are declared at once.
const CONCURRENCY: usize = 16;
/// Queues are not declared again within this time, unless their executor has changed.
const REDECLARE_AFTER_MS: i64 = 10_000;

pub(crate) struct QueueProvisioner {
    store: Arc<dyn Store>,
    broker: Broker,
    clock: Arc<DatabaseClock>,
    requests: Requests,
    requested: Activator,
}

impl QueueProvisioner {
    pub(crate) fn new(store: Arc<dyn Store>, broker: Broker, clock: Arc<DatabaseClock>) -> Self {
        Self {
            store,
            broker,
            clock,
            requests: Requests::default(),
            requested: Activator::new(),
        }
    }

    /// Requests the executor's queue. `is_news` means that the executor has appeared or changed.
    pub(crate) fn request(&self, executor: ExecutorId, is_news: bool, now: Timestamp) {
        if self.requests.add(executor, is_news, now) {
            self.requested.wake();
        }
    }

    /// Declares requested queues until the stop. The stop drops unfinished calls; declaring a queue twice is
    /// harmless.
    pub(crate) async fn run(self: Arc<Self>, stop: Stop) {
        let mut calls = JoinSet::new();
        loop {
            while calls.len() < CONCURRENCY
                && let Some((executor, is_news)) = self.requests.next()
            {
                let provisioner = self.clone();
                calls.spawn(async move { provisioner.declare(executor, is_news).await });
            }
            tokio::select! {
                () = self.requested.woken() => {}
                Some(done) = calls.join_next() => {
                    if let Err(e) = done && e.is_panic() {
                        std::panic::resume_unwind(e.into_panic());
                    }
                }
                () = stop.soft() => return,
            }
        }
    }

    /// Declares all requested queues, one after the other.
    pub(crate) async fn declare_all(&self) {
        while let Some((executor, is_news)) = self.requests.next() {
            self.declare(executor, is_news).await;
        }
    }

    async fn declare(&self, executor: ExecutorId, is_news: bool) {
        let queue = executor_queue(&executor.group, &executor.name);
        let declared = self.declare_both(&executor, &queue, is_news).await;
        if let Err(e) = &declared {
            tracing::warn!(%queue, error = %e, "failed to declare an executor's queue or start log; the next heartbeat of an executor that waits for it tries again");
        }
        let now = self.clock.now();
        self.requests.finish(executor, declared.is_ok(), now);
    }

    /// Declares the start log first. So the log has the start of every attempt in the queue.
    async fn declare_both(
        &self,
        executor: &ExecutorId,
        queue: &QueueId,
        is_news: bool,
    ) -> Result<(), EngineError> {
        let log = start_log(executor);
        self.broker.declare_log(&log).await?;
        if is_news || self.is_empty(&log).await {
            self.mark(&log).await?;
        }
        Ok(self.broker.declare(queue).await?)
    }

    /// A log that has no records may be new. Other logs need no mark of an executor that asks again and again, because
    /// each one would take the place of a record.
    async fn is_empty(&self, log: &StartLog) -> bool {
        self.broker.is_log_empty(log).await.unwrap_or_else(|e| {
            tracing::debug!(%log, error = %e, "failed to check whether a start log is empty; marking it");
            true
        })
    }

    /// Marks that the log has all starts from now on. The first mark may come after the first records: the executor's
    /// queue and log may exist before the executor is known here.
    ///
    /// The time is read once the log has the declaration, because earlier starts may have been lost with an earlier log.
    /// If this log is lost before it has the mark, for example while this process is stopped, its starts are lost too.
    /// The mark then comes into a new log, and counts for nothing there.
    ///
    /// The time is the database's own and not this node's estimate, because failover compares it with times that the
    /// database has set.
    async fn mark(&self, log: &StartLog) -> Result<(), EngineError> {
        let id = declaration_id();
        let declaration = StartRecord::Declaration {
            v: VERSION,
            id: id.clone(),
        };
        self.broker.append(log, encode(&declaration).into()).await?;
        let mark = StartRecord::Mark {
            v: VERSION,
            declaration: id,
            at: self.store.now().await?,
        };
        Ok(self.broker.append(log, encode(&mark).into()).await?)
    }
}

/// Not drawn from the seeded generator: it only identifies one declaration.
fn declaration_id() -> String {
    let number = RandomState::new().hash_one(std::process::id());
    format!("{number:016x}")
}

/// Executors whose queues were requested, in order, each at most once.
#[derive(Debug, Default)]
struct Requests(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    waiting: VecDeque<ExecutorId>,
    states: HashMap<ExecutorId, State>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting {
        is_news: bool,
    },
    /// Being declared. `again` if the executor has changed meanwhile.
    Declaring {
        again: bool,
    },
    DeclaredAt(Timestamp),
    /// The next request counts as news.
    Failed,
}

impl Requests {
    /// Returns whether a queue was added to the waiting ones.
    fn add(&self, executor: ExecutorId, is_news: bool, now: Timestamp) -> bool {
        let mut inner = lock(&self.0);
        match inner.states.get_mut(&executor) {
            Some(State::Waiting { is_news: known }) => {
                *known |= is_news;
                return false;
            }
            Some(State::Declaring { again }) => {
                *again |= is_news;
                return false;
            }
            Some(State::DeclaredAt(at)) if !is_news && is_recent(*at, now) => return false,
            Some(State::DeclaredAt(_) | State::Failed) | None => {}
        }
        let is_news = is_news || inner.states.get(&executor) == Some(&State::Failed);
        if inner.states.len() >= MAX_EXECUTORS {
            inner.states.retain(|_, state| match state {
                State::DeclaredAt(at) => is_recent(*at, now),
                State::Failed => false,
                State::Waiting { .. } | State::Declaring { .. } => true,
            });
        }
        if inner.states.len() >= MAX_EXECUTORS && !inner.states.contains_key(&executor) {
            return false;
        }
        inner
            .states
            .insert(executor.clone(), State::Waiting { is_news });
        inner.waiting.push_back(executor);
        true
    }

    /// Takes the executor whose queue is declared next, and whether it has appeared or changed.
    fn next(&self) -> Option<(ExecutorId, bool)> {
        let mut inner = lock(&self.0);
        let executor = inner.waiting.pop_front()?;
        let declaring = State::Declaring { again: false };
        let before = inner.states.insert(executor.clone(), declaring);
        let is_news = before == Some(State::Waiting { is_news: true });
        Some((executor, is_news))
    }

    fn finish(&self, executor: ExecutorId, is_done: bool, now: Timestamp) {
        let mut inner = lock(&self.0);
        if inner.states.get(&executor) == Some(&State::Declaring { again: true }) {
            let waiting = State::Waiting { is_news: true };
            inner.states.insert(executor.clone(), waiting);
            inner.waiting.push_back(executor);
        } else if is_done {
            inner.states.insert(executor, State::DeclaredAt(now));
        } else {
            inner.states.insert(executor, State::Failed);
        }
    }
}

fn is_recent(at: Timestamp, now: Timestamp) -> bool {
    now.since_ms(at) < REDECLARE_AFTER_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn executor(n: usize) -> ExecutorId {
        ExecutorId {
            group: "g".parse().expect("valid"),
            name: format!("e{n}").parse().expect("valid"),
        }
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn one_executor_is_declared_once_at_a_time_and_not_again_soon() {
        let requests = Requests::default();
        assert!(requests.add(executor(1), true, at(0)));
        assert!(!requests.add(executor(1), true, at(0)), "it waits already");
        assert_eq!(requests.next(), Some((executor(1), true)));
        assert!(!requests.add(executor(1), false, at(1)), "it is declared");
        assert_eq!(requests.next(), None);
        requests.finish(executor(1), true, at(2));
        assert!(!requests.add(executor(1), false, at(9_999)));
        assert!(requests.add(executor(1), true, at(3)), "there is news");
        assert_eq!(requests.next(), Some((executor(1), true)));
        assert!(!requests.add(executor(1), true, at(4)), "it is declared");
        requests.finish(executor(1), true, at(5));
        assert_eq!(requests.next(), Some((executor(1), true)), "for the news");
        requests.finish(executor(1), true, at(6));
        assert!(requests.add(executor(1), false, at(10_006)));
        assert_eq!(requests.next(), Some((executor(1), false)));
    }

    #[test]
    fn a_failed_declaration_is_repeated_at_the_next_request() {
        let requests = Requests::default();
        assert!(requests.add(executor(1), true, at(0)));
        assert_eq!(requests.next(), Some((executor(1), true)));
        requests.finish(executor(1), false, at(1));
        assert!(requests.add(executor(1), false, at(2)));
        assert!(!requests.add(executor(1), false, at(3)), "it waits already");
        assert_eq!(requests.next(), Some((executor(1), true)), "still news");
    }

    #[test]
    fn the_number_of_tracked_executors_is_bounded() {
        let requests = Requests::default();
        for n in 0..MAX_EXECUTORS {
            assert!(requests.add(executor(n), true, at(0)));
        }
        assert!(!requests.add(executor(MAX_EXECUTORS), true, at(0)));
        while let Some((executor, _)) = requests.next() {
            requests.finish(executor, true, at(1));
        }
        assert!(!requests.add(executor(MAX_EXECUTORS), true, at(2)));
        assert!(requests.add(executor(0), true, at(2)), "it is tracked");
        assert!(requests.add(executor(MAX_EXECUTORS), true, at(10_001)));
    }
}
