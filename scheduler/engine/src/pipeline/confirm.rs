//! Confirm: moves runs whose triggers the broker has on disk to `queued`, a batch at a time.
//!
//! It is a separate stage, so it does not delay the next trigger. When a node dies before it has confirmed a trigger,
//! the next node publishes it again, to the same executor as the same attempt.

use std::sync::Arc;
use std::time::Duration;

use cueline_model::AttemptId;
use cueline_runtime::{Backoff, BurstGate, Stop};
use cueline_store::{Store, StoreError};
use tokio::sync::mpsc;

use super::burst;

/// At this many unwritten batches, publishing waits. A burst publishes fewer before its first confirmation is
/// written.
pub(crate) const MAX_WAITING_BATCHES: usize = 16;

pub(crate) struct Confirm {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) burst_gate: Arc<BurstGate>,
    pub(crate) confirmed: mpsc::Receiver<AttemptId>,
    pub(crate) batch: usize,
    /// Confirmations that were received but not yet written.
    pub(crate) unwritten: Vec<AttemptId>,
}

impl Confirm {
    /// Runs until the publish stage has ended.
    pub(crate) async fn run(mut self, stop: Stop) {
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));
        while self
            .confirmed
            .recv_many(&mut self.unwritten, self.batch)
            .await
            > 0
        {
            self.burst_gate.wait_until_open().await;
            let count = self.unwritten.len();
            while let Err(e) = self.write().await {
                if stop.is_soft() {
                    return;
                }
                let wait = backoff.next_wait();
                tracing::error!(error = %e, wait_ms = wait.as_millis(), "failed to confirm published triggers; trying again. Check the database");
                tokio::time::sleep(wait).await;
            }
            backoff.reset();
            burst::WRITE.pause_after(count).await;
        }
    }

    /// Writes all confirmations received so far. Returns their number.
    pub(crate) async fn write_received(&mut self) -> Result<usize, StoreError> {
        while let Ok(attempt) = self.confirmed.try_recv() {
            self.unwritten.push(attempt);
        }
        let count = self.unwritten.len();
        self.write().await?;
        Ok(count)
    }

    async fn write(&mut self) -> Result<(), StoreError> {
        self.store.confirm_dispatch(&self.unwritten).await?;
        self.unwritten.clear();
        Ok(())
    }
}
