//! Finishes what a process has left undone that added or ended a maintenance window or a pause: the new plans of its jobs.

use std::sync::Arc;
use std::time::Duration;

use cueline_runtime::{Duty, Next};
use cueline_store::{MAX_REPLANNED, Store, StoreError};

pub(crate) struct WindowPlans {
    pub(crate) store: Arc<dyn Store>,
}

const EVERY: Duration = Duration::from_secs(5);

impl Duty for WindowPlans {
    type Error = StoreError;

    fn name(&self) -> &'static str {
        "window_plans"
    }

    async fn activate(&mut self) -> Result<Next, StoreError> {
        let replanned = self.store.replan_window(None, MAX_REPLANNED).await?;
        if !replanned.jobs.is_empty() {
            tracing::info!(
                jobs = replanned.jobs.len(),
                "jobs of a window were planned again; the process that changed the window did not finish"
            );
        }
        Ok(if replanned.is_done && replanned.jobs.is_empty() {
            Next::After(EVERY)
        } else {
            Next::Now
        })
    }
}
