//! Announcements: messages to the present listeners, which the server does not store. A stored one is followed by a
//! proof in a quorum queue.
//!
//! Each driver has one exclusive queue, bound for every channel that it listens on. The queue ends with its
//! connection, and the driver declares it again on the next one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::listener::listener;
use cueline_broker::{Announcement, BrokerError, Channel, Listener, ListenerSender};
use futures_util::StreamExt as _;
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::connection::{Connection, OpenChannel, STABLE_AFTER};
use crate::context::DriverContext;
use crate::error::{closed, failed, timed_out, transient};
use crate::names::Names;
use crate::publish::{Outcome, Publisher};
use crate::topology;

/// The most announcements that wait on the server for one driver. The server drops the oldest beyond it.
const MAX_ON_SERVER: i64 = 10_000;

/// The most announcements that wait for one listener.
const MAX_PER_LISTENER: usize = 10_000;

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

type Listeners = HashMap<Channel, Vec<Arc<ListenerSender>>>;

/// Sends and receives the announcements of one driver.
pub(crate) struct Announcements {
    context: Arc<DriverContext>,
    publish_channel: tokio::sync::Mutex<Option<OpenChannel>>,
    queue: ShortString,
    listeners: Mutex<Listeners>,
    /// The channel that consumes the queue now.
    receiving: watch::Sender<Option<OpenChannel>>,
}

impl Announcements {
    pub(crate) fn new(context: Arc<DriverContext>, queue: ShortString) -> Self {
        Self {
            context,
            publish_channel: tokio::sync::Mutex::default(),
            queue,
            listeners: Mutex::default(),
            receiving: watch::Sender::new(None),
        }
    }

    /// See [`cueline_broker::Driver::announce`]. Returns the connection that took the message.
    pub(crate) async fn announce(
        &self,
        channel: &Channel,
        message: &Announcement,
    ) -> Result<Arc<Connection>, BrokerError> {
        let key = Names::channel(channel)?;
        let mut properties = BasicProperties::default();
        if let Some(reply_to) = &message.reply_to {
            properties = properties.with_reply_to(Names::channel(reply_to)?);
        }
        let exchange = self.context.names.announcement_exchange();
        let announce = async {
            let open = self.publish_channel().await?;
            let options = BasicPublishOptions::default();
            let written =
                open.amqp
                    .basic_publish(exchange, key, options, &message.payload, properties);
            drop(written.await.map_err(|e| failed("announce", e))?);
            Ok::<_, BrokerError>(open.connection)
        };
        let within = self.context.publishing.request_timeout;
        timeout(within, announce)
            .await
            .unwrap_or_else(|_| Err(timed_out("announce", within)))
    }

    /// See [`cueline_broker::Driver::announce_stored`]. The proof has a key of its own. The confirm of the announcement
    /// would also depend on the queue of each listener. It would even come if the queue of proofs were missing.
    pub(crate) async fn announce_stored(
        &self,
        channel: &Channel,
        payload: Bytes,
        publisher: &Publisher,
    ) -> Result<(), BrokerError> {
        let reply_to = None;
        let announcement = Announcement { payload, reply_to };
        let connection = self.announce(channel, &announcement).await?;
        match publisher.store_proof(&connection).await? {
            Outcome::Confirmed => Ok(()),
            Outcome::Unroutable => Err(transient(
                "failed to store an announcement: no scheduler has declared the queue of proofs, or it is not up yet",
            )),
            Outcome::Rejected | Outcome::Unconfirmed => Err(transient(
                "failed to store an announcement: RabbitMQ did not confirm it",
            )),
        }
    }

    async fn publish_channel(&self) -> Result<OpenChannel, BrokerError> {
        let mut present = self.publish_channel.lock().await;
        if let Some(channel) = present.as_ref().filter(|channel| channel.is_open()) {
            return Ok(channel.clone());
        }
        let connection = self.context.publishing.current().await?;
        if present.take().is_some() {
            // The channel was closed, perhaps because the exchange was deleted.
            connection.set_exchanges_declared(false);
        }
        topology::declare_exchanges(&connection, &self.context.names).await?;
        Ok(present.insert(connection.open_channel().await?).clone())
    }

    /// See [`cueline_broker::Driver::listen`]. Each listener has a task, which ends with the listener or the driver.
    pub(crate) async fn listen(
        self: &Arc<Self>,
        channel: &Channel,
    ) -> Result<Listener, BrokerError> {
        // Subscribe first, so that a new queue also binds this channel.
        let (sender, listener) = self.subscribe(channel);
        let within = self.context.options.request_timeout;
        timeout(within, self.bind_on_present_queue(channel))
            .await
            .unwrap_or_else(|_| Err(timed_out("listen", within)))?;
        let (this, channel) = (Arc::clone(self), channel.clone());
        self.context.tasks.spawn(async move {
            tokio::select! {
                () = sender.abandoned() => this.unbind_if_unused(&channel).await,
                () = this.context.stop.cancelled() => this.listeners().clear(),
            }
        });
        Ok(listener)
    }

