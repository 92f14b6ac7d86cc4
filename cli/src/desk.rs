//! The engine's desk as the API knows it.

use async_trait::async_trait;
use cueline_api::desk::{Desk as ApiDesk, DeskError, QueueDepth, Replayed, SinceStart};
use cueline_broker::{QueueId, QueueStats};
use cueline_engine::{Desk, DeskError as EngineError};
use cueline_model::{ExecutorName, GroupName};
use cueline_store::{OutstandingAttempt, TriggerOutcome, TriggerRequest};

/// Passes on what people ask the API for.
#[derive(Debug, Clone)]
pub(crate) struct EngineDesk(pub Desk);

/// Who asked, for the runs' timelines.
const BY: &str = "api";

fn refused(error: EngineError) -> DeskError {
    match error {
        EngineError::Store(error) => DeskError::Store(error),
        EngineError::Broker(error) => DeskError::Broker(error.to_string()),
        EngineError::Refused(why) => DeskError::Refused(why),
    }
}

fn depth(stats: QueueStats) -> QueueDepth {
    QueueDepth {
        queue: stats.queue.to_string(),
        ready: stats.ready,
        unsettled: stats.unsettled,
        owner: match stats.queue {
            QueueId::Executor { group, executor } => Some((group, executor)),
            _ => None,
        },
    }
}

#[async_trait]
impl ApiDesk for EngineDesk {
    fn since_start(&self) -> SinceStart {
        let counts = self.0.counts();
        SinceStart {
            published: counts.published,
            reconciled: counts.reconciled,
            failovers: counts.failovers,
            failed_over: counts.failed_over,
        }
    }

    async fn trigger(&self, request: TriggerRequest) -> Result<TriggerOutcome, DeskError> {
        Ok(self.0.trigger(request).await?)
    }

    async fn queues(&self) -> Result<Vec<QueueDepth>, DeskError> {
        let queues = self.0.queues().await.map_err(refused)?;
        Ok(queues.into_iter().map(depth).collect())
    }

    async fn outstanding(
        &self,
        group: &GroupName,
        executor: &ExecutorName,
    ) -> Result<Vec<OutstandingAttempt>, DeskError> {
        self.0.outstanding(group, executor).await.map_err(refused)
    }

    async fn drain(&self, group: &GroupName, executor: &ExecutorName) -> Result<u64, DeskError> {
        let count = self.0.drain(group, executor, BY).await.map_err(refused)?;
        Ok(count as u64)
    }

    async fn purge(&self, group: &GroupName, executor: &ExecutorName) -> Result<u64, DeskError> {
        let count = self.0.purge(group, executor, BY).await.map_err(refused)?;
        Ok(count as u64)
    }

    async fn replay(&self, group: &GroupName, executor: &ExecutorName) -> Result<u64, DeskError> {
        let count = self.0.replay(group, executor).await.map_err(refused)?;
        Ok(count as u64)
    }

    async fn replay_dead(&self, ids: &[i64]) -> Result<Vec<Replayed>, DeskError> {
        let replayed = self.0.replay_dead(ids).await.map_err(refused)?;
        Ok(replayed
            .into_iter()
            .map(|r| Replayed {
                id: r.id,
                refused: r.refused,
            })
            .collect())
    }
}
