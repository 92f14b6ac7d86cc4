//! Fetches by demand: one request for each fetch, which the server answers with what it has, or keeps until something comes or
//! the time is up. Nothing is asked for that nobody waits for.
//!
//! A fetch that is dropped leaves its place, with what was on its way to it, to the next fetch from the same queue.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{BrokerError, Delivery, QueueId};
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::{Instant, sleep_until};

use crate::delivered::Delivered;
use crate::error::transient;
use crate::link::Link;
use crate::puller::{Came, Idle, Puller, Turn};
use crate::queues::{Queues, no_queue};
use crate::receipts::Receipts;

/// Fetches from all queues.
pub(crate) struct Fetcher {
    pub(crate) link: Link,
    pub(crate) queues: Arc<Queues>,
    pub(crate) receipts: Arc<Receipts>,
    /// A request is answered within so much more than it asked to wait, or it is lost.
    pub(crate) patience: Duration,
    pub(crate) idle: Idle,
}

/// Ends a message for good.
const TOO_LATE: Bytes = Bytes::from_static(b"+TERM published too late");
/// As good as for ever.
const A_YEAR: Duration = Duration::from_hours(365 * 24);

impl Fetcher {
    pub(crate) async fn fetch(
        &self,
        queue: &QueueId,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, BrokerError> {
        if max == 0 {
            return Ok(Vec::new());
        }
        let now = Instant::now();
        let until = now + wait.min(A_YEAR);
        let in_time = now + self.patience;
        self.link.connected(in_time).await?;
        let place = self.queues.names.place(queue);
        let stream = self.queues.names.stream(place.stream);
        let mut turn = self.idle.turn(queue);
        let puller = turn
            .puller(&self.link, &stream, &place.consumer, in_time)
            .await?;
        match self.fill(puller, queue, max, until).await {
            Ok(()) => {}
            // What has come is good all the same; the next fetch is told.
            Err(_) if !puller.ready.is_empty() => {}
            Err(e) => {
                turn.spoiled();
                return Err(e);
            }
        }
        Ok(self.hand_out(turn, queue, max).await)
    }

    /// Waits until something is ready, and then for what else the same request brings.
    async fn fill(
        &self,
        puller: &mut Puller,
        queue: &QueueId,
        max: usize,
        until: Instant,
    ) -> Result<(), BrokerError> {
        // A request that another fetch has left counts as well.
        let mut asked = puller.is_asking();
        loop {
            while puller.ready.len() < max
                && let Some(Some(message)) = puller.messages.next().now_or_never()
            {
                self.take_in(puller, message, queue).await?;
            }
            if puller.ready.len() >= max || (!puller.is_asking() && !puller.ready.is_empty()) {
                return Ok(());
            }
            let Some(open) = &mut puller.open else {
                let left = until.saturating_duration_since(Instant::now());
                if asked && left.is_zero() {
                    return Ok(());
                }
                puller.request(&self.link, max, left, self.patience).await?;
                asked = true;
                continue;
            };
            let late = open.until;
            let message = tokio::select! {
                biased;
                message = puller.messages.next() => message,
                failed = open.failed() => return Err(failed),
                () = sleep_until(late) => {
                    return Err(transient(format!(
                        "failed to fetch from {queue}: NATS does not answer"
                    )));
                }
            };
            match message {
                Some(message) => self.take_in(puller, message, queue).await?,
                None => return Err(transient("failed to fetch: the subscription has ended")),
            }
        }
    }

    async fn take_in(
        &self,
        puller: &mut Puller,
        message: async_nats::Message,
        queue: &QueueId,
    ) -> Result<(), BrokerError> {
        match puller.take_in(message) {
            Came::Fine => Ok(()),
            Came::Deleted => Err(no_queue(queue)),
            Came::Nobody => Err(self.queues.why_nobody(queue).await),
            Came::Refused(why) => Err(transient(format!("failed to fetch from {queue}: {why}"))),
        }
    }

    async fn hand_out(&self, mut turn: Turn<'_>, queue: &QueueId, max: usize) -> Vec<Delivery> {
        let read: Vec<Delivered> = turn
            .ready(max)
            .into_iter()
            .filter_map(|message| Delivered::read(message, queue))
            .collect();
        drop(turn);
        let (late, delivered): (Vec<_>, Vec<_>) = read.into_iter().partition(|d| d.is_late);
        let held = delivered.iter().map(|d| d.held.clone());
        let receipts = self.receipts.hold(queue, held, Instant::now());
        self.end_late(queue, late).await;
        delivered
            .into_iter()
            .zip(receipts)
            .map(|(delivered, receipt)| delivered.with(receipt))
            .collect()
    }

    /// Their publisher was told that they may not have arrived, and when they did it was too late. What cannot be ended now comes again.
    async fn end_late(&self, queue: &QueueId, late: Vec<Delivered>) {
        if late.is_empty() {
            return;
        }
        let count = late.len();
        tracing::warn!(%queue, count, "messages were published too late to count; they are ended");
        let until = Instant::now() + self.patience;
        for late in late {
            let ending = self.link.client.publish(late.held.ack, TOO_LATE);
            if self.link.hand_over(ending, until).await.is_err() {
                return;
            }
        }
    }
}
