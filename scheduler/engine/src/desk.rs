//! What people do with queues and dead letters, carried out at once by whichever node is asked.

use std::sync::Arc;

use bytes::Bytes;
use cueline_broker::{BrokerError, Outgoing, QueueId, QueueStats};
use cueline_model::{ExecutorName, GroupName, OutcomeKind};
use cueline_protocol::{Trigger, decode};
use cueline_store::{
    DeadLetter, ErrorKind, OutstandingAttempt, StoreError, TriggerOutcome, TriggerRequest,
};

use crate::counts::Counts;
use crate::error::StageError;
use crate::failover::{drain, outstanding_of};
use crate::reconcile;
use crate::shared::Shared;

/// Cheap to clone.
#[derive(Clone)]
pub struct Desk(pub(crate) Arc<Shared>);

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Desk").finish()
    }
}

/// Why what a person asked for was not done.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The broker.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// It cannot be done as things are.
    #[error("{0}")]
    Refused(String),
}

impl From<StageError> for DeskError {
    fn from(error: StageError) -> Self {
        match error {
            StageError::Store(e) => Self::Store(e),
            StageError::Broker(e) => Self::Broker(e),
        }
    }
}

/// What became of a replay of one dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replayed {
    /// Its number.
    pub id: i64,
    /// Why it is still a dead letter; `None` when it is back in its queue.
    pub refused: Option<String>,
}

impl Desk {
    /// What this node has done since it started.
    pub fn counts(&self) -> Counts {
        self.0.counters.now()
    }

    /// Runs a job now. What is due by then goes on from here, without a claim of its own.
    pub async fn trigger(&self, request: TriggerRequest) -> Result<TriggerOutcome, StoreError> {
        let shared = Arc::clone(&self.0);
        // Not given up half-way, whoever asked: nobody else would look for what this node has claimed while it lives.
        let triggering = tokio::spawn(async move { trigger(&shared, &request).await });
        triggering.await.unwrap_or_else(|e| {
            self.0.doubt();
            Err(StoreError::new(ErrorKind::Transient, "failed to trigger a job").caused_by(e))
        })
    }

    /// All queues, and how full they are, by queue: those of every executor that the store knows, whichever node publishes to them, and
    /// what else the broker lists.
    pub async fn queues(&self) -> Result<Vec<QueueStats>, DeskError> {
        let executors = self.0.store.executors().await?;
        let mut asked = vec![QueueId::Results, QueueId::Requests, QueueId::Dead];
        for executor in executors {
            asked.push(QueueId::Executor {
                group: executor.heartbeat.executor.group.to_string(),
                executor: executor.heartbeat.executor.name.to_string(),
            });
        }
        Ok(self.0.broker.stats(&asked).await?)
    }

    /// What the executor was given and has not reported an end of.
    pub async fn outstanding(
        &self,
        group: &GroupName,
        executor: &ExecutorName,
    ) -> Result<Vec<OutstandingAttempt>, DeskError> {
        let owner = (group.clone(), executor.clone());
        Ok(outstanding_of(&self.0, &owner).await?)
    }

    /// Takes what is still in the executor's queue out of it, to be routed again; how many triggers.
    pub async fn drain(
        &self,
        group: &GroupName,
        executor: &ExecutorName,
        by: &str,
    ) -> Result<usize, DeskError> {
        let owner = (group.clone(), executor.clone());
        let why = format!("its queue was drained by {by}");
        let count = drain(&self.0, &owner, OutcomeKind::Returned, &why).await?;
        self.0.wakers.claim.wake();
        Ok(count)
    }

    /// Takes what is still in the executor's queue out of it, and ends these runs `cancelled`; how many.
    pub async fn purge(
        &self,
        group: &GroupName,
        executor: &ExecutorName,
        by: &str,
    ) -> Result<usize, DeskError> {
        let owner = (group.clone(), executor.clone());
        let why = format!("its queue was purged by {by}");
        Ok(drain(&self.0, &owner, OutcomeKind::Cancelled, &why).await?)
    }

    /// Publishes again what the executor was given and does not hold; how many triggers. What it holds, started or not, is left alone.
    pub async fn replay(
        &self,
        group: &GroupName,
        executor: &ExecutorName,
    ) -> Result<usize, DeskError> {
        if !self.0.registry.is_alive(group, executor) {
            return Err(DeskError::Refused(format!(
                "executor {group}/{executor} is not heard by this scheduler; start it first, or drain its queue so that others get what is in it"
            )));
        }
        let owner = (group.clone(), executor.clone());
        let outstanding = outstanding_of(&self.0, &owner).await?;
        Ok(reconcile::compare(&self.0, outstanding).await?)
    }

