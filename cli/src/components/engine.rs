//! A scheduler node: the engine over a store and a broker.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use cueline_api::{AdminToken, ApiState};
use cueline_broker::Broker;
use cueline_engine::{Engine, EngineError, EngineOptions};
use cueline_protocol::SigningKey;
use cueline_runtime::{Lifecycle, Stop, SystemClock};
use cueline_store::Store;
use cueline_store::admin::SchedulerAdmin;

use super::StartupRetry;
use crate::adapters::OpenError;
use crate::failure::with_causes;

/// How long the engine's stages may take to end.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// A running engine.
#[derive(Debug)]
pub(crate) struct RunningEngine {
    engine: Engine,
    tasks: Lifecycle,
}

impl RunningEngine {
    /// Starts the engine as soon as store and broker let it.
    pub(crate) async fn start(
        store: &Arc<dyn Store>,
        broker: &Broker,
        options: &EngineOptions,
        key: &SigningKey,
        retry: &StartupRetry,
    ) -> Result<Self, OpenError> {
        let tasks = Lifecycle::new();
        let start = async || {
            Engine::start(
                store.clone(),
                broker.clone(),
                Arc::new(SystemClock),
                options.clone(),
                Some(key.clone()),
                &tasks,
            )
            .await
            .map_err(|error| unusable(&error))
        };
        let engine = retry.with("store or broker", start).await?;
        Ok(Self { engine, tasks })
    }

    /// For the requests of operators.
    pub(crate) fn admin(&self) -> Arc<dyn SchedulerAdmin> {
        self.engine.admin()
    }

    /// The API over this engine and its store, for those who have `token`. What waits there ends with `stop`, told and not cut off.
    pub(crate) fn api(&self, store: &Arc<dyn Store>, token: AdminToken, stop: Stop) -> ApiState {
        let mut state = ApiState::new(store.clone(), self.admin(), token);
        state.stop = stop;
        state
    }

    /// Returns when a task has ended unexpectedly, with which.
    pub(crate) async fn broken(&self) -> String {
        format!("{} unexpectedly", self.tasks.broken().await)
    }

    /// No more claims; what is claimed goes out or is given back.
    pub(crate) async fn stop(&self) {
        self.tasks.shut_down(STOP_WITHIN).await;
    }

    /// After [`stop`](Self::stop): takes in the last reports, and gives up the lease.
    pub(crate) async fn finish(&self) -> Result<()> {
        Ok(self.engine.finish().await?)
    }
}

fn unusable(error: &EngineError) -> OpenError {
    let is_transient = match error {
        EngineError::Store(e) => e.kind() == cueline_store::ErrorKind::Transient,
        EngineError::Broker(e) => e.kind() == cueline_broker::ErrorKind::Transient,
    };
    OpenError {
        message: format!("failed to start the engine: {}", with_causes(error)),
        is_transient,
    }
}
