//! One channel and its unsettled deliveries.
//!
//! Acks and requeues are queued for the socket while the consumer's state is locked. A cumulative ack must not
//! overtake the requeue of an earlier message, and a consumer must not be cancelled while it has credit.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use cueline_broker::{Delivery, Receipt};
use futures_util::FutureExt as _;
use lapin::options::{BasicAckOptions, BasicCancelOptions, BasicNackOptions};
use lapin::types::ShortString;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::prefetch::PrefetchSizer;
use crate::connection::OpenChannel;
use crate::error::CallError;
use crate::received::Received;

/// A delivery that a fetch returned and that is not settled.
pub(crate) struct Unsettled {
    pub(crate) message: Received,
    tag: u64,
    /// The message returns to its queue at this time.
    deadline: Instant,
}

/// A consumer of AMQP on the channel.
pub(super) struct Subscription {
    pub(super) number: u64,
    pub(super) tag: ShortString,
    pub(super) prefetch: u16,
    /// Messages that were delivered to it and are not settled.
    pub(super) outstanding: usize,
    pub(super) reader: JoinHandle<()>,
}

/// One channel with its subscription, buffer and unsettled deliveries.
pub(crate) struct Session {
    /// Identifies the session among those of its consumer.
    pub(super) number: u64,
    pub(crate) channel: OpenChannel,
    /// `None` while a subscription with a larger prefetch replaces it.
    pub(super) subscription: Option<Subscription>,
    /// The number of subscriptions so far.
    pub(super) subscriptions: u64,
    pub(super) sizer: PrefetchSizer,
    /// Delivery tags without an ack, each with the number of its subscription.
    delivered: BTreeMap<u64, u64>,
    /// Messages that no fetch has returned yet, with their delivery tags.
    buffered: VecDeque<(u64, Received)>,
    unsettled: HashMap<Receipt, Unsettled>,
    deadlines: BTreeSet<(Instant, Receipt)>,
}

impl Session {
    pub(super) fn new(number: u64, channel: OpenChannel) -> Self {
        Self {
            number,
            channel,
            subscription: None,
            subscriptions: 0,
            sizer: PrefetchSizer::default(),
            delivered: BTreeMap::new(),
            buffered: VecDeque::new(),
            unsettled: HashMap::new(),
            deadlines: BTreeSet::new(),
        }
    }

    pub(super) fn buffered(&self) -> usize {
        self.buffered.len()
    }

    pub(super) fn unsettled(&self) -> usize {
        self.unsettled.len()
    }

    /// Whether the server may still deliver messages.
    pub(super) fn has_credit(&self) -> bool {
        self.subscription
            .as_ref()
            .is_some_and(|s| s.outstanding < usize::from(s.prefetch))
    }

    pub(super) fn buffer(&mut self, subscription: u64, tag: u64, message: Received) {
        self.sizer.note_message(message.payload.len());
        self.delivered.insert(tag, subscription);
        self.buffered.push_back((tag, message));
        if let Some(current) = &mut self.subscription
            && current.number == subscription
        {
            current.outstanding += 1;
        }
    }

    /// Returns the oldest buffered messages, at most `max`.
    pub(super) fn hand_out(
        &mut self,
        max: usize,
        deadline: Instant,
        mut next_receipt: impl FnMut() -> Receipt,
    ) -> Vec<Delivery> {
        let count = max.min(self.buffered.len());
        let mut deliveries = Vec::with_capacity(count);
        for (tag, message) in self.buffered.drain(..count) {
            let receipt = next_receipt();
            deliveries.push(Delivery {
                receipt,
                topic: message.topic.clone(),
                payload: message.payload.clone(),
                redelivered: message.redelivered,
                deliveries: message.deliveries,
                moved_by_broker: message.moved_by_broker,
            });
            self.deadlines.insert((deadline, receipt));
            let unsettled = Unsettled {
                message,
                tag,
                deadline,
            };
            self.unsettled.insert(receipt, unsettled);
        }
        deliveries
    }