    /// Puts dead letters back into the queues that they came from, and forgets those that are.
    pub async fn replay_dead(&self, ids: &[i64]) -> Result<Vec<Replayed>, DeskError> {
        let letters = self.0.store.dead_letters_by_id(ids).await?;
        let mut replayed = Vec::with_capacity(letters.len());
        let (mut numbers, mut messages) = (Vec::new(), Vec::new());
        for letter in letters {
            match home(&letter) {
                Some(queue) => {
                    numbers.push(letter.id);
                    messages.push(Outgoing {
                        queue,
                        topic: letter.topic,
                        // Not the first one's: a broker that knows that one would drop this.
                        id: format!("dead:{}", letter.id),
                        payload: Bytes::from(letter.payload),
                    });
                }
                None => replayed.push(Replayed {
                    id: letter.id,
                    refused: Some(format!(
                        "there is no telling which queue {:?} was",
                        letter.queue
                    )),
                }),
            }
        }
        let answers = self.0.broker.publish(&messages).await?;
        let mut done = Vec::new();
        for (id, answer) in numbers.into_iter().zip(answers) {
            if answer.is_ok() {
                done.push(id);
            }
            replayed.push(Replayed {
                id,
                refused: answer.err().map(|refusal| refusal.to_string()),
            });
        }
        self.0.store.delete_dead_letters(&done).await?;
        Ok(replayed)
    }
}

/// Runs a job now; see [`Desk::trigger`].
pub(crate) async fn trigger(
    shared: &Shared,
    request: &TriggerRequest,
) -> Result<TriggerOutcome, StoreError> {
    // A node that holds as much as it may leaves the run to whoever has room.
    let node = shared
        .node()
        .filter(|_| shared.held() < shared.options.max_held);
    let triggered = shared.store.trigger_claimed(node, request).await;
    if let Err(e) = &triggered
        && e.is_outcome_unknown()
    {
        // The runs may be this node's, which does not know of them.
        shared.doubt();
    }
    let (triggered, claimed) = triggered?;
    if claimed.is_empty() {
        shared.wakers.claim.wake();
    }
    shared.schedule(claimed);
    Ok(triggered)
}

/// The queue that a dead letter came from, by its name. Group and executor may hold dots themselves: the trigger says which is which.
fn home(letter: &DeadLetter) -> Option<QueueId> {
    let name = letter.queue.as_str();
    for queue in [QueueId::Results, QueueId::Requests] {
        if queue.to_string() == name {
            return Some(queue);
        }
    }
    let rest = name.strip_prefix("x.")?;
    let executor = match decode::<Trigger>(&letter.payload) {
        Ok(trigger) => trigger.executor.to_string(),
        // Unreadable: then the name has to be without doubt.
        Err(_) => rest
            .split_once('.')
            .filter(|(_, e)| !e.contains('.'))?
            .1
            .to_owned(),
    };
    let group = rest.strip_suffix(&format!(".{executor}")).or_else(|| {
        // A trigger that was put into another executor's queue.
        rest.split_once('.')
            .filter(|(_, e)| !e.contains('.'))
            .map(|(g, _)| g)
    })?;
    let executor = rest.strip_prefix(group)?.strip_prefix('.')?;
    Some(QueueId::Executor {
        group: group.to_owned(),
        executor: executor.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use cueline_model::Timestamp;

    use super::*;

    fn from(queue: &str) -> DeadLetter {
        DeadLetter {
            id: 1,
            queue: queue.to_owned(),
            topic: String::new(),
            reason: String::new(),
            at: Timestamp::from_millis(0),
            payload: b"not a trigger".to_vec(),
        }
    }

    #[test]
    fn the_queue_is_found_by_its_name() {
        let executor = |group: &str, executor: &str| {
            Some(QueueId::Executor {
                group: group.to_owned(),
                executor: executor.to_owned(),
            })
        };
        assert_eq!(home(&from("results")), Some(QueueId::Results));
        assert_eq!(home(&from("requests")), Some(QueueId::Requests));
        assert_eq!(home(&from("x.default.e1")), executor("default", "e1"));
        assert_eq!(home(&from("x.a.b.c")), None);
        assert_eq!(home(&from("dead")), None);
    }
}
