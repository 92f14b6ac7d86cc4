//! A scheduler whose broker cannot be reached. It notes what wakes it.

use std::sync::Arc;

use async_trait::async_trait;
use cueline_model::{Actor, ExecutorId, Namespace};
use cueline_runtime::Activator;
use cueline_store::admin::{
    AdminError, EmptiedQueue, QueueDepth, ReplayedDeadLetter, SchedulerAdmin, SinceStart,
};
use cueline_store::{OutstandingAttempt, SchedulerCounts, Store, TriggerOutcome, TriggerRequest};

pub(crate) struct FakeAdmin {
    store: Arc<dyn Store>,
    pub(crate) claim: Activator,
    pub(crate) cancellations: Activator,
}

impl FakeAdmin {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            claim: Activator::new(),
            cancellations: Activator::new(),
        }
    }
}

fn unreachable() -> AdminError {
    AdminError::Broker("no broker in this test".to_owned())
}

#[async_trait]
impl SchedulerAdmin for FakeAdmin {
    fn wake_claim(&self) {
        self.claim.wake();
    }

    fn wake_cancellations(&self) {
        self.cancellations.wake();
    }

    fn since_start(&self) -> SinceStart {
        SinceStart::default()
    }

    fn counts(&self) -> SchedulerCounts {
        SchedulerCounts::default()
    }

    fn executor_timeouts_paused(&self) -> Option<String> {
        Some(unreachable().to_string())
    }

    fn claims_paused(&self) -> Option<String> {
        Some(unreachable().to_string())
    }

    async fn trigger(&self, request: TriggerRequest) -> Result<TriggerOutcome, AdminError> {
        let triggered = self.store.trigger(&request).await?;
        self.claim.wake();
        Ok(triggered)
    }

    async fn queues(&self) -> Result<Vec<QueueDepth>, AdminError> {
        Err(unreachable())
    }

    async fn outstanding(
        &self,
        _executor: &ExecutorId,
    ) -> Result<Vec<OutstandingAttempt>, AdminError> {
        Err(unreachable())
    }

    async fn drain(&self, _executor: &ExecutorId, _by: &Actor) -> Result<EmptiedQueue, AdminError> {
        Err(unreachable())
    }

    async fn purge(&self, _executor: &ExecutorId, _by: &Actor) -> Result<EmptiedQueue, AdminError> {
        Err(unreachable())
    }

    async fn replay(&self, _executor: &ExecutorId, _by: &Actor) -> Result<u64, AdminError> {
        Err(unreachable())
    }

    async fn replay_dead_letters(
        &self,
        _namespace: Option<&Namespace>,
        _ids: &[i64],
        _by: &Actor,
    ) -> Result<Vec<ReplayedDeadLetter>, AdminError> {
        Err(unreachable())
    }
}
