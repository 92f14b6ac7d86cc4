//! The port, on all of it.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cueline_broker::{
    Announcement, BrokerError, Capabilities, Channel, Delivery, Driver, ErrorKind, Listener,
    Outgoing, QueueId, QueueStats, Receipt, Refusal, Settlement,
};
use lapin::BasicProperties;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::channels::Channels;
use crate::confirms::Sent;
use crate::delivery::with_topic;
use crate::error::{closed, late};
use crate::link::{Connector, Link};
use crate::names::{Names, escape, short};
use crate::options::RabbitOptions;
use crate::publish::{Parcel, Publisher};
use crate::settle;
use crate::tap::{Surroundings, Tap};
use crate::topology;

/// How long closing waits for what is under way.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// A broker on `RabbitMQ`.
///
/// Connections are opened again in the background for as long as it lives; while there is none, calls fail with a transient error
/// within [`RabbitOptions::request_timeout`]. Dropping it ends its tasks; what was handed out comes again at once.
pub struct RabbitDriver {
    around: Arc<Surroundings>,
    publisher: Publisher,
    channels: Arc<Channels>,
    taps: Mutex<HashMap<QueueId, Arc<Tap>>>,
}

impl std::fmt::Debug for RabbitDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the address: it may hold a password.
        f.debug_struct("RabbitDriver")
            .field("options", &self.around.options)
            .finish_non_exhaustive()
    }
}

