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
/// The most batches of dead letters that wait. At the limit new batches are dropped, and their messages come again.
const MAX_WAITING_DEAD: usize = 64;

/// Settles until the sender is gone.
pub(crate) async fn run(
    settings: Arc<Settings>,
    status: Arc<WorkerStatus>,
    batches: mpsc::Receiver<Settlements>,
) {
    let (dead_sender, dead) = mpsc::channel(MAX_WAITING_DEAD);
    tokio::join!(
        settle_triggers(&settings, &status, batches, dead_sender),
        settle_dead(&settings, dead),
    );
}

/// Settles triggers, and passes dead letters on. A dead-letter queue that is full or does not answer is tried for a long
/// time. Acks that waited for it would come too late, and their triggers would be delivered again.
async fn settle_triggers(
    settings: &Settings,
    status: &WorkerStatus,
    mut batches: mpsc::Receiver<Settlements>,
    dead: mpsc::Sender<Settlements>,
) {
    let is_dead = |(_, how): &(Receipt, Settlement)| matches!(how, Settlement::Dead(_));
    let mut waiting = Vec::new();
    while batches.recv_many(&mut waiting, MAX_WAITING).await > 0 {
        status.burst_gate.wait_until_open().await;
        let (letters, others): (Settlements, Settlements) =
            waiting.drain(..).flatten().partition(is_dead);
        if !letters.is_empty() && dead.try_send(letters).is_err() {
            tracing::warn!(
                "too many dead letters wait for the dead-letter queue; the broker will deliver some messages again"
            );
        }
        settle(settings, &others).await;
        linger::PUBLISH.pause_after(others.len()).await;
    }
}

/// Moves messages to the dead letters.
async fn settle_dead(settings: &Settings, mut batches: mpsc::Receiver<Settlements>) {
    while let Some(letters) = batches.recv().await {
        settle(settings, &letters).await;
    }
}

async fn settle(settings: &Settings, settlements: &[(Receipt, Settlement)]) {
    let (queue, count) = (settings.queue(), settlements.len());
    if let Err(error) = settings.broker.settle(&queue, settlements).await {
        tracing::warn!(%error, %queue, count, "failed to settle triggers; the broker will deliver them again");
    }
}
