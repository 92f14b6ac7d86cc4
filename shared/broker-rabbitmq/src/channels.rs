//! Announcements: kept nowhere but on their way. One queue of its own for each driver, bound for each channel that somebody here
//! listens on; it goes when the connection goes, and is made again with the next.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use cueline_broker::{Announcement, BrokerError, Channel, Listener};
use futures_util::StreamExt as _;
use lapin::message::Delivery;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Consumer};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::{closed, failed, late};
use crate::link::{Link, Up, forget_exchanges};
use crate::names::Names;
use crate::topology;

/// What waits on the server for a driver that reads too slowly; the oldest go first.
const SERVER_BUFFER: i64 = 10_000;

/// What waits for one listener. A plain `mpsc` would lose the newest when full; the port promises to lose the oldest.
#[derive(Default)]
struct Ring {
    waiting: Mutex<VecDeque<Announcement>>,
    arrived: Notify,
}

impl Ring {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Announcement>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, announcement: Announcement, limit: usize) {
        let mut waiting = self.lock();
        if waiting.len() >= limit {
            waiting.pop_front();
        }
        waiting.push_back(announcement);
        drop(waiting);
        self.arrived.notify_one();
    }
}

type Listeners = Mutex<HashMap<Channel, Vec<Arc<Ring>>>>;

/// Where this driver listens at the moment: the queue is there, and consumed.
#[derive(Clone)]
struct Ear {
    up: Arc<Up>,
    channel: lapin::Channel,
}

/// All channels of one driver.
pub(crate) struct Channels {
    link: Arc<Link>,
    /// Announcements go over the link that publishes: listening is not held up when the server takes nothing.
    speaking: Arc<Link>,
    speaker: tokio::sync::Mutex<Option<Ear>>,
    names: Names,
    queue: ShortString,
    listeners: Arc<Listeners>,
    ear: watch::Sender<Option<Ear>>,
    buffer: usize,
}

impl Channels {
    pub(crate) fn new(
        link: Arc<Link>,
        speaking: Arc<Link>,
        names: Names,
        queue: ShortString,
        buffer: usize,
    ) -> Self {
        Self {
            link,
            speaking,
            speaker: tokio::sync::Mutex::default(),
            names,
            queue,
            listeners: Arc::default(),
            ear: watch::Sender::new(None),
            buffer,
        }
    }

    /// See [`cueline_broker::Driver::announce`].
    pub(crate) async fn announce(
        &self,
        channel: &Channel,
        message: &Announcement,
    ) -> Result<(), BrokerError> {
        let key = Names::channel(channel)?;
        let mut properties = BasicProperties::default();
        if let Some(reply_to) = &message.reply_to {
            properties = properties.with_reply_to(Names::channel(reply_to)?);
        }
        let within = self.speaking.request_timeout();
        let announced = self.say(key, properties, &message.payload);
        timeout(within, announced)
            .await
            .unwrap_or_else(|_| Err(late("announce", within)))
    }

    async fn say(
        &self,
        key: ShortString,
        properties: BasicProperties,
        payload: &[u8],
    ) -> Result<(), BrokerError> {
        let channel = {
            let mut speaker = self.speaker.lock().await;
            let usable = |ear: &&Ear| ear.up.is_open() && ear.channel.status().connected();
            if let Some(ear) = speaker.as_ref().filter(usable) {
                ear.channel.clone()
            } else {
                let up = self.speaking.up().await?;
                if speaker.take().is_some() {
                    // Its channel was closed: somebody may have deleted the exchange.
                    forget_exchanges(&up);
                }
                topology::exchanges(&up, &self.names).await?;
                let channel = up.channel().await?;
                speaker.insert(Ear { up, channel }).channel.clone()
            }
        };
        channel
            .basic_publish(
                self.names.live(),
                key,
                BasicPublishOptions::default(),
                payload,
                properties,
            )
            .await
            .map_err(|e| failed("announce", e))?;
        Ok(())
    }

