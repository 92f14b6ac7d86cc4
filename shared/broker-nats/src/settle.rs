//! Settles deliveries. A consumer processes the acks of one connection in order, so its reply to the last ack of a call
//! confirms all of them. A reply to each ack would cost the server as much as the acks themselves.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{BrokerError, QueueId, Receipt, Settlement};
use serde_json::json;
use tokio::time::Instant;

use crate::dead_letter::{self, LetterWriter};
use crate::error::transient;
use crate::publish::HEADER_BYTES;
use crate::publish_ack::PublishAck;
use crate::queues::Queues;
use crate::receipts::{Receipts, Unsettled};
use crate::requests::{Reply, Request};

/// A longer delay would overflow the server's clock.
const MAX_DELAY: Duration = Duration::from_hours(100 * 365 * 24);
/// Every 64th ack also asks for a reply. These replies show that a long call makes progress, and limit the acks in
/// flight.
const REPLY_INTERVAL: usize = 64;

pub(crate) struct Settler {
    pub(crate) queues: Arc<Queues>,
    pub(crate) receipts: Arc<Receipts>,
    /// Of the ids of dead letters.
    nonce: u64,
}

type ToSettle<'a> = Vec<(Receipt, Unsettled, &'a Settlement)>;

impl Settler {
    pub(crate) fn new(queues: Arc<Queues>, receipts: Arc<Receipts>) -> Self {
        Self {
            queues,
            receipts,
            // It decides nothing, so it needs no seed.
            nonce: RandomState::new().hash_one(std::process::id()),
        }
    }

    pub(crate) async fn settle(
        &self,
        queue: &QueueId,
        settlements: &[(Receipt, Settlement)],
    ) -> Result<(), BrokerError> {
        let receipts = settlements.iter().map(|(receipt, how)| (*receipt, how));
        let mut to_settle = self.receipts.find(queue, receipts, Instant::now());
        // A dead letter that cannot be stored keeps no ack back. Otherwise all would come again with it, and again.
        let not_moved = self.move_dead(queue, &mut to_settle).await;
        let last = to_settle.len().saturating_sub(1);
        let acks = to_settle
            .iter()
            .enumerate()
            .map(|(n, (_, unsettled, how))| Request {
                expects_reply: n == last || n % REPLY_INTERVAL == 0,
                ..Request::new(unsettled.ack_subject.clone(), ack_payload(queue, how))
            });
        let replies = self.queues.requester.send_all(acks).await?;
        // A deleted queue has nothing to settle. A queue without a leader has processed no ack, so the receipts stay
        // valid and a retry reaches the next leader.
        if no_responders(&replies) && !self.queues.is_deleted(queue).await {
            return Err(transient(format!(
                "failed to settle in {queue}: no server leads it now"
            )));
        }
        let settled = to_settle.iter().map(|(receipt, ..)| *receipt);
        self.receipts.remove(queue, settled);
        not_moved.map_or(Ok(()), Err)
    }

    /// Publishes dead letters. Those that the dead-letter queue does not accept are removed from `to_settle` and stay
    /// unsettled. The error gives the reason.
    async fn move_dead(
        &self,
        queue: &QueueId,
        to_settle: &mut ToSettle<'_>,
    ) -> Option<BrokerError> {
        // A dead letter that is refused again stays in the dead-letter queue.
        if *queue == QueueId::Dead {
            return None;
        }
        let (mut indexes, mut dead) = (Vec::new(), Vec::new());
        for (index, (_, unsettled, how)) in to_settle.iter().enumerate() {
            if let Settlement::Dead(reason) = how {
                indexes.push(index);
                dead.push((unsettled.clone(), reason));
            }
        }
        let replies = match self.publish_letters(queue, &dead).await {
            Ok(replies) => replies,
            Err(e) => {
                to_settle.retain(|(_, _, how)| !matches!(how, Settlement::Dead(_)));
                return Some(e);
            }
        };
        let mut failed = None;
        for (index, reply) in indexes.iter().zip(&replies).rev() {
            if let Err(e) = confirmed(reply) {
                to_settle.remove(*index);
                failed = Some(e);
            }
        }
        failed
    }

    /// Publishes the messages as dead letters with their reasons. Declares a missing dead-letter queue.
    async fn publish_letters(
        &self,
        queue: &QueueId,
        dead: &[(Unsettled, &String)],
    ) -> Result<Vec<Reply>, BrokerError> {
        let (names, requester) = (&self.queues.names, &self.queues.requester);
        let max_payload = requester.connection.client.max_payload();
        let writer = LetterWriter {
            names,
            max_payload: max_payload.saturating_sub(HEADER_BYTES),
            seal: self.queues.options.seal_dead_letters.as_ref(),
            nonce: self.nonce,
        };
        let letters = || {
            dead.iter()
                .map(|(unsettled, reason)| dead_letter::request(&writer, queue, unsettled, reason))
        };
        let replies = requester.send_all(letters()).await?;
        if !no_responders(&replies) {
            return Ok(replies);
        }
        // Another process may have deleted the queue.
        self.queues.declare(&QueueId::Dead).await?;
        requester.send_all(letters()).await
    }
}

fn no_responders(replies: &[Reply]) -> bool {
    replies.iter().any(|reply| reply.payload.is_none())
}

fn ack_payload(queue: &QueueId, how: &Settlement) -> Bytes {
    match how {
        Settlement::Ack => Bytes::from_static(b"+ACK"),
        Settlement::Dead(_) if *queue == QueueId::Dead => Bytes::from_static(b"-NAK"),
        Settlement::Dead(_) => Bytes::from_static(b"+TERM moved to the dead-letter queue"),
        Settlement::Retry(delay) if delay.is_zero() => Bytes::from_static(b"-NAK"),
        Settlement::Retry(delay) => {
            let delay = u64::try_from((*delay).min(MAX_DELAY).as_nanos()).unwrap_or(u64::MAX);
            format!("-NAK {}", json!({ "delay": delay })).into()
        }
    }
}

fn confirmed(reply: &Reply) -> Result<(), BrokerError> {
    let action = "move a message to the dead-letter queue";
    let Some(payload) = &reply.payload else {
        return Err(transient(format!(
            "failed to {action}: no server leads the queue now"
        )));
    };
    match PublishAck::parse(payload)?.error {
        None => Ok(()),
        Some(refused) => Err(refused.into_broker_error(action)),
    }
}
