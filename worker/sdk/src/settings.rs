//! The checked settings of a worker.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Broker, Channel, QueueId, StartLog};
use cueline_model::{ExecutorId, ExecutorLabels, Weight};
use cueline_protocol::{TriggerVerifier, WorkerProcess};
use cueline_runtime::{BootClock, Clock};

use crate::error::BoxError;
use crate::lease::{LeaseTimings, OnLeaseRenewed};
use crate::origin::Origin;
use crate::registry::Registry;

type HookFuture = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;

/// Called before anything is started.
pub(crate) type Hook = Box<dyn FnOnce() -> HookFuture + Send>;

/// The checked settings of a worker.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) executor: ExecutorId,
    pub(crate) incarnation: String,
    pub(crate) process: WorkerProcess,
    pub(crate) broker: Broker,
    pub(crate) state_dir: PathBuf,
    pub(crate) handlers: Registry,
    /// Verifies the triggers of all handlers.
    pub(crate) trust: TriggerVerifier,
    /// Triggers of native handlers are not verified.
    pub(crate) unverified_native: bool,
    pub(crate) concurrency: usize,
    pub(crate) labels: ExecutorLabels,
    pub(crate) weight: Weight,
    pub(crate) log_bytes: usize,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) drain_timeout: Duration,
    pub(crate) heartbeat_every: Duration,
    /// `None` if the schedulers run in this process: then there is no lease.
    pub(crate) lease_timings: Option<LeaseTimings>,
    pub(crate) on_lease_renewed: Option<OnLeaseRenewed>,
    pub(crate) boot_clock: Arc<dyn BootClock>,
    /// Seals what the worker sends.
    pub(crate) origin: Origin,
}

impl Settings {
    /// The queue of this executor's triggers.
    pub(crate) fn queue(&self) -> QueueId {
        QueueId::Executor {
            group: self.executor.group.to_string(),
            executor: self.executor.name.to_string(),
        }
    }

    /// The log of this executor's starts.
    pub(crate) fn start_log(&self) -> StartLog {
        StartLog {
            group: self.executor.group.to_string(),
            executor: self.executor.name.to_string(),
        }
    }

    /// The channel of this executor's orders and echoes.
    pub(crate) fn control_channel(&self) -> Channel {
        Channel::Control {
            group: self.executor.group.to_string(),
            executor: self.executor.name.to_string(),
        }
    }
}
