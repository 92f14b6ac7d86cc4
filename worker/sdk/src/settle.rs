//! Settles what the core has written down, in batches, without making it wait.

use std::sync::Arc;

use cueline_broker::{Receipt, Settlement};
use tokio::sync::mpsc;

use crate::gauges::Gauges;
use crate::intake::Source;
use crate::reporter::PACE;
use crate::settings::Settings;

/// A delivery and what becomes of it.
pub(crate) type Settled = (Source, Receipt, Settlement);

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
    let mut waiting = Vec::new();
    while batches.recv_many(&mut waiting, MAX_WAITING).await > 0 {
        gauges.rush.pass().await;
        let small = waiting.iter().map(Vec::len).sum::<usize>() < MANY;
        let (mut own, mut shared) = (Vec::new(), Vec::new());
        for (source, receipt, settlement) in waiting.drain(..).flatten() {
            match source {
                Source::Own => own.push((receipt, settlement)),
                Source::Shared => shared.push((receipt, settlement)),
            }
        }
        for (source, settlements) in [(Source::Own, own), (Source::Shared, shared)] {
            let queue = source.queue(&settings);
            if let Err(error) = settings.broker.settle(&queue, &settlements).await {
                tracing::warn!(%error, %queue, count = settlements.len(), "triggers were not settled and will come again");
            }
        }
        if small {
            // An ack is in no hurry: more gather meanwhile, and what starts goes first.
            tokio::time::sleep(PACE).await;
        }
    }
}
