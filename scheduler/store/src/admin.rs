//! The port between the API and the engine, for requests of operators.
//!
//! It is in this crate because the API and the engine both depend on it, and must not depend on each other.

use async_trait::async_trait;
use cueline_model::{Actor, ExecutorId, Namespace};
use serde::{Deserialize, Serialize};

use crate::counts::SchedulerCounts;
use crate::dispatch::{TriggerOutcome, TriggerRequest};
use crate::error::StoreError;
use crate::executor::OutstandingAttempt;

/// Why an operator's request failed.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The broker failed or cannot be reached.
    #[error("failed to reach the broker: {0}")]
    Broker(String),
    /// The request cannot be carried out now. The message says what to do instead.
    #[error("{0}")]
    Refused(String),
    /// A quota of the namespace is reached.
    #[error("{reason}")]
    Quota {
        /// The quota with its value and the namespace.
        reason: String,
        /// The request may succeed after this time, in milliseconds.
        retry_after_ms: u64,
    },
}

/// Counts since the start of a scheduler process. Each process has its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SinceStart {
    /// Triggers that the broker has confirmed, repeated ones included.
    pub published: u64,
    /// Attempts that were lost on the way to their executor and published again.
    pub reconciled: u64,
    /// Silent executors whose work was moved to others.
    pub failovers: u64,
    /// Attempts taken from silent executors: routed again, or ended `lost`.
    pub failed_over: u64,
    /// Messages with results that became dead letters, because no enrolled worker has sealed them.
    pub forged_reports: u64,
    /// Heartbeats that were ignored, because no enrolled worker has sealed them just now.
    pub forged_heartbeats: u64,
    /// Answers to questions about attempts that were ignored, because another sender may have made them.
    pub forged_answers: u64,
    /// Dead letters that no enrolled worker has sealed. They are stored, and cannot be replayed.
    pub forged_letters: u64,
    /// Reports that became dead letters, because their attempt was given to another executor.
    pub foreign_reports: u64,
}

/// The number of messages in a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueDepth {
    /// Its name: `x.<group>.<executor>`, `results`, `requests` or `dead`.
    pub queue: String,
    /// The group of the executor that reads it; absent for other queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The executor that reads it; absent for other queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// Messages that wait to be delivered. `None` if the broker has no answer for this queue.
    pub ready: Option<u64>,
    /// Messages that were delivered but not settled. `None` if the broker has no answer for this queue.
    pub unsettled: Option<u64>,
}

/// The result of emptying an executor's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EmptiedQueue {
    /// Attempts that were taken out of the queue and ended.
    pub count: u64,
    /// Attempts whose triggers are back in the queue. The executor may have started them from another copy and did not
    /// answer, or the broker could not tell that there is no other copy. Without an answer, the triggers behind them were
    /// not looked at.
    pub left: u64,
}

/// The result of replaying one dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayedDeadLetter {
    /// Its number.
    pub id: i64,
    /// Why it is still a dead letter; absent when it is back in its queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// Requests of operators. The scheduler process that receives a request carries it out at once.
///
/// A method that takes an [`Actor`] and acts on the broker writes an entry of the audit log before it acts (G19). If it
/// cannot write the entry, it does nothing.
///
/// # Errors
///
/// All methods fail with [`AdminError::Store`] or [`AdminError::Broker`] when the store or the broker fails. Effects
/// from before the failure stay. Each method may be called again.
#[async_trait]
pub trait SchedulerAdmin: Send + Sync + 'static {
    /// Looks for due jobs and runs at once. Call it after a change of the store that may have made one due. Without the
    /// call, the scheduler finds it at its next poll.
    fn wake_claim(&self);

    /// Sends pending cancellations at once. Call it after a run was cancelled. Without the call, the scheduler sends
    /// them at its next poll.
    fn wake_cancellations(&self);

    /// Counts since the start of this scheduler.
    fn since_start(&self) -> SinceStart;

    /// Further counts since the start of this scheduler, for metrics.
    fn counts(&self) -> SchedulerCounts;

    /// Why this scheduler declares no executor dead now. `None` if it may: then its own messages pass through the broker,
    /// and heartbeats are stored in time.
    fn executor_timeouts_paused(&self) -> Option<String>;

    /// Why this scheduler claims no runs now: another one reaches the broker, and this one does not. `None` if it claims.
    fn claims_paused(&self) -> Option<String>;

    /// Runs a job outside of its schedule. This scheduler dispatches the runs that are due now.
    async fn trigger(&self, request: TriggerRequest) -> Result<TriggerOutcome, AdminError>;

    /// All queues, sorted by name: the queues of every executor in the store, and those that the broker lists. A queue
    /// that does not answer has no counts.
    async fn queues(&self) -> Result<Vec<QueueDepth>, AdminError>;

    /// The attempts that are `queued` or `running` at the executor.
    async fn outstanding(
        &self,
        executor: &ExecutorId,
    ) -> Result<Vec<OutstandingAttempt>, AdminError>;

    /// Takes the triggers out of the executor's queue and routes them again. `by` is noted in the runs' timelines.
    ///
    /// A live executor is asked about each attempt. One that it holds stays with it. One that it may hold is
    /// [left](EmptiedQueue::left).
    async fn drain(&self, executor: &ExecutorId, by: &Actor) -> Result<EmptiedQueue, AdminError>;

    /// Takes the triggers out of the executor's queue and ends their runs `cancelled`. `by` is noted in the runs'
    /// timelines. Asks a live executor like [`drain`](Self::drain).
    async fn purge(&self, executor: &ExecutorId, by: &Actor) -> Result<EmptiedQueue, AdminError>;

    /// Publishes the triggers of the executor's attempts again if the executor does not hold them and they have not
    /// started. Returns their number.
    ///
    /// # Errors
    ///
    /// [`AdminError::Refused`] when the executor is not alive.
    async fn replay(&self, executor: &ExecutorId, by: &Actor) -> Result<u64, AdminError>;

    /// Puts dead letters back into the queues that they came from. Numbers that do not exist are left out of the
    /// answer.
    ///
    /// A letter that is back in its queue is deleted, which is an entry of its own in the audit log. With `namespace`,
    /// letters that are not its own are left out as well (G18).
    async fn replay_dead_letters(
        &self,
        namespace: Option<&Namespace>,
        ids: &[i64],
        by: &Actor,
    ) -> Result<Vec<ReplayedDeadLetter>, AdminError>;
}
