//! Settles triggers in batches, so that the event loop does not wait for the broker.

use std::sync::Arc;

use cueline_broker::{Receipt, Settlement};
use tokio::sync::mpsc;

use crate::linger;
use crate::settings::Settings;
use crate::status::WorkerStatus;

/// Fetched messages, each with what the broker should do with it.
pub(crate) type Settlements = Vec<(Receipt, Settlement)>;

/// The most batches that wait. At the limit new batches are dropped. The broker then delivers those triggers again,
/// and the journal recognises them.
pub(crate) const MAX_WAITING: usize = 1_024;

/// Settles until the sender is gone.
pub(crate) async fn run(
    settings: Arc<Settings>,
    status: Arc<WorkerStatus>,
    mut batches: mpsc::Receiver<Settlements>,
) {
    let queue = settings.queue();
    let mut waiting = Vec::new();
    while batches.recv_many(&mut waiting, MAX_WAITING).await > 0 {
        status.burst_gate.wait_until_open().await;
        let settlements: Settlements = waiting.drain(..).flatten().collect();
        let count = settlements.len();
        if let Err(error) = settings.broker.settle(&queue, &settlements).await {
            tracing::warn!(%error, %queue, count, "failed to settle triggers; the broker will deliver them again");
        }
        linger::PUBLISH.pause_after(count).await;
    }
}
