//! Fetches deliveries with one pull request per fetch. The server answers with the messages in the queue, or with the
//! next message within the wait. Nothing is requested ahead of a fetch.

use std::sync::Arc;
use std::time::Duration;

use async_nats::Message;
use bytes::Bytes;
use cueline_broker::{BrokerError, Delivery, QueueId};
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::{Instant, sleep_until};

use crate::error::{permanent, transient};
use crate::pull::{PullError, PullPool, PullSubscription};
use crate::queues::Queues;
use crate::receipts::Receipts;
use crate::received::Received;

pub(crate) struct Fetcher {
    pub(crate) queues: Arc<Queues>,
    pub(crate) receipts: Arc<Receipts>,
    pub(crate) pool: PullPool,
}

/// Makes the server drop a message for good.
const TERM_EXPIRED: Bytes = Bytes::from_static(b"+TERM stored after its deadline");
/// Keeps the sum of now and the wait within the clock's range.
const MAX_WAIT: Duration = Duration::from_hours(365 * 24);

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
        let (until, deadline) = (now + wait.min(MAX_WAIT), now + self.timeout());
        let connection = &self.queues.requester.connection;
        connection.wait_until_connected(deadline).await?;
        let mut pooled = self.pool.check_out(queue);
        let subscription = match &mut pooled.subscription {
            Some(idle) => idle,
            none => {
                let location = self.queues.names.locate(queue);
                none.insert(PullSubscription::open(connection, &location, deadline).await?)
            }
        };
        if let Err(e) = self.fill(subscription, queue, max, until).await
            // Return the messages that have arrived; the next fetch meets the error.
            && subscription.ready.is_empty()
        {
            pooled.subscription = None;
            return Err(e);
        }
        let messages = if subscription.ready.len() <= max {
            // Otherwise the subscription would keep the memory of its largest fetch.
            std::mem::take(&mut subscription.ready).into()
        } else {
            subscription.ready.drain(..max).collect()
        };
        drop(pooled);
        Ok(self.hand_out(messages, queue).await)
    }

    fn timeout(&self) -> Duration {
        self.queues.options.request_timeout
    }

    /// Waits for the first message, and then for the others of the same request.
    async fn fill(
        &self,
        subscription: &mut PullSubscription,
        queue: &QueueId,
        max: usize,
        until: Instant,
    ) -> Result<(), BrokerError> {
        // This fetch takes over a pending request of an earlier fetch.
        let mut requested = subscription.is_pending();
        loop {
            while subscription.ready.len() < max
                && let Some(Some(message)) = subscription.messages.next().now_or_never()
            {
                self.accept(subscription, message, queue).await?;
            }
            let ready = subscription.ready.len();
            if ready >= max || (ready > 0 && !subscription.is_pending()) {
                return Ok(());
            }
            let Some(pending) = &mut subscription.pending else {
                let left = until.saturating_duration_since(Instant::now());
                if requested && left.is_zero() {
                    return Ok(());
                }
                let connection = &self.queues.requester.connection;
                subscription
                    .request(connection, max, left, self.timeout())
                    .await?;
                requested = true;
                continue;
            };
            let deadline = pending.deadline;
            let message = tokio::select! {
                biased;
                message = subscription.messages.next() => message,
                failed = pending.failed() => return Err(failed),
                () = sleep_until(deadline) => {
                    return Err(transient(format!(
                        "failed to fetch from {queue}: NATS does not answer"
                    )));
                }
            };
            let ended = || transient("failed to fetch: the subscription has ended");
            self.accept(subscription, message.ok_or_else(ended)?, queue)
                .await?;
        }
    }

    async fn accept(
        &self,
        subscription: &mut PullSubscription,
        message: Message,
        queue: &QueueId,
    ) -> Result<(), BrokerError> {
        let no_queue = || {
            permanent(format!(
                "failed to fetch from {queue}: there is no such queue"
            ))
        };
        match subscription.accept(message) {
            Ok(()) => Ok(()),
            Err(PullError::ConsumerDeleted) => Err(no_queue()),
            Err(PullError::NoResponders) if self.queues.is_deleted(queue).await => Err(no_queue()),
            Err(PullError::NoResponders) => Err(transient(format!(
                "failed to fetch from {queue}: there is no such queue, or no server leads it now"
            ))),
            Err(PullError::Refused(why)) => {
                Err(transient(format!("failed to fetch from {queue}: {why}")))
            }
        }
    }

    async fn hand_out(&self, messages: Vec<Message>, queue: &QueueId) -> Vec<Delivery> {
        let location = self.queues.names.locate(queue);
        let received = messages
            .into_iter()
            .filter_map(|message| Received::parse(message, queue, &location));
        let (expired, valid): (Vec<_>, Vec<_>) = received.partition(|received| received.is_expired);
        let unsettled = valid.iter().map(|received| received.unsettled.clone());
        let receipts = self.receipts.issue(queue, unsettled, Instant::now());
        self.end_expired(queue, expired).await;
        valid
            .into_iter()
            .zip(receipts)
            .map(|(received, receipt)| received.into_delivery(receipt))
            .collect()
    }

    /// Drops messages that were stored after their deadline; their publisher publishes them again. A message that
    /// cannot be dropped now is delivered again.
    async fn end_expired(&self, queue: &QueueId, expired: Vec<Received>) {
        if expired.is_empty() {
            return;
        }
        let count = expired.len();
        tracing::warn!(%queue, count, "dropped messages that were stored after their deadline; the scheduler publishes them again");
        let deadline = Instant::now() + self.timeout();
        let connection = &self.queues.requester.connection;
        for Received { unsettled, .. } in expired {
            let ending = connection
                .client
                .publish(unsettled.ack_subject, TERM_EXPIRED);
            if connection.enqueue(ending, deadline).await.is_err() {
                return;
            }
        }
    }
}
