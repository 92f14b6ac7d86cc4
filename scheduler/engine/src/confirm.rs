//! Confirm: what the broker has on disk becomes `queued`, in batches of whatever has gathered.

use cueline_model::AttemptId;
use std::sync::Arc;
use std::time::Duration;

use cueline_runtime::{Backoff, Stop};
use tokio::sync::mpsc;

use crate::pace::gather;
use crate::shared::Shared;

/// Writes down confirmations until the publish stage has ended.
pub(crate) async fn run(shared: Arc<Shared>, mut confirmed: mpsc::Receiver<AttemptId>, stop: Stop) {
    let mut batch = Vec::new();
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));
    while confirmed
        .recv_many(&mut batch, shared.options.confirm_batch)
        .await
        > 0
    {
        // That it was published can be written down when what else is due has been.
        shared.rush.pass().await;
        while let Err(e) = shared.store.confirm_dispatch(&batch).await {
            if stop.is_soft() {
                // The next node finds them `dispatching` and publishes them again, to the same executor, which knows them.
                return;
            }
            tracing::error!(error = %e, "failed to write down confirmations; trying again");
            tokio::time::sleep(backoff.next_wait()).await;
        }
        backoff.reset();
        gather(batch.len(), &stop).await;
        batch.clear();
    }
}
