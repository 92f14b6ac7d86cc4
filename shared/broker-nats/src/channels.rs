//! Announcements: plain NATS messages, kept nowhere, for whoever listens at that moment.

use std::collections::VecDeque;
use std::sync::Arc;

use async_nats::{Message, Subscriber};
use cueline_broker::{Announcement, BrokerError, Channel, Listener};
use futures_util::StreamExt as _;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::permanent;
use crate::link::Link;
use crate::names::Names;
use crate::options::NatsOptions;
use crate::pipeline::Pipeline;

/// Says and hears.
pub(crate) struct Channels {
    pub(crate) link: Link,
    pub(crate) names: Names,
    pub(crate) options: Arc<NatsOptions>,
    pub(crate) pipeline: Arc<Pipeline>,
}

impl Channels {
    pub(crate) async fn announce(
        &self,
        channel: &Channel,
        announcement: Announcement,
    ) -> Result<(), BrokerError> {
        let until = Instant::now() + self.options.request_timeout;
        let (client, payload) = (&self.link.client, announcement.payload);
        let (bytes, limit) = (payload.len(), client.max_payload());
        if bytes > limit {
            return Err(permanent(format!(
                "failed to announce: {bytes} bytes are more than the {limit} that the server takes"
            )));
        }
        self.link.connected(until).await?;
        let subject = self.names.channel(channel);
        match announcement
            .reply_to
            .map(|reply| self.names.channel(&reply))
        {
            Some(reply) => {
                let sending = client.publish_with_reply(subject, reply, payload);
                self.link.hand_over(sending, until).await
            }
            None => {
                self.link
                    .hand_over(client.publish(subject, payload), until)
                    .await
            }
        }
    }

    /// Listens until the listener is dropped or `closed`.
    pub(crate) async fn listen(
        &self,
        channel: &Channel,
        tasks: &TaskTracker,
        closed: CancellationToken,
    ) -> Result<Listener, BrokerError> {
        let until = Instant::now() + self.options.request_timeout;
        let subscribing = self.link.client.subscribe(self.names.ears(channel));
        let messages = self.link.hand_over(subscribing, until).await?;
        // What others say from now on is heard: the server knows of the subscription.
        self.pipeline.round_trip().await?;
        let (sender, listener) = mpsc::channel(1);
        let (names, limit) = (self.names.clone(), self.options.listener_buffer);
        tasks.spawn(async move {
            tokio::select! {
                () = pass_on(messages, &sender, &names, limit) => {}
                () = sender.closed() => {}
                () = closed.cancelled() => {}
            }
        });
        Ok(listener)
    }
}

/// Reads at once, so that the client's buffer stays empty (it would lose the newest), and keeps the newest `limit`.
async fn pass_on(
    mut messages: Subscriber,
    sender: &mpsc::Sender<Announcement>,
    names: &Names,
    limit: usize,
) {
    let mut waiting = VecDeque::new();
    loop {
        tokio::select! {
            message = messages.next() => {
                let Some(message) = message else { return };
                if message.status.is_some() {
                    // The server says that nobody heard a question; whoever asked waits for others all the same.
                    continue;
                }
                if waiting.len() >= limit {
                    waiting.pop_front();
                }
                waiting.push_back(announcement(message, names));
            }
            room = sender.reserve(), if !waiting.is_empty() => {
                let Ok(room) = room else { return };
                if let Some(next) = waiting.pop_front() {
                    room.send(next);
                }
            }
        }
    }
}

fn announcement(message: Message, names: &Names) -> Announcement {
    Announcement {
        reply_to: message.reply.and_then(|reply| names.replies(&reply)),
        payload: message.payload,
    }
}