impl RabbitDriver {
    /// A driver for the server at `url`: `amqp://user:password@host:port/vhost`, or `amqps://…` for TLS.
    ///
    /// A server that cannot be reached yet is no error. A wrong address, password or virtual host is permanent.
    pub async fn open(url: &str, options: RabbitOptions) -> Result<Self, BrokerError> {
        options.validate()?;
        let names = Names::new(&options.prefix)?;
        let connector = Connector::new(url, &options).await?;
        let ear = format!(
            "{}.l.{}.{:016x}",
            options.prefix,
            escape(connector.user()),
            unlike_others()
        );
        let ear = short(ear)?;
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let publishing = Arc::new(Link::start(connector.clone(), &tasks, stop.clone()));
        let consuming = Arc::new(Link::start(connector, &tasks, stop.clone()));
        let channels = Arc::new(Channels::new(
            Arc::clone(&consuming),
            Arc::clone(&publishing),
            names.clone(),
            ear,
            options.listener_buffer,
        ));
        tasks.spawn({
            let (channels, stop) = (Arc::clone(&channels), stop.clone());
            async move { stop.run_until_cancelled(channels.keep_listening()).await }
        });
        let driver = Self {
            publisher: Publisher::new(
                Arc::clone(&publishing),
                names.clone(),
                options.silent_after,
                tasks.clone(),
                stop.clone(),
            ),
            channels,
            taps: Mutex::default(),
            around: Arc::new(Surroundings {
                link: Arc::clone(&consuming),
                names,
                options,
                // Apart from those of any driver before: a late ack must not hit another message.
                receipts: AtomicU64::new(unlike_others() >> 1),
                tasks,
                stop,
            }),
        };
        for link in [publishing, consuming] {
            match link.up().await {
                Err(e) if e.kind() == ErrorKind::Permanent => return Err(e),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(driver)
    }

    /// Ends it and waits until its connections are closed. What was handed out and not settled is delivered again at once.
    pub async fn close(&self) {
        self.around.stop.cancel();
        self.around.tasks.close();
        // The server finds out by itself about what did not end in time.
        let _ = timeout(CLOSE_WITHIN, self.around.tasks.wait()).await;
    }

    fn names(&self) -> &Names {
        &self.around.names
    }

    fn is_closed(&self) -> bool {
        self.around.stop.is_cancelled()
    }

    fn taps(&self) -> MutexGuard<'_, HashMap<QueueId, Arc<Tap>>> {
        self.taps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tap(&self, queue: &QueueId) -> Result<Arc<Tap>, BrokerError> {
        let mut taps = self.taps();
        if let Some(tap) = taps.get(queue) {
            return Ok(Arc::clone(tap));
        }
        let tap = Tap::start(queue.clone(), Arc::clone(&self.around))?;
        taps.insert(queue.clone(), Arc::clone(&tap));
        Ok(tap)
    }

    fn forget(&self, queue: &QueueId) {
        let tap = self.taps().remove(queue);
        if let Some(tap) = tap {
            tap.end();
        }
    }

    /// Everything but the messages whose payload is too large, with their places.
    fn parcels<'a>(
        &self,
        batch: &'a [Outgoing],
    ) -> Result<(Vec<usize>, Vec<Parcel<'a>>), BrokerError> {
        let mut places = Vec::with_capacity(batch.len());
        let mut parcels = Vec::with_capacity(batch.len());
        for (place, outgoing) in batch.iter().enumerate() {
            if outgoing.payload.len() > self.around.options.max_payload_bytes {
                continue;
            }
            let (key, long) = Names::key(&outgoing.queue, &outgoing.topic)?;
            let mut properties = BasicProperties::default();
            if let Ok(id) = short(outgoing.id.clone()) {
                properties = properties.with_message_id(id);
            }
            if long {
                properties = with_topic(properties, &outgoing.topic);
            }
            places.push(place);
            parcels.push(Parcel {
                queue: &outgoing.queue,
                exchange: self.names().exchange(&outgoing.queue),
                key,
                properties,
                payload: outgoing.payload.clone(),
            });
        }
        Ok((places, parcels))
    }

    async fn answer(
        &self,
        outgoing: &Outgoing,
        sent: Sent,
        limits: &mut HashMap<QueueId, u64>,
    ) -> Result<(), Refusal> {
        let queue = || outgoing.queue.to_string();
        match sent {
            Sent::Confirmed => Ok(()),
            Sent::Unroutable => Err(Refusal::NoQueue(queue())),
            Sent::Rejected => {
                let limit = if let Some(limit) = limits.get(&outgoing.queue) {
                    *limit
                } else {
                    let limit = self.limit(&outgoing.queue).await;
                    limits.insert(outgoing.queue.clone(), limit);
                    limit
                };
                Err(Refusal::Full {
                    queue: queue(),
                    limit,
                })
            }
            Sent::Unanswered => Err(Refusal::Unknown {
                queue: queue(),
                why: "RabbitMQ did not confirm it".into(),
            }),
        }
    }

    /// The limit at which the queue has just refused a message. A quorum queue refuses for no other reason; a policy may have set a lower
    /// limit than this driver asked for, which AMQP does not tell: then it is what waits there.
    async fn limit(&self, queue: &QueueId) -> u64 {
        let own = self.around.options.queue_limit;
        let waiting = async {
            let up = self.around.link.up().await?;
            topology::ready(&up, &up.channel().await?, self.names().queue(queue)?).await
        };
        match waiting.await {
            Ok(Some((waiting, _))) => own.min(waiting.max(1)),
            Ok(None) | Err(_) => own,
        }
    }
}

impl Drop for RabbitDriver {
    fn drop(&mut self) {
        self.around.stop.cancel();
    }
}

/// An identity, not a decision: nothing that a seed should reproduce depends on it.
fn unlike_others() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(std::process::id())
}

