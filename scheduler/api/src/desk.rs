//! What people do with jobs by hand, queues and dead letters. The API knows neither broker nor engine: whoever composes the process provides this.

use async_trait::async_trait;
use cueline_model::{ExecutorName, GroupName};
use cueline_store::{OutstandingAttempt, StoreError, TriggerOutcome, TriggerRequest};

use crate::problem::Problem;

/// How full a queue is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueDepth {
    /// Its name, as the broker displays it.
    pub queue: String,
    /// Whose it is, if it is an executor's.
    pub owner: Option<(String, String)>,
    /// Messages that wait to be handed out.
    pub ready: u64,
    /// Messages that were handed out and are not settled.
    pub unsettled: u64,
}

/// What became of the replay of one dead letter.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Replayed {
    /// Its number.
    pub id: i64,
    /// Why it is still a dead letter; absent when it is back in its queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The broker cannot be asked just now.
    #[error("the broker cannot be asked: {0}")]
    Broker(String),
    /// It cannot be done as things are.
    #[error("{0}")]
    Refused(String),
}

impl From<DeskError> for Problem {
    fn from(error: DeskError) -> Self {
        match error {
            DeskError::Store(error) => error.into(),
            DeskError::Broker(_) => Self::unavailable(error.to_string()),
            DeskError::Refused(why) => Self::refused(why),
        }
    }
}

/// What a scheduler has done since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct SinceStart {
    /// Triggers that the broker has confirmed, those that were published again among them.
    pub published: u64,
    /// Attempts that were lost on the way, and taken back to be published again.
    pub reconciled: u64,
    /// Silent executors of which work was given to others.
    pub failovers: u64,
    /// Attempts that were taken from them: routed again, or ended `lost`.
    pub failed_over: u64,
}

/// Acts on queues and dead letters, at once.
#[async_trait]
pub trait Desk: Send + Sync + 'static {
    /// What this scheduler has done since it started.
    fn since_start(&self) -> SinceStart;

    /// Runs a job now; this scheduler goes on with what is due by then at once.
    async fn trigger(&self, request: TriggerRequest) -> Result<TriggerOutcome, DeskError>;

    /// All queues.
    async fn queues(&self) -> Result<Vec<QueueDepth>, DeskError>;

    /// What the executor was given and has not reported an end of.
    async fn outstanding(
        &self,
        group: &GroupName,
        executor: &ExecutorName,
    ) -> Result<Vec<OutstandingAttempt>, DeskError>;

    /// Takes what is in the executor's queue out of it, to be routed again; how many triggers.
    async fn drain(&self, group: &GroupName, executor: &ExecutorName) -> Result<u64, DeskError>;

    /// Takes what is in the executor's queue out of it and ends these runs `cancelled`; how many.
    async fn purge(&self, group: &GroupName, executor: &ExecutorName) -> Result<u64, DeskError>;

    /// Publishes again what the executor was given and does not hold; how many triggers.
    async fn replay(&self, group: &GroupName, executor: &ExecutorName) -> Result<u64, DeskError>;

    /// Puts dead letters back into the queues that they came from.
    async fn replay_dead(&self, ids: &[i64]) -> Result<Vec<Replayed>, DeskError>;
}
