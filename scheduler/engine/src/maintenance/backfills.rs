//! Advances backfills: creates the next runs of each, as those before them end.

use std::sync::Arc;
use std::time::Duration;

use cueline_runtime::{Activator, Duty, Next};
use cueline_store::{Store, StoreError};

pub(crate) struct Backfills {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) claim: Activator,
}

/// While a backfill is running. Its runs end without a message to this duty.
const WHILE_RUNNING: Duration = Duration::from_millis(100);
const WHILE_IDLE: Duration = Duration::from_secs(1);

impl Duty for Backfills {
    type Error = StoreError;

    fn name(&self) -> &'static str {
        "backfills"
    }

    async fn activate(&mut self) -> Result<Next, StoreError> {
        let advanced = self.store.advance_backfills().await?;
        if advanced.runs > 0 {
            self.claim.wake();
        }
        Ok(Next::After(if advanced.is_active {
            WHILE_RUNNING
        } else {
            WHILE_IDLE
        }))
    }
}