    pub(crate) fn get(&self, receipt: Receipt) -> Option<&Unsettled> {
        self.unsettled.get(&receipt)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Moves the deadline of a delivery. Ignores an unknown receipt.
    pub(crate) fn postpone(&mut self, receipt: Receipt, by: Duration) {
        if let Some(unsettled) = self.unsettled.get_mut(&receipt) {
            self.deadlines.remove(&(unsettled.deadline, receipt));
            unsettled.deadline = Instant::now() + by;
            self.deadlines.insert((unsettled.deadline, receipt));
        }
    }

    /// Acks deliveries. Ignores unknown receipts.
    pub(crate) fn ack(&mut self, receipts: &[Receipt]) -> Result<(), CallError> {
        let mut tags = self.take(receipts);
        tags.sort_unstable();
        // The oldest delivered tags that are all acked here need only one cumulative ack.
        let cumulative = self
            .delivered
            .keys()
            .zip(&tags)
            .take_while(|(delivered, tag)| delivered == tag)
            .count();
        for tag in &tags {
            self.forget(*tag);
        }
        let last = cumulative.checked_sub(1).map(|last| (tags[last], true));
        let others = tags[cumulative..].iter().map(|tag| (*tag, false));
        for (tag, multiple) in last.into_iter().chain(others) {
            let ack = self
                .channel
                .amqp
                .basic_ack(tag, BasicAckOptions { multiple });
            queued(ack)?;
        }
        Ok(())
    }

    /// Returns deliveries to the queue, which delivers them again. Ignores unknown receipts.
    pub(crate) fn requeue(&mut self, receipts: &[Receipt]) -> Result<(), CallError> {
        for tag in self.take(receipts) {
            self.forget(tag);
            let options = BasicNackOptions {
                requeue: true,
                ..BasicNackOptions::default()
            };
            queued(self.channel.amqp.basic_nack(tag, options))?;
        }
        Ok(())
    }

    /// Requeues the deliveries whose deadline has passed.
    pub(super) fn requeue_overdue(&mut self, now: Instant) -> Result<(), CallError> {
        let overdue = self.deadlines.iter().take_while(|(at, _)| *at <= now);
        let overdue: Vec<Receipt> = overdue.map(|(_, receipt)| *receipt).collect();
        self.requeue(&overdue)
    }

    /// Removes the deliveries of these receipts and returns their tags.
    fn take(&mut self, receipts: &[Receipt]) -> Vec<u64> {
        let mut tags = Vec::with_capacity(receipts.len());
        for receipt in receipts {
            if let Some(unsettled) = self.unsettled.remove(receipt) {
                self.deadlines.remove(&(unsettled.deadline, *receipt));
                tags.push(unsettled.tag);
            }
        }
        tags
    }

    fn forget(&mut self, tag: u64) {
        let subscription = self.delivered.remove(&tag);
        if let Some(current) = &mut self.subscription
            && Some(current.number) == subscription
        {
            current.outstanding = current.outstanding.saturating_sub(1);
        }
    }

    /// Closes the channel. The server returns all unsettled messages to the queue.
    ///
    /// lapin closes a channel by itself only after everything that came over it has been dropped.
    pub(super) async fn close(self) -> Result<(), CallError> {
        if let Some(subscription) = &self.subscription {
            if self.channel.is_open() {
                // lapin cancels a dropped consumer by itself. If that cancel comes after the close, the close fails.
                let (amqp, tag) = (&self.channel.amqp, subscription.tag.clone());
                let cancel = amqp.basic_cancel(tag, BasicCancelOptions::default());
                if let Err(e) = self.channel.answer("cancel a consumer", cancel).await {
                    tracing::debug!(error = %e.error, "failed to cancel a consumer before closing its channel");
                }
            }
            subscription.reader.abort();
        }
        if !self.channel.is_open() {
            return Ok(());
        }
        let close = self.channel.amqp.close(200, "done".into());
        self.channel.answer("close a channel", close).await
    }
}

/// Queues a frame, as [`enqueue`](crate::connection::enqueue) does. Once the server answers a later call on the same
/// channel, it has processed the frame.
fn queued(call: impl Future<Output = lapin::Result<()>>) -> Result<(), CallError> {
    let sent = call.now_or_never().unwrap_or(Ok(()));
    sent.map_err(|e| CallError::new("settle", e))
}
