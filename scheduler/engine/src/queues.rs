//! Executors' queues: made sure of beside the hearing of signs of life, which a broker that is slow to make one would otherwise hold up for all.
//!
//! Nothing waits for it: a trigger whose queue is not there yet makes `Broker::publish` declare it and try again at once. It is for executors
//! that wait for their queue to appear, their own rights not doing for making one.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use cueline_broker::QueueId;
use cueline_model::{ExecutorName, GroupName, Timestamp};
use cueline_runtime::Stop;
use tokio::task::JoinSet;

use crate::lock::lock;
use crate::shared::Shared;

type Owner = (GroupName, ExecutorName);

/// So many executors are kept in mind; past it a wish is dropped, and the next sign of life of one that waits wishes again.
const MOST: usize = 10_000;
/// Declared at once: a broker that is slow with one is not asked for all.
const AT_ONCE: usize = 16;
/// What was declared is not declared again within this time, unless there is news of its executor.
const AGAIN_AFTER_MS: i64 = 10_000;

/// Whose queues are to be made sure of.
#[derive(Debug, Default)]
pub(crate) struct Wanted(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    waiting: VecDeque<Owner>,
    steps: HashMap<Owner, Step>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Waiting,
    /// Being declared, and perhaps wished for anew since that began.
    AtWork {
        again: bool,
    },
    DoneAt(Timestamp),
}

impl Wanted {
    /// Wishes for the executor's queues; whether that is something to be done.
    pub(crate) fn want(&self, owner: Owner, is_news: bool, now: Timestamp) -> bool {
        let mut inner = lock(&self.0);
        match inner.steps.get_mut(&owner) {
            Some(Step::Waiting) => return false,
            Some(Step::AtWork { again }) => {
                *again |= is_news;
                return false;
            }
            Some(Step::DoneAt(at)) if !is_news && is_recent(*at, now) => return false,
            Some(Step::DoneAt(_)) | None => {}
        }
        if inner.steps.len() >= MOST {
            inner
                .steps
                .retain(|_, step| !matches!(step, Step::DoneAt(at) if !is_recent(*at, now)));
        }
        if inner.steps.len() >= MOST && !inner.steps.contains_key(&owner) {
            return false;
        }
        inner.steps.insert(owner.clone(), Step::Waiting);
        inner.waiting.push_back(owner);
        true
    }

    /// Whose turn it is.
    fn begin(&self) -> Option<Owner> {
        let mut inner = lock(&self.0);
        let owner = inner.waiting.pop_front()?;
        let at_work = Step::AtWork { again: false };
        inner.steps.insert(owner.clone(), at_work);
        Some(owner)
    }

    fn end(&self, owner: Owner, is_done: bool, now: Timestamp) {
        let mut inner = lock(&self.0);
        if inner.steps.get(&owner) == Some(&Step::AtWork { again: true }) {
            inner.steps.insert(owner.clone(), Step::Waiting);
            inner.waiting.push_back(owner);
        } else if is_done {
            inner.steps.insert(owner, Step::DoneAt(now));
        } else {
            inner.steps.remove(&owner);
        }
    }
}

fn is_recent(at: Timestamp, now: Timestamp) -> bool {
    now.since_ms(at) < AGAIN_AFTER_MS
}

/// Declares what is wanted until the stop, which drops what it is at: to declare twice does no harm.
pub(crate) async fn run(shared: Arc<Shared>, stop: Stop) {
    let mut at_work = JoinSet::new();
    loop {
        while at_work.len() < AT_ONCE
            && let Some(owner) = shared.queues.begin()
        {
            let shared = shared.clone();
            at_work.spawn(async move { declare(&shared, owner).await });
        }
        tokio::select! {
            () = shared.wakers.queues.woken() => {}
            Some(done) = at_work.join_next() => {
                if let Err(e) = done && e.is_panic() {
                    std::panic::resume_unwind(e.into_panic());
                }
            }
            () = stop.soft() => return,
        }
    }
}

/// Declares all that is wanted, one after the other: for tests, in which the queues have to be there when it returns.
pub(crate) async fn declare_all(shared: &Shared) {
    while let Some(owner) = shared.queues.begin() {
        declare(shared, owner).await;
    }
}

/// Makes sure that the executor's queue is there.
async fn declare(shared: &Shared, owner: Owner) {
    let queue = QueueId::Executor {
        group: owner.0.to_string(),
        executor: owner.1.to_string(),
    };
    let declared = shared.broker.declare(&queue).await;
    if let Err(e) = &declared {
        tracing::warn!(%queue, error = %e, "failed to declare an executor's queue; a sign of life of one that waits for it tries again");
    }
    shared.queues.end(owner, declared.is_ok(), shared.now());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(n: usize) -> Owner {
        let name = format!("e{n}");
        ("g".parse().expect("valid"), name.parse().expect("valid"))
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn one_executor_is_declared_once_at_a_time_and_not_again_soon() {
        let wanted = Wanted::default();
        assert!(wanted.want(owner(1), true, at(0)));
        assert!(!wanted.want(owner(1), true, at(0)), "it waits already");
        assert_eq!(wanted.begin(), Some(owner(1)));
        assert!(!wanted.want(owner(1), false, at(1)), "it is at work");
        assert_eq!(wanted.begin(), None);
        wanted.end(owner(1), true, at(2));
        assert!(!wanted.want(owner(1), false, at(9_999)));
        assert!(wanted.want(owner(1), true, at(3)), "there is news");
        assert_eq!(wanted.begin(), Some(owner(1)));
        assert!(!wanted.want(owner(1), true, at(4)), "it is at work");
        wanted.end(owner(1), true, at(5));
        assert_eq!(wanted.begin(), Some(owner(1)), "for the news");
        wanted.end(owner(1), true, at(6));
        assert!(wanted.want(owner(1), false, at(10_006)));
    }

    #[test]
    fn what_failed_is_tried_at_the_next_sign_of_life() {
        let wanted = Wanted::default();
        assert!(wanted.want(owner(1), true, at(0)));
        assert_eq!(wanted.begin(), Some(owner(1)));
        wanted.end(owner(1), false, at(1));
        assert!(wanted.want(owner(1), false, at(2)));
    }

    #[test]
    fn it_keeps_only_so_many_in_mind() {
        let wanted = Wanted::default();
        for n in 0..MOST {
            assert!(wanted.want(owner(n), true, at(0)));
        }
        assert!(!wanted.want(owner(MOST), true, at(0)));
        while let Some(owner) = wanted.begin() {
            wanted.end(owner, true, at(1));
        }
        assert!(!wanted.want(owner(MOST), true, at(2)));
        assert!(wanted.want(owner(0), true, at(2)), "it is known");
        assert!(wanted.want(owner(MOST), true, at(10_001)));
    }
}