    fn subscribe(&self, channel: &Channel) -> (Arc<ListenerSender>, Listener) {
        let mut listeners = self.listeners();
        // A `listen` that failed or was dropped leaves an abandoned listener.
        listeners.retain(|_, senders| {
            senders.retain(|sender| !sender.is_abandoned());
            !senders.is_empty()
        });
        let (sender, listener) = listener(MAX_PER_LISTENER);
        let sender = Arc::new(sender);
        let senders = listeners.entry(channel.clone()).or_default();
        senders.push(Arc::clone(&sender));
        (sender, listener)
    }

    async fn bind_on_present_queue(&self, channel: &Channel) -> Result<(), BrokerError> {
        let mut receiving = self.receiving.subscribe();
        let open = receiving
            .wait_for(|receiving| receiving.as_ref().is_some_and(OpenChannel::is_open))
            .await
            .map_err(|_| closed())?
            .clone();
        self.bind(&open.ok_or_else(closed)?, channel).await
    }

    async fn bind(&self, open: &OpenChannel, channel: &Channel) -> Result<(), BrokerError> {
        let bind = open.amqp.queue_bind(
            self.queue.clone(),
            self.context.names.announcement_exchange(),
            Names::channel(channel)?,
            QueueBindOptions::default(),
            FieldTable::default(),
        );
        Ok(open.answer("listen", bind).await?)
    }

    async fn unbind_if_unused(&self, channel: &Channel) {
        {
            let mut listeners = self.listeners();
            // Another `listen` may have removed the abandoned listeners before.
            if let Some(senders) = listeners.get_mut(channel) {
                senders.retain(|sender| !sender.is_abandoned());
                if !senders.is_empty() {
                    return;
                }
                listeners.remove(channel);
            }
        }
        let open = self.receiving.borrow().clone();
        let (Some(open), Ok(key)) = (open, Names::channel(channel)) else {
            return;
        };
        let unbind = open.amqp.queue_unbind(
            self.queue.clone(),
            self.context.names.announcement_exchange(),
            key,
            FieldTable::default(),
        );
        // A failure is harmless: later announcements find no listener.
        let _ = open.answer("stop listening", unbind).await;
        // A new listener may have bound the channel before it was unbound.
        if self.listeners().contains_key(channel) {
            let _ = self.bind(&open, channel).await;
        }
    }

    /// Receives announcements, on one connection after another.
    pub(crate) async fn receive(&self) {
        let mut wait = FIRST_WAIT;
        loop {
            let Ok(connection) = self.context.connection.current().await else {
                // The connection logs why it is missing.
                sleep(FIRST_WAIT).await;
                continue;
            };
            let start = Instant::now();
            if let Err(error) = self.receive_on(&connection).await {
                tracing::warn!(%error, "failed to receive announcements; the driver tries again");
            }
            self.receiving.send_replace(None);
            if start.elapsed() > STABLE_AFTER {
                wait = FIRST_WAIT;
            }
            sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    /// Receives until the consumer of the queue ends.
    async fn receive_on(&self, connection: &Arc<Connection>) -> Result<(), BrokerError> {
        topology::declare_exchanges(connection, &self.context.names).await?;
        let open = connection.open_channel().await?;
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(MAX_ON_SERVER));
        let exclusive = QueueDeclareOptions::exclusive().auto_delete();
        let declare = open
            .amqp
            .queue_declare(self.queue.clone(), exclusive, arguments);
        open.answer("listen", declare).await?;
        let without_acks = BasicConsumeOptions {
            no_ack: true,
            ..BasicConsumeOptions::default()
        };
        let queue = self.queue.clone();
        let consume =
            open.amqp
                .basic_consume(queue, "".into(), without_acks, FieldTable::default());
        let mut deliveries = open.answer("listen", consume).await?;
        self.receiving.send_replace(Some(open.clone()));
        // Read the channels after the queue is known: later listeners bind their channels themselves.
        let channels: Vec<Channel> = self.listeners().keys().cloned().collect();
        for channel in channels {
            self.bind(&open, &channel).await?;
        }
        while let Some(Ok(delivery)) = deliveries.next().await {
            if let Some((channel, announcement)) = read(delivery)
                && let Some(senders) = self.listeners().get(&channel)
            {
                for sender in senders {
                    sender.send(announcement.clone());
                }
            }
        }
        Ok(())
    }

    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(delivery: Delivery) -> Option<(Channel, Announcement)> {
    let channel = Names::parse_channel(delivery.routing_key.as_str())?;
    let reply_to = delivery.properties.reply_to().as_ref();
    let announcement = Announcement {
        reply_to: reply_to.and_then(|key| Names::parse_channel(key.as_str())),
        payload: Bytes::from(delivery.data),
    };
    Some((channel, announcement))
}
