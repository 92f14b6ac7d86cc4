//! Deletes what has passed its retention: ended runs with their logs and outputs, dead letters, entries of the audit log,
//! versions of deleted jobs, ended sessions and API tokens, alarms with their deliveries. Gives their space back. Repairs jobs that have stopped
//! repeating.

use std::sync::Arc;
use std::time::Duration;

use cueline_model::RunId;
use cueline_runtime::{Duty, Next};
use cueline_store::{Audit, ExpireRequest, Store, StoreError};

pub(crate) struct Retention {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) audit: Arc<dyn Audit>,
    pub(crate) runs_kept_ms: u64,
    pub(crate) audit_kept_ms: u64,
    pub(crate) letters_kept_ms: u64,
    pub(crate) alarms_kept_ms: u64,
    /// Where the sweep over the runs goes on; `None` between two sweeps.
    pub(crate) swept_to: Option<RunId>,
}

/// Rows of a kind, such as runs or entries, deleted in one transaction. The transaction holds the store's write lock, so it has to be short.
const BATCH: usize = 500;
/// The pause between two batches.
const BETWEEN_BATCHES: Duration = Duration::from_millis(20);
/// The pause between two parts of a sweep that found less than a batch. A part looks at up to 50,000 runs, so a sweep takes
/// a small share of the database's time.
const BETWEEN_PARTS: Duration = Duration::from_secs(1);
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
        let request = ExpireRequest {
            age_ms: self.runs_kept_ms,
            limit: BATCH,
            after: self.swept_to,
        };
        let expired = self.store.expire_runs(request).await?;
        self.swept_to = expired.next;
        let kept_ms = self.audit_kept_ms;
        let letters_kept_ms = self.letters_kept_ms;
        let counts = [
            expired.runs,
            expired.logs,
            expired.outputs,
            self.store
                .prune_dead_letters(letters_kept_ms, BATCH)
                .await?,
            self.audit.prune_audit(kept_ms, BATCH).await?,
            self.audit.prune_versions(kept_ms, BATCH).await?,
            self.store.prune_accounts(kept_ms, BATCH).await?,
            self.store.prune_alarms(self.alarms_kept_ms, BATCH).await?,
        ];
        let has_space = self.store.release_space().await?;
        let is_full = counts.into_iter().any(|count| count >= BATCH as u64);
        Ok(Next::After(if has_space || is_full {
            BETWEEN_BATCHES
        } else if self.swept_to.is_some() {
            BETWEEN_PARTS
        } else {
            EVERY
        }))
    }
}
