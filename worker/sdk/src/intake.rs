//! Takes triggers from a queue, reads and verifies them, and hands them to the core.
//!
//! It decides what can be decided by looking at one message alone; it knows nothing of lanes and of the journal.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Delivery, Receipt};
use cueline_protocol::{Trigger, decode};
use cueline_runtime::{Backoff, Stop};
use tokio::sync::mpsc;

use crate::contact::Contact;
use crate::gauges::Gauges;
use crate::outbox::Outbox;
use crate::settings::Settings;

/// The most triggers that one fetch asks for.
const MAX_FETCH: usize = 1_024;
/// How long a fetch waits for the first trigger; a drain waits for it as well.
const FETCH_WAIT: Duration = Duration::from_millis(500);
/// The most triggers that a worker holds; past it they stay in the broker's queue.
pub(crate) const MAX_HELD: usize = 100_000;
/// How long to wait before looking for room again.
const NO_ROOM_WAIT: Duration = Duration::from_millis(20);
/// What a delivery turned out to be.
#[derive(Debug)]
pub(crate) enum Read {
    /// A trigger to be treated, with its text.
    Good(Box<Trigger>, Bytes),
    /// A trigger for this worker that it cannot run, with why.
    CannotRun(Box<Trigger>, String),
    /// For the dead letters, with why.
    Bad(String),
}

/// A delivery that was read.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) receipt: Receipt,
    pub(crate) read: Read,
}

/// Takes from the executor's queue until the stop.
pub(crate) struct Intake {
    pub(crate) settings: Arc<Settings>,
    pub(crate) gauges: Arc<Gauges>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) contact: Arc<Contact>,
    pub(crate) core: mpsc::Sender<Vec<Arrived>>,
}

impl Intake {
    pub(crate) async fn run(self, stop: Stop) {
        let queue = self.settings.queue();
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        while !stop.is_soft() {
            let most = self.room();
            if most == 0 {
                tokio::select! {
                    () = tokio::time::sleep(NO_ROOM_WAIT) => {}
                    () = stop.soft() => {}
                }
                continue;
            }
            // Not to be given up half-way: what was handed out would come back only after the ack wait.
            match self.settings.broker.fetch(&queue, most, FETCH_WAIT).await {
                Ok(deliveries) if deliveries.is_empty() => backoff.reset(),
                Ok(deliveries) => {
                    backoff.reset();
                    if !self.hand_on(deliveries).await {
                        return;
                    }
                }
                Err(error) => {
                    let wait = backoff.next_wait();
                    tracing::warn!(%error, %queue, wait_ms = wait.as_millis(), "no triggers can be fetched; trying again");
                    // Somebody may have deleted the queue while this worker was away.
                    let again = async {
                        tokio::time::sleep(wait).await;
                        let _ = self.settings.broker.declare(&queue).await;
                    };
                    tokio::select! {
                        () = again => {}
                        () = stop.soft() => {}
                    }
                }
            }
        }
    }

    fn room(&self) -> usize {
        if self.outbox.is_full() || self.contact.is_fenced() {
            return 0;
        }
        MAX_HELD.saturating_sub(self.gauges.held()).min(MAX_FETCH)
    }

    async fn hand_on(&self, deliveries: Vec<Delivery>) -> bool {
        let arrived: Vec<Arrived> = deliveries
            .into_iter()
            .map(|delivery| Arrived {
                receipt: delivery.receipt,
                read: self.read(delivery.payload),
            })
            .collect();
        self.gauges.on_the_way(arrived.len());
        self.core.send(arrived).await.is_ok()
    }

    /// Whom the trigger is for, if it is for somebody else: it would be run twice.
    fn addressee(&self, trigger: &Trigger) -> Option<String> {
        let group = &trigger.group;
        let ours = *group == self.settings.group && trigger.executor == self.settings.name;
        (!ours).then(|| format!("{group}/{}", trigger.executor))
    }

    fn read(&self, payload: Bytes) -> Read {
        let trigger: Trigger = match decode(&payload) {
            Ok(trigger) => trigger,
            Err(error) => return Read::Bad(error.to_string()),
        };
        if let Some(other) = self.addressee(&trigger) {
            return Read::Bad(format!(
                "failed to accept the trigger: it is for executor {other}, this is {}/{}",
                self.settings.group, self.settings.name
            ));
        }
        if trigger.job.handler.needs_signature()
            && let Err(error) = self.settings.trust.verify(&payload, &trigger)
        {
            return Read::Bad(format!("failed to accept the trigger: {error}"));
        }
        let trigger = Box::new(trigger);
        match self.settings.handlers.resolve(&trigger.job.handler) {
            Ok(_) => Read::Good(trigger, payload),
            Err(why) => Read::CannotRun(trigger, why),
        }
    }
}
