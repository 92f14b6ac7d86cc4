//! The engine of a scheduler node, over a store and a broker.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use cueline_api::{AdminToken, ApiState, StorePorts};
use cueline_broker::Broker;
use cueline_engine::{Engine, EngineError, EngineOptions, Origins};
use cueline_interface::with_causes;
use cueline_protocol::SigningKeys;
use cueline_runtime::{Lifecycle, Stop, SystemClock};
use cueline_store::Store;
use cueline_store::admin::SchedulerAdmin;

use super::StartupRetry;
use crate::adapters::OpenError;

/// How long the engine's stages may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// A running engine.
#[derive(Debug)]
pub(crate) struct RunningEngine {
    engine: Engine,
    tasks: Lifecycle,
}

impl RunningEngine {
    /// Starts the engine, and retries while store or broker are unavailable.
    pub(crate) async fn start(
        store: &Arc<dyn Store>,
        broker: &Broker,
        options: &EngineOptions,
        keys: &SigningKeys,
        origins: &Origins,
        retry: &StartupRetry,
    ) -> Result<Self, OpenError> {
        let tasks = Lifecycle::new();
        let start = async || {
            Engine::start(
                store.clone(),
                broker.clone(),
                Arc::new(SystemClock),
                options.clone(),
                Some(keys.clone()),
                origins.clone(),
                &tasks,
            )
            .await
            .map_err(|error| start_error(&error))
        };
        let engine = retry.with("store or broker", start).await?;
        Ok(Self { engine, tasks })
    }

    pub(crate) fn admin(&self) -> Arc<dyn SchedulerAdmin> {
        self.engine.admin()
    }

    /// The API of this engine and its store. A request with `token` may do everything. Long polls return when `stop` is
    /// requested.
    pub(crate) fn api(&self, ports: &StorePorts, token: AdminToken, stop: Stop) -> ApiState {
        let mut state = ApiState::new(ports.clone(), self.admin(), token);
        state.stop = stop;
        state
    }

    /// Returns the name of a task that has ended unexpectedly.
    pub(crate) async fn broken(&self) -> String {
        format!("{} unexpectedly", self.tasks.broken().await)
    }

    /// Stops claiming. Claimed runs are published or released.
    pub(crate) async fn stop(&self) {
        self.tasks.shut_down(STOP_TIMEOUT).await;
    }

    /// After [`stop`](Self::stop): ingests the last reports, and releases the lease.
    pub(crate) async fn finish(&self) -> Result<()> {
        Ok(self.engine.finish().await?)
    }
}

fn start_error(error: &EngineError) -> OpenError {
    let is_transient = match error {
        EngineError::Store(e) => e.kind() == cueline_store::ErrorKind::Transient,
        EngineError::Broker(e) => e.kind() == cueline_broker::ErrorKind::Transient,
    };
    OpenError {
        message: format!("failed to start the engine: {}", with_causes(error)),
        is_transient,
    }
}
