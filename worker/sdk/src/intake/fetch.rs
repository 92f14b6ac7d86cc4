//! Fetches triggers while there is room for them.

use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Delivery, QueueId, Receipt};
use cueline_runtime::{Backoff, Stop};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::parse::{ParsedTrigger, parse};
use crate::lease::BrokerLease;
use crate::report::ReportQueue;
use crate::settings::Settings;
use crate::status::WorkerStatus;

/// The most triggers of one fetch.
const MAX_FETCH: usize = 1_024;
/// How long a fetch waits for the first trigger. A drain waits for it as well.
const FETCH_WAIT: Duration = Duration::from_millis(500);
/// The most triggers that a worker holds. At the limit they stay in the broker's queue.
const MAX_HELD: usize = 100_000;
/// The pause before the worker checks again whether it has room.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(20);

/// A message that was fetched.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) receipt: Receipt,
    pub(crate) fetched_at: Instant,
    /// The trigger, or why the message is a dead letter.
    pub(crate) parsed: Result<ParsedTrigger, String>,
}

/// Fetches the executor's triggers.
pub(crate) struct Intake {
    pub(crate) settings: Arc<Settings>,
    pub(crate) status: Arc<WorkerStatus>,
    pub(crate) reports: Arc<ReportQueue>,
    pub(crate) lease: Arc<BrokerLease>,
    pub(crate) event_loop: mpsc::Sender<Vec<Received>>,
}

impl Intake {
    /// Fetches until a soft stop.
    pub(crate) async fn run(self, stop: Stop) {
        let queue = self.settings.queue();
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        while !stop.is_soft() {
            let room = self.room();
            if room == 0 {
                tokio::select! {
                    () = tokio::time::sleep(NO_ROOM_PAUSE) => {}
                    () = stop.soft() => {}
                }
                continue;
            }
            // Never cancel a fetch: triggers that the broker has already delivered would come back only after the ack
            // wait.
            match self.settings.broker.fetch(&queue, room, FETCH_WAIT).await {
                Ok(deliveries) => {
                    backoff.reset();
                    let is_last = deliveries.len() < room;
                    let received = self.receive(deliveries);
                    if is_last {
                        // Its triggers count as fetched before.
                        self.status.note_caught_up();
                    }
                    if !received.is_empty() && self.event_loop.send(received).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    let wait = backoff.next_wait();
                    tracing::warn!(%error, %queue, wait_ms = wait.as_millis(), "failed to fetch triggers; trying again");
                    tokio::select! {
                        () = self.recover(&queue, wait) => {}
                        () = stop.soft() => {}
                    }
                }
            }
        }
    }

    /// Waits, and declares the queue again, because it may have been deleted.
    async fn recover(&self, queue: &QueueId, wait: Duration) {
        tokio::time::sleep(wait).await;
        let _ = self.settings.broker.declare(queue).await;
    }

    fn room(&self) -> usize {
        if self.reports.is_full() || self.lease.is_fenced() || self.lease.is_overdue() {
            return 0;
        }
        MAX_HELD.saturating_sub(self.status.held()).min(MAX_FETCH)
    }

    fn receive(&self, deliveries: Vec<Delivery>) -> Vec<Received> {
        let fetched_at = Instant::now();
        let redelivered = deliveries.iter().filter(|delivery| delivery.redelivered);
        self.status.note_redelivered(redelivered.count());
        let received: Vec<Received> = deliveries
            .into_iter()
            .map(|delivery| Received {
                receipt: delivery.receipt,
                fetched_at,
                parsed: parse(delivery.payload, &self.settings),
            })
            .collect();
        self.status.add_fetched(received.len());
        received
    }
}
