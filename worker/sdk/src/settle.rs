//! Settles what the core has written down, in batches, without making it wait.

use std::sync::Arc;

use cueline_broker::{Receipt, Settlement};
use tokio::sync::mpsc;

use crate::gauges::Gauges;
use crate::reporter::PACE;
use crate::settings::Settings;

/// A delivery and what becomes of it.
pub(crate) type Settled = (Receipt, Settlement);

/// Batches that wait at the most. Past it they are dropped: the broker delivers those triggers again, and the
/// journal knows them.
pub(crate) const MAX_WAITING: usize = 1_024;

/// At least so many are settled without a pause.
const MANY: usize = 500;

/// Settles until the sender is gone.
pub(crate) async fn run(
    settings: Arc<Settings>,
    gauges: Arc<Gauges>,
    mut batches: mpsc::Receiver<Vec<Settled>>,
) {
    let queue = settings.queue();
    let mut waiting = Vec::new();
    while batches.recv_many(&mut waiting, MAX_WAITING).await > 0 {
        gauges.burst_gate.wait_until_open().await;
        let settlements: Vec<Settled> = waiting.drain(..).flatten().collect();
        if let Err(error) = settings.broker.settle(&queue, &settlements).await {
            tracing::warn!(%error, %queue, count = settlements.len(), "triggers were not settled and will come again");
        }
        if settlements.len() < MANY {
            // An ack is in no hurry: more gather meanwhile, and what starts goes first.
            tokio::time::sleep(PACE).await;
        }
    }
}
