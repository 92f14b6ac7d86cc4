//! Takes triggers from a queue, reads and verifies them, and hands them to the core.
//!
//! It decides what can be decided by looking at one message alone; it knows nothing of lanes and of the journal.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Delivery, QueueId, Receipt};
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
/// A trigger of the shared queue that this worker cannot run is left to others, up to so many deliveries.
const MAX_SHARED_DELIVERIES: u32 = 10;
const SHARED_RETRY: Duration = Duration::from_secs(1);
/// The executor that triggers in the shared queue are for.
const ANYBODY: &str = "_any";

/// The queue that a trigger came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Source {
    /// The executor's own.
    Own,
    /// The group's.
    Shared,
}

impl Source {
    pub(crate) fn queue(self, settings: &Settings) -> QueueId {
        let group = settings.group.to_string();
        match self {
            Self::Own => QueueId::Executor {
                group,
                executor: settings.name.to_string(),
            },
            Self::Shared => QueueId::Shared { group },
        }
    }
}

/// What a delivery turned out to be.
#[derive(Debug)]
pub(crate) enum Read {
    /// A trigger to be treated, with its text.
    Good(Box<Trigger>, Bytes),
    /// A trigger that nobody but this worker could run, and that it cannot run, with why.
    CannotRun(Box<Trigger>, String),
    /// Not for us: give it back for this long.
    NotOurs(Duration),
    /// For the dead letters, with why.
    Bad(String),
}

/// A delivery that was read.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) source: Source,
    pub(crate) receipt: Receipt,
    pub(crate) read: Read,
}

/// Takes from one queue until the stop.
pub(crate) struct Intake {
    pub(crate) settings: Arc<Settings>,
    pub(crate) source: Source,
    pub(crate) gauges: Arc<Gauges>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) contact: Arc<Contact>,
    pub(crate) core: mpsc::Sender<Vec<Arrived>>,
}

impl Intake {
    pub(crate) async fn run(self, stop: Stop) {
        let queue = self.source.queue(&self.settings);
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
        let most = match self.source {
            Source::Own => MAX_HELD,
            // What one executor takes from the shared queue, no other can run: so only what can start at once.
            Source::Shared => self.settings.concurrency,
        };
        most.saturating_sub(self.gauges.held()).min(MAX_FETCH)
    }

    async fn hand_on(&self, deliveries: Vec<Delivery>) -> bool {
        let arrived: Vec<Arrived> = deliveries
            .into_iter()
            .map(|delivery| Arrived {
                source: self.source,
                receipt: delivery.receipt,
                read: self.read(delivery),
            })
            .collect();
        self.gauges.on_the_way(arrived.len());
        self.core.send(arrived).await.is_ok()
    }

    /// Whom the trigger is for, if it is for somebody else. One for somebody else would be run twice, also when it is in the queue that all
    /// of the group share: what is meant for all of them says so.
    fn addressee(&self, trigger: &Trigger) -> Option<String> {
        let group = trigger.group.as_ref().unwrap_or(&self.settings.group);
        let anybody = self.source == Source::Shared && trigger.executor.as_str() == ANYBODY;
        let ours =
            *group == self.settings.group && (anybody || trigger.executor == self.settings.name);
        (!ours).then(|| format!("{group}/{}", trigger.executor))
    }

    fn read(&self, delivery: Delivery) -> Read {
        let trigger: Trigger = match decode(&delivery.payload) {
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
            && let Err(error) = self.settings.trust.verify(&delivery.payload, &trigger)
        {
            return Read::Bad(format!("failed to accept the trigger: {error}"));
        }
        let trigger = Box::new(trigger);
        match self.settings.handlers.resolve(&trigger.job.handler) {
            Ok(_) => Read::Good(trigger, delivery.payload),
            Err(_)
                if self.source == Source::Shared && delivery.deliveries < MAX_SHARED_DELIVERIES =>
            {
                Read::NotOurs(SHARED_RETRY)
            }
            Err(why) => Read::CannotRun(trigger, why),
        }
    }
}
