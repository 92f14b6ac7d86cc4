//! Runs that the scheduler ends itself, before they are dispatched.

use std::sync::Arc;

use cueline_runtime::Activator;
use cueline_store::{AttemptReport, ClaimedRun, Store, StoreError};

use crate::claims::NodeClaims;
use crate::counters::Counters;

/// Writes their ends.
pub(crate) struct EndedRuns {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) claims: Arc<NodeClaims>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) claim: Activator,
}

impl EndedRuns {
    /// Writes the ends of these runs. After an error they are on the wheel again.
    pub(crate) async fn write(
        &self,
        ended: Vec<(ClaimedRun, AttemptReport)>,
    ) -> Result<(), StoreError> {
        if ended.is_empty() {
            return Ok(());
        }
        let (runs, reports): (Vec<_>, Vec<_>) = ended.into_iter().unzip();
        match self.store.ingest_reports(&reports).await {
            Ok(ingested) => self.counters.note_ended(&ingested),
            Err(e) => {
                // They are still `scheduled`.
                self.claims.schedule(runs);
                return Err(e);
            }
        }
        self.claim.wake();
        Ok(())
    }
}
