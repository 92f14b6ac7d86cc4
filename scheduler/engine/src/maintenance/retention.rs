//! Deletes what has passed its retention: ended runs, entries of the audit log, versions of deleted jobs, ended sessions
//! and API tokens. Gives their space back. Repairs jobs that have stopped repeating.

use std::sync::Arc;
use std::time::Duration;

use cueline_runtime::{Duty, Next};
use cueline_store::{Audit, Store, StoreError};

pub(crate) struct Retention {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) audit: Arc<dyn Audit>,
    pub(crate) runs_kept_ms: u64,
    pub(crate) audit_kept_ms: u64,
}

/// Rows of a kind, such as runs or entries, deleted in one transaction. The transaction holds the store's write lock, so it has to be short.
const BATCH: usize = 500;
/// The pause between two batches.
const BETWEEN_BATCHES: Duration = Duration::from_millis(20);
const EVERY: Duration = Duration::from_mins(1);

impl Duty for Retention {
    type Error = StoreError;

    fn name(&self) -> &'static str {
        "retention"
    }

    async fn activate(&mut self) -> Result<Next, StoreError> {
        let repaired = self.store.repair_fixed_delay_jobs().await?;
        if repaired > 0 {
            tracing::warn!(
                repaired,
                "repaired fixed-delay jobs that had no next fire time; they repeat again"
            );
        }
        let deleted = self
            .store
            .delete_expired_runs(self.runs_kept_ms, BATCH)
            .await?;
        let kept_ms = self.audit_kept_ms;
        let counts = [
            deleted,
            self.audit.prune_audit(kept_ms, BATCH).await?,
            self.audit.prune_versions(kept_ms, BATCH).await?,
            self.store.prune_accounts(kept_ms, BATCH).await?,
        ];
        let has_space = self.store.release_space().await?;
        let may_be_more = has_space || counts.into_iter().any(|count| count >= BATCH as u64);
        Ok(Next::After(if may_be_more {
            BETWEEN_BATCHES
        } else {
            EVERY
        }))
    }
}
