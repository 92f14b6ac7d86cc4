//! Retention: old runs are deleted, a batch at a time, and what should not happen is repaired.

use std::sync::Arc;
use std::time::Duration;

use cueline_runtime::{Duty, Next};
use cueline_store::StoreError;

use crate::shared::Shared;

/// Deletes what is older than the retention.
pub(crate) struct Retention(pub(crate) Arc<Shared>);

/// Runs deleted in one transaction: it holds the store's write lock, so it stays short.
const BATCH: usize = 500;
const EVERY: Duration = Duration::from_mins(1);

impl Duty for Retention {
    type Error = StoreError;

    fn name(&self) -> &'static str {
        "retention"
    }

    async fn activate(&mut self) -> Result<Next, StoreError> {
        let repaired = self.0.store.repair_fixed_delay_jobs().await?;
        if repaired > 0 {
            tracing::warn!(
                repaired,
                "jobs that had stopped repeating were set going again"
            );
        }
        let deleted = self
            .0
            .store
            .delete_expired_runs(self.0.options.retention_ms, BATCH)
            .await?;
        let more = deleted >= BATCH as u64;
        Ok(Next::After(if more {
            Duration::from_millis(20)
        } else {
            EVERY
        }))
    }
}