    /// Listens until the listener is dropped or `stop`; one task for each listener passes announcements on.
    pub(crate) async fn listen(
        &self,
        channel: &Channel,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Result<Listener, BrokerError> {
        let ring = Arc::new(Ring::default());
        lock(&self.listeners)
            .entry(channel.clone())
            .or_default()
            .push(Arc::clone(&ring));
        // From here on a new ear binds it too.
        let heard = Heard {
            listeners: Arc::clone(&self.listeners),
            ear: self.ear.subscribe(),
            channel: channel.clone(),
            names: self.names.clone(),
            queue: self.queue.clone(),
            ring,
        };
        let within = self.link.request_timeout();
        timeout(within, self.bind(channel))
            .await
            .unwrap_or_else(|_| Err(late("listen", within)))?;
        let (sender, listener) = mpsc::channel(1);
        tasks.spawn(async move {
            tokio::select! {
                () = pass_on(&heard.ring, &sender) => {}
                () = sender.closed() => {}
                () = stop.cancelled() => return,
            }
            heard.unbind().await;
        });
        Ok(listener)
    }

    async fn bind(&self, channel: &Channel) -> Result<(), BrokerError> {
        let mut ear = self.ear.subscribe();
        let usable = |ear: &Option<Ear>| {
            ear.as_ref()
                .is_some_and(|ear| ear.up.is_open() && ear.channel.status().connected())
        };
        let ear = ear.wait_for(usable).await.map_err(|_| closed())?.clone();
        let ear = ear.ok_or_else(closed)?;
        bind(&ear, &self.names, &self.queue, channel).await
    }

    /// Keeps the ear open, one connection after the other.
    pub(crate) async fn keep_listening(&self) {
        self.link
            .on_each(async |up| {
                let mut wait = std::time::Duration::from_millis(100);
                loop {
                    if let Err(error) = self.hear(Arc::clone(&up)).await {
                        tracing::warn!(%error, "nothing can be heard; trying again");
                    }
                    self.ear.send_replace(None);
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(std::time::Duration::from_secs(5));
                }
            })
            .await;
    }

    /// Hears until the consumer ends.
    async fn hear(&self, up: Arc<Up>) -> Result<(), BrokerError> {
        topology::exchanges(&up, &self.names).await?;
        let channel = up.channel().await?;
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(SERVER_BUFFER));
        let exclusive = QueueDeclareOptions {
            exclusive: true,
            auto_delete: true,
            ..QueueDeclareOptions::default()
        };
        let declared = channel.queue_declare(self.queue.clone(), exclusive, arguments);
        up.within("listen", declared).await?;
        let unacked = BasicConsumeOptions {
            no_ack: true,
            ..BasicConsumeOptions::default()
        };
        let consume = channel.basic_consume(
            self.queue.clone(),
            "".into(),
            unacked,
            FieldTable::default(),
        );
        let consumer = up.within("listen", consume).await?;
        let ear = Ear { up, channel };
        self.ear.send_replace(Some(ear.clone()));
        // After it has been made known: whoever comes now binds for himself.
        let channels: Vec<Channel> = lock(&self.listeners).keys().cloned().collect();
        for channel in channels {
            bind(&ear, &self.names, &self.queue, &channel).await?;
        }
        self.dispatch(consumer).await;
        Ok(())
    }

    async fn dispatch(&self, mut consumer: Consumer) {
        while let Some(Ok(delivery)) = consumer.next().await {
            let Some((channel, announcement)) = read(delivery) else {
                continue;
            };
            if let Some(rings) = lock(&self.listeners).get(&channel) {
                for ring in rings {
                    ring.push(announcement.clone(), self.buffer);
                }
            }
        }
    }
}

fn read(delivery: Delivery) -> Option<(Channel, Announcement)> {
    let channel = Names::parse_channel(delivery.routing_key.as_str())?;
    let reply_to = delivery.properties.reply_to().as_ref();
    let reply_to = reply_to.and_then(|key| Names::parse_channel(key.as_str()));
    let announcement = Announcement {
        payload: Bytes::from(delivery.data),
        reply_to,
    };
    Some((channel, announcement))
}

async fn bind(
    ear: &Ear,
    names: &Names,
    queue: &ShortString,
    channel: &Channel,
) -> Result<(), BrokerError> {
    let bound = ear.channel.queue_bind(
        queue.clone(),
        names.live(),
        Names::channel(channel)?,
        QueueBindOptions::default(),
        FieldTable::default(),
    );
    ear.up.within("listen", bound).await
}

/// One listener's place among all; forgotten when it is dropped.
struct Heard {
    listeners: Arc<Listeners>,
    ear: watch::Receiver<Option<Ear>>,
    channel: Channel,
    names: Names,
    queue: ShortString,
    ring: Arc<Ring>,
}

impl Heard {
    /// Takes the channel off the queue if nobody here listens on it any more.
    async fn unbind(self) {
        if !self.forget() {
            return;
        }
        let ear = self.ear.borrow().clone();
        let (Some(ear), Ok(key)) = (ear, Names::channel(&self.channel)) else {
            return;
        };
        let unbound = ear.channel.queue_unbind(
            self.queue.clone(),
            self.names.live(),
            key,
            FieldTable::default(),
        );
        // What comes all the same finds no listener.
        let _ = ear.up.within("stop to listen", unbound).await;
        // Somebody may have begun to listen meanwhile, and be bound no more.
        if lock(&self.listeners).contains_key(&self.channel) {
            let _ = bind(&ear, &self.names, &self.queue, &self.channel).await;
        }
    }

    /// Whether it was the last one on its channel.
    fn forget(&self) -> bool {
        let mut listeners = lock(&self.listeners);
        let Some(rings) = listeners.get_mut(&self.channel) else {
            return false;
        };
        rings.retain(|other| !Arc::ptr_eq(other, &self.ring));
        if rings.is_empty() {
            listeners.remove(&self.channel);
            return true;
        }
        false
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        self.forget();
    }
}

async fn pass_on(ring: &Ring, sender: &mpsc::Sender<Announcement>) {
    loop {
        // Room first: what waits for it stays in the ring, where the oldest can still be dropped.
        let Ok(room) = sender.reserve().await else {
            return;
        };
        let next = ring.lock().pop_front();
        match next {
            Some(announcement) => room.send(announcement),
            None => ring.arrived.notified().await,
        }
    }
}

fn lock(listeners: &Listeners) -> MutexGuard<'_, HashMap<Channel, Vec<Arc<Ring>>>> {
    listeners.lock().unwrap_or_else(PoisonError::into_inner)
}