#[async_trait]
impl Driver for RabbitDriver {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "rabbitmq",
            durable: true,
            deduplicates: false,
            delayed_retry: true,
            counts_across_restart: true,
            shared_by_processes: true,
            exact_limit: false,
            max_batch: self.around.options.max_batch,
            max_payload_bytes: self.around.options.max_payload_bytes,
        }
    }

    async fn declare(&self, queue: &QueueId) -> Result<(), BrokerError> {
        let up = self.around.link.up().await?;
        let within = self.around.options.request_timeout;
        let declared = topology::declare(&up, self.names(), &self.around.options, queue);
        timeout(within, declared)
            .await
            .unwrap_or_else(|_| Err(late("declare a queue", within)))
    }

    async fn delete(&self, queue: &QueueId, only_if_empty: bool) -> Result<bool, BrokerError> {
        let up = self.around.link.up().await?;
        if only_if_empty {
            let tap = self.taps().get(queue).cloned();
            if let Some(tap) = tap
                && !tap.rest_now().await?
            {
                return Ok(false);
            }
            if !topology::delete_if_empty(&up, self.names(), queue).await? {
                return Ok(false);
            }
        } else {
            topology::delete(&up, self.names().queue(queue)?).await?;
        }
        self.forget(queue);
        Ok(true)
    }

    async fn publish(&self, batch: &[Outgoing]) -> Result<Vec<Result<(), Refusal>>, BrokerError> {
        let options = &self.around.options;
        if batch.len() > options.max_batch {
            return Err(BrokerError::new(
                ErrorKind::Permanent,
                format!(
                    "failed to publish: {} messages are more than the {} of a batch",
                    batch.len(),
                    options.max_batch
                ),
            ));
        }
        if self.is_closed() {
            return Err(closed());
        }
        let mut answers: Vec<Result<(), Refusal>> = batch
            .iter()
            .map(|outgoing| {
                Err(Refusal::TooLarge {
                    bytes: outgoing.payload.len(),
                    limit: options.max_payload_bytes,
                })
            })
            .collect();
        let (places, parcels) = self.parcels(batch)?;
        if parcels.is_empty() {
            return Ok(answers);
        }
        let sent = self.publisher.publish(&parcels).await?;
        let mut limits = HashMap::new();
        for (place, sent) in places.into_iter().zip(sent) {
            answers[place] = self.answer(&batch[place], sent, &mut limits).await;
        }
        Ok(answers)
    }

    async fn fetch(
        &self,
        queue: &QueueId,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, BrokerError> {
        if self.is_closed() {
            return Err(closed());
        }
        if max == 0 {
            return Ok(Vec::new());
        }
        self.tap(queue)?.fetch(max, wait).await
    }

    async fn settle(
        &self,
        queue: &QueueId,
        settlements: &[(Receipt, Settlement)],
    ) -> Result<(), BrokerError> {
        if self.is_closed() {
            return Err(closed());
        }
        let tap = self.taps().get(queue).cloned();
        match tap {
            Some(tap) => settle::settle(&tap, &self.publisher, self.names(), settlements).await,
            None => Ok(()),
        }
    }

    async fn stats(&self, queues: &[QueueId]) -> Result<Vec<QueueStats>, BrokerError> {
        let up = self.around.link.up().await?;
        let queues: BTreeSet<&QueueId> = queues.iter().collect();
        let mut stats = Vec::with_capacity(queues.len());
        let mut channel = up.channel().await?;
        // AMQP lists no queues.
        for queue in queues {
            let name = self.names().queue(queue)?;
            let tap = self.taps().get(queue).cloned();
            let consumer = tap.as_ref().and_then(|tap| tap.consumer());
            let counts = topology::ready(&up, &channel, name).await?;
            let Some((ready, consumers)) = counts else {
                channel = up.channel().await?;
                continue;
            };
            // The server says so too when the queue's leader does not answer at once, and then it is not true.
            let none = (ready, consumers) == (0, 0);
            if none && consumer.is_some() && consumer == tap.as_ref().and_then(|tap| tap.consumer())
            {
                return Err(BrokerError::new(
                    ErrorKind::Transient,
                    format!("failed to count messages: {queue} does not answer"),
                ));
            }
            let (waiting, unsettled) = tap.map_or((0, 0), |tap| tap.counts());
            stats.push(QueueStats {
                queue: queue.clone(),
                ready: ready + waiting,
                unsettled,
            });
        }
        Ok(stats)
    }

    async fn announce(&self, channel: &Channel, message: Announcement) -> Result<(), BrokerError> {
        if self.is_closed() {
            return Err(closed());
        }
        self.channels.announce(channel, &message).await
    }

    async fn listen(&self, channel: &Channel) -> Result<Listener, BrokerError> {
        if self.is_closed() {
            return Err(closed());
        }
        let (tasks, stop) = (&self.around.tasks, self.around.stop.clone());
        self.channels.listen(channel, tasks, stop).await
    }
}
