//! Declares the queues of executors in the background, so that a slow broker cannot delay heartbeats.
//!
//! No trigger waits for a declaration here, because publishing to a missing queue declares it. The provisioner serves
//! executors whose own rights do not let them declare their queue.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use cueline_broker::Broker;
use cueline_model::{ExecutorId, Timestamp};
use cueline_runtime::{Activator, Stop};
use tokio::task::JoinSet;

use crate::addresses::executor_queue;
use crate::database_clock::DatabaseClock;
use crate::lock::lock;

/// The most executors that are tracked. Further requests are dropped. An executor that waits for its queue repeats the
/// request with its next heartbeat.
const MAX_EXECUTORS: usize = 10_000;
/// Executors whose queues are declared at once.
const CONCURRENCY: usize = 16;
/// Queues are not declared again within this time, unless their executor has changed.
const REDECLARE_AFTER_MS: i64 = 10_000;

pub(crate) struct QueueProvisioner {
    broker: Broker,
    clock: Arc<DatabaseClock>,
    requests: Requests,
    requested: Activator,
}

impl QueueProvisioner {
    pub(crate) fn new(broker: Broker, clock: Arc<DatabaseClock>) -> Self {
        Self {
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
                && let Some(executor) = self.requests.next()
            {
                let provisioner = self.clone();
                calls.spawn(async move { provisioner.declare(executor).await });
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
        while let Some(executor) = self.requests.next() {
            self.declare(executor).await;
        }
    }

    async fn declare(&self, executor: ExecutorId) {
        let queue = executor_queue(&executor.group, &executor.name);
        let declared = self.broker.declare(&queue).await;
        if let Err(e) = &declared {
            tracing::warn!(%queue, error = %e, "failed to declare an executor's queue; the next heartbeat of an executor that waits for it tries again");
        }
        let now = self.clock.now();
        self.requests.finish(executor, declared.is_ok(), now);
    }
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
    Waiting,
    /// Being declared. `again` if the executor has changed meanwhile.
    Declaring {
        again: bool,
    },
    DeclaredAt(Timestamp),
}

impl Requests {
    /// Returns whether a queue was added to the waiting ones.
    fn add(&self, executor: ExecutorId, is_news: bool, now: Timestamp) -> bool {
        let mut inner = lock(&self.0);
        match inner.states.get_mut(&executor) {
            Some(State::Waiting) => return false,
            Some(State::Declaring { again }) => {
                *again |= is_news;
                return false;
            }
            Some(State::DeclaredAt(at)) if !is_news && is_recent(*at, now) => return false,
            Some(State::DeclaredAt(_)) | None => {}
        }
        if inner.states.len() >= MAX_EXECUTORS {
            inner
                .states
                .retain(|_, state| !matches!(state, State::DeclaredAt(at) if !is_recent(*at, now)));
        }
        if inner.states.len() >= MAX_EXECUTORS && !inner.states.contains_key(&executor) {
            return false;
        }
        inner.states.insert(executor.clone(), State::Waiting);
        inner.waiting.push_back(executor);
        true
    }

    /// Takes the executor whose queue is declared next.
    fn next(&self) -> Option<ExecutorId> {
        let mut inner = lock(&self.0);
        let executor = inner.waiting.pop_front()?;
        let declaring = State::Declaring { again: false };
        inner.states.insert(executor.clone(), declaring);
        Some(executor)
    }

    fn finish(&self, executor: ExecutorId, is_done: bool, now: Timestamp) {
        let mut inner = lock(&self.0);
        if inner.states.get(&executor) == Some(&State::Declaring { again: true }) {
            inner.states.insert(executor.clone(), State::Waiting);
            inner.waiting.push_back(executor);
        } else if is_done {
            inner.states.insert(executor, State::DeclaredAt(now));
        } else {
            inner.states.remove(&executor);
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
        assert_eq!(requests.next(), Some(executor(1)));
        assert!(!requests.add(executor(1), false, at(1)), "it is declared");
        assert_eq!(requests.next(), None);
        requests.finish(executor(1), true, at(2));
        assert!(!requests.add(executor(1), false, at(9_999)));
        assert!(requests.add(executor(1), true, at(3)), "there is news");
        assert_eq!(requests.next(), Some(executor(1)));
        assert!(!requests.add(executor(1), true, at(4)), "it is declared");
        requests.finish(executor(1), true, at(5));
        assert_eq!(requests.next(), Some(executor(1)), "for the news");
        requests.finish(executor(1), true, at(6));
        assert!(requests.add(executor(1), false, at(10_006)));
    }

    #[test]
    fn a_failed_declaration_is_repeated_at_the_next_request() {
        let requests = Requests::default();
        assert!(requests.add(executor(1), true, at(0)));
        assert_eq!(requests.next(), Some(executor(1)));
        requests.finish(executor(1), false, at(1));
        assert!(requests.add(executor(1), false, at(2)));
    }

    #[test]
    fn the_number_of_tracked_executors_is_bounded() {
        let requests = Requests::default();
        for n in 0..MAX_EXECUTORS {
            assert!(requests.add(executor(n), true, at(0)));
        }
        assert!(!requests.add(executor(MAX_EXECUTORS), true, at(0)));
        while let Some(executor) = requests.next() {
            requests.finish(executor, true, at(1));
        }
        assert!(!requests.add(executor(MAX_EXECUTORS), true, at(2)));
        assert!(requests.add(executor(0), true, at(2)), "it is tracked");
        assert!(requests.add(executor(MAX_EXECUTORS), true, at(10_001)));
    }
}
