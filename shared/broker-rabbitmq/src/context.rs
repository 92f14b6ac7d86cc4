//! State that the parts of one driver share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cueline_broker::{BrokerError, Receipt};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection::SupervisedConnection;
use crate::error::closed;
use crate::names::Names;
use crate::options::RabbitOptions;

/// The connections and tasks of one driver.
pub(crate) struct DriverContext {
    /// For consuming, declaring and counting. The server never blocks it, because nothing is published on it.
    pub(crate) connection: Arc<SupervisedConnection>,
    /// For messages and announcements.
    pub(crate) publishing: Arc<SupervisedConnection>,
    pub(crate) names: Names,
    pub(crate) options: RabbitOptions,
    pub(crate) last_receipt: AtomicU64,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
}

impl DriverContext {
    pub(crate) fn next_receipt(&self) -> Receipt {
        Receipt(self.last_receipt.fetch_add(1, Ordering::Relaxed))
    }

    /// Fails after the driver was closed.
    pub(crate) fn ensure_open(&self) -> Result<(), BrokerError> {
        if self.stop.is_cancelled() {
            return Err(closed());
        }
        Ok(())
    }
}
