//! Announcements: plain NATS messages to the present listeners. A stored one is followed by a proof in a stream.

use std::sync::Arc;

use async_nats::client::traits::Publisher as _;
use async_nats::message::OutboundMessage;
use async_nats::{Message, Subscriber};
use bytes::Bytes;
use cueline_broker::listener::listener;
use cueline_broker::{Announcement, BrokerError, Channel, Listener, ListenerSender};
use futures_util::StreamExt as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::{permanent, transient};
use crate::names::Names;
use crate::publish_ack::PublishAck;
use crate::queues::Queues;
use crate::requests::Request;

/// The most announcements that wait for one listener.
const LISTENER_BUFFER: usize = 10_000;

pub(crate) struct Channels {
    pub(crate) queues: Arc<Queues>,
}

impl Channels {
    pub(crate) async fn announce(
        &self,
        channel: &Channel,
        announcement: Announcement,
    ) -> Result<(), BrokerError> {
        let (names, connection) = (&self.queues.names, &self.queues.requester.connection);
        let Announcement { payload, reply_to } = announcement;
        self.check_size(&payload)?;
        let deadline = Instant::now() + self.queues.options.request_timeout;
        connection.wait_until_connected(deadline).await?;
        let message = OutboundMessage {
            subject: names.channel(channel).into(),
            reply: reply_to.map(|reply_to| names.channel(&reply_to).into()),
            payload,
            headers: None,
        };
        let sending = connection.client.publish_message(message);
        connection.enqueue(sending, deadline).await
    }

    /// See [`cueline_broker::Driver::announce_stored`]. The announcement and its proof are one batch, so both went over
    /// the same connection. The stream confirms the proof only with a majority of its servers.
    pub(crate) async fn announce_stored(
        &self,
        channel: &Channel,
        payload: Bytes,
    ) -> Result<(), BrokerError> {
        self.check_size(&payload)?;
        let (names, requester) = (&self.queues.names, &self.queues.requester);
        let announcement = Request {
            expects_reply: false,
            ..Request::new(names.channel(channel), payload)
        };
        let proof = Request::new(names.proof(), Bytes::new());
        let replies = requester.send_all([announcement, proof].into_iter());
        let reply = replies.await?.pop().and_then(|reply| reply.payload);
        let Some(reply) = reply else {
            return Err(transient(
                "failed to store an announcement: no scheduler has declared the stream of proofs, or no server leads it now",
            ));
        };
        match PublishAck::parse(&reply)?.error {
            None => Ok(()),
            Some(refused) => Err(refused.into_broker_error("store an announcement")),
        }
    }

    fn check_size(&self, payload: &Bytes) -> Result<(), BrokerError> {
        let limit = self.queues.requester.connection.client.max_payload();
        let bytes = payload.len();
        if bytes > limit {
            return Err(permanent(format!(
                "failed to announce: {bytes} bytes are more than the {limit} that the server allows"
            )));
        }
        Ok(())
    }

    /// Listens until the listener is dropped or `closed`.
    pub(crate) async fn listen(
        &self,
        channel: &Channel,
        tasks: &TaskTracker,
        closed: CancellationToken,
    ) -> Result<Listener, BrokerError> {
        let (names, requester) = (self.queues.names.clone(), &self.queues.requester);
        let deadline = Instant::now() + self.queues.options.request_timeout;
        let subscribing = requester
            .connection
            .client
            .subscribe(names.subscription(channel));
        let messages = requester.connection.enqueue(subscribing, deadline).await?;
        // After this round trip the server has the subscription, so no later announcement is missed.
        requester.round_trip().await?;
        let (sender, listener) = listener(LISTENER_BUFFER);
        tasks.spawn(async move {
            tokio::select! {
                () = forward(messages, &sender, &names) => {}
                () = sender.abandoned() => {}
                () = closed.cancelled() => {}
            }
        });
        Ok(listener)
    }
}

/// Reads without waiting for the listener. The client's own buffer would lose the newest announcements.
async fn forward(mut messages: Subscriber, sender: &ListenerSender, names: &Names) {
    while let Some(message) = messages.next().await {
        // A status reports that a request has no listeners. The requester still waits, because listeners may appear.
        if message.status.is_none() {
            sender.send(announcement(message, names));
        }
    }
}

fn announcement(message: Message, names: &Names) -> Announcement {
    Announcement {
        reply_to: message.reply.and_then(|reply| names.reply_channel(&reply)),
        payload: message.payload,
    }
}
