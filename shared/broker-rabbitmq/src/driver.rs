//! The driver: opens and closes its parts, and implements the port with them.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cueline_broker::{
    Announcement, BrokerError, BrokerStats, Capabilities, Channel, Delivery, Driver, ErrorKind,
    Listener, Outgoing, QueueId, QueueStats, Receipt, Refusal, Settlement, StartLog,
};
use futures_util::future::BoxFuture;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::announcements::Announcements;
use crate::connection::{Connector, SupervisedConnection};
use crate::consumer::Consumer;
use crate::context::DriverContext;
use crate::counts::{Counts, count};
use crate::error::timed_out;
use crate::names::Names;
use crate::options::{MAX_BATCH, MAX_PAYLOAD_BYTES, RabbitOptions};
use crate::publish::{Publisher, publish_batch};
use crate::settle::settle;
use crate::start_logs;
use crate::topology;

/// The longest time that closing waits for tasks.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// A broker on `RabbitMQ`.
///
/// The driver reconnects in the background whenever a connection ends. Without a connection, calls fail with a
/// transient error within [`RabbitOptions::request_timeout`]. Dropping the driver ends its tasks; unsettled deliveries
/// return to their queues at once.
pub struct RabbitDriver {
    context: Arc<DriverContext>,
    publisher: Publisher,
    announcements: Arc<Announcements>,
    consumers: Mutex<HashMap<QueueId, Arc<Consumer>>>,
}

impl std::fmt::Debug for RabbitDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The address is left out, because it may hold a password.
        f.debug_struct("RabbitDriver")
            .field("options", &self.context.options)
            .finish_non_exhaustive()
    }
}

impl RabbitDriver {
    /// Opens a driver for the server at `url`: `amqp://user:password@host:port/vhost`, or `amqps://…` for TLS.
    ///
    /// A server that cannot be reached yet is no error: the driver keeps trying to connect.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Permanent`] for unusable options, a malformed address, a file that cannot be read, or a wrong
    /// password or virtual host.
    // Boxed, so that its code is in this crate only, and not again in each that calls it.
    pub fn open(url: &str, options: RabbitOptions) -> BoxFuture<'_, Result<Self, BrokerError>> {
        Box::pin(async move {
            options.validate()?;
            let names = Names::new(&options.prefix)?;
            let connector = Connector::new(url, &options).await?;
            let queue = names.announcement_queue(connector.user(), process_nonce())?;
            let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
            let connect = || {
                Arc::new(SupervisedConnection::start(
                    connector.clone(),
                    &tasks,
                    stop.clone(),
                ))
            };
            let context = Arc::new(DriverContext {
                connection: connect(),
                publishing: connect(),
                names,
                options,
                // Receipts differ from those of earlier drivers: a late ack must not settle another delivery.
                last_receipt: AtomicU64::new(process_nonce() >> 1),
                tasks,
                stop,
            });
            let announcements = Arc::new(Announcements::new(Arc::clone(&context), queue));
            context.tasks.spawn({
                let (announcements, stop) = (Arc::clone(&announcements), context.stop.clone());
                async move { stop.run_until_cancelled(announcements.receive()).await }
            });
            let driver = Self {
                publisher: Publisher::new(Arc::clone(&context)),
                announcements,
                consumers: Mutex::default(),
                context,
            };
            for connection in [&driver.context.publishing, &driver.context.connection] {
                match connection.current().await {
                    Err(e) if e.kind() == ErrorKind::Permanent => return Err(e),
                    Ok(_) | Err(_) => {}
                }
            }
            Ok(driver)
        })
    }

    /// Closes the connections. Unsettled deliveries return to their queues at once. Takes at most 5 s.
    pub fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.context.stop.cancel();
            self.context.tasks.close();
            // The server notices the end of connections that do not close in time.
            let _ = timeout(CLOSE_WITHIN, self.context.tasks.wait()).await;
        })
    }

    fn consumers(&self) -> MutexGuard<'_, HashMap<QueueId, Arc<Consumer>>> {
        self.consumers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn consumer(&self, queue: &QueueId) -> Option<Arc<Consumer>> {
        self.consumers().get(queue).cloned()
    }

    fn consumer_or_start(&self, queue: &QueueId) -> Result<Arc<Consumer>, BrokerError> {
        let mut consumers = self.consumers();
        if let Some(consumer) = consumers.get(queue) {
            return Ok(Arc::clone(consumer));
        }
        let consumer = Consumer::start(queue.clone(), Arc::clone(&self.context))?;
        consumers.insert(queue.clone(), Arc::clone(&consumer));
        Ok(consumer)
    }
}

impl Drop for RabbitDriver {
    fn drop(&mut self) {
        self.context.stop.cancel();
    }
}

/// A random number that identifies this driver. No decision depends on it, so it needs no seed.
fn process_nonce() -> u64 {
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
            max_batch: MAX_BATCH,
            max_payload_bytes: MAX_PAYLOAD_BYTES,
        }
    }

    async fn declare(&self, queue: &QueueId) -> Result<(), BrokerError> {
        let DriverContext { names, options, .. } = &*self.context;
        let connection = self.context.connection.current().await?;
        let declare = topology::declare_queue(&connection, names, options, queue);
        let within = options.request_timeout;
        timeout(within, declare)
            .await
            .unwrap_or_else(|_| Err(timed_out("declare a queue", within)))
    }

    async fn delete(&self, queue: &QueueId, only_if_empty: bool) -> Result<bool, BrokerError> {
        let names = &self.context.names;
        let connection = self.context.connection.current().await?;
        if only_if_empty {
            if let Some(consumer) = self.consumer(queue)
                && !consumer.pause().await?
            {
                return Ok(false);
            }
            if !topology::delete_if_empty(&connection, names, queue).await? {
                return Ok(false);
            }
        } else {
            topology::delete(&connection, names.queue(queue)?).await?;
        }
        let consumer = self.consumers().remove(queue);
        if let Some(consumer) = consumer {
            consumer.end();
        }
        Ok(true)
    }

    async fn publish(&self, batch: &[Outgoing]) -> Result<Vec<Result<(), Refusal>>, BrokerError> {
        self.context.ensure_open()?;
        publish_batch(&self.context, &self.publisher, batch).await
    }

    async fn fetch(
        &self,
        queue: &QueueId,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, BrokerError> {
        self.context.ensure_open()?;
        if max == 0 {
            return Ok(Vec::new());
        }
        self.consumer_or_start(queue)?.fetch(max, wait).await
    }

    async fn stop_fetching(&self, queue: &QueueId) -> Result<(), BrokerError> {
        match self.consumer(queue) {
            Some(consumer) => consumer.pause().await.map(drop),
            None => Ok(()),
        }
    }

    async fn settle(
        &self,
        queue: &QueueId,
        settlements: &[(Receipt, Settlement)],
    ) -> Result<(), BrokerError> {
        self.context.ensure_open()?;
        match self.consumer(queue) {
            Some(consumer) => settle(&self.context, &consumer, &self.publisher, settlements).await,
            None => Ok(()),
        }
    }

    async fn stats(&self, queues: &[QueueId]) -> Result<BrokerStats, BrokerError> {
        let connection = self.context.connection.current().await?;
        let mut channel = connection.open_channel().await?;
        let mut stats = BrokerStats::default();
        let mut waited_in_vain = Duration::ZERO;
        // AMQP cannot list queues.
        for queue in queues.iter().collect::<BTreeSet<&QueueId>>() {
            // Queues without a leader must not add up their timeouts.
            if waited_in_vain >= self.context.connection.request_timeout {
                stats.unanswered.push(queue.clone());
                continue;
            }
            let consumer = self.consumer(queue);
            let subscription = || consumer.as_ref().and_then(|c| c.subscription());
            let before = subscription();
            let name = self.context.names.queue(queue)?;
            let asked_at = Instant::now();
            let counts = match count(&channel, name).await {
                Ok(Some(counts)) => counts,
                Ok(None) => {
                    channel = connection.open_channel().await?;
                    continue;
                }
                Err(e) if e.kind() == ErrorKind::Transient => {
                    tracing::debug!(%queue, error = %e, "failed to count the messages of a queue");
                    // This fails if the server is away, not only the queue.
                    channel = connection.open_channel().await?;
                    stats.unanswered.push(queue.clone());
                    waited_in_vain += asked_at.elapsed();
                    continue;
                }
                Err(e) => return Err(e),
            };
            // A queue that this driver consumes has a consumer. If the counts include none, the queue's leader does not
            // answer.
            let is_subscribed = before.is_some() && before == subscription();
            if counts == Counts::NONE && is_subscribed {
                stats.unanswered.push(queue.clone());
                waited_in_vain += asked_at.elapsed();
                continue;
            }
            let (buffered, unsettled) = consumer.map_or((0, 0), |consumer| consumer.counts());
            stats.queues.push(QueueStats {
                queue: queue.clone(),
                ready: counts.ready + buffered,
                unsettled,
                coverage: counts.coverage(u64::from(is_subscribed)),
                settled: None,
            });
        }
        Ok(stats)
    }

    async fn announce(&self, channel: &Channel, message: Announcement) -> Result<(), BrokerError> {
        self.context.ensure_open()?;
        let announced = self.announcements.announce(channel, &message).await;
        announced.map(drop)
    }

    async fn announce_stored(&self, channel: &Channel, payload: Bytes) -> Result<(), BrokerError> {
        self.context.ensure_open()?;
        let publisher = &self.publisher;
        self.announcements
            .announce_stored(channel, payload, publisher)
            .await
    }

    async fn declare_proofs(&self) -> Result<(), BrokerError> {
        let DriverContext { names, options, .. } = &*self.context;
        let connection = self.context.connection.current().await?;
        let declare = topology::declare_proofs(&connection, names, options);
        let within = options.request_timeout;
        timeout(within, declare)
            .await
            .unwrap_or_else(|_| Err(timed_out("declare the queue of proofs", within)))
    }

    async fn listen(&self, channel: &Channel) -> Result<Listener, BrokerError> {
        self.context.ensure_open()?;
        self.announcements.listen(channel).await
    }

    async fn declare_log(&self, log: &StartLog) -> Result<(), BrokerError> {
        let DriverContext { names, options, .. } = &*self.context;
        let connection = self.context.connection.current().await?;
        let declare = topology::declare_log(&connection, names, log);
        let within = options.request_timeout;
        timeout(within, declare)
            .await
            .unwrap_or_else(|_| Err(timed_out("declare a start log", within)))
    }

    async fn is_log_empty(&self, log: &StartLog) -> Result<bool, BrokerError> {
        self.context.ensure_open()?;
        start_logs::is_empty(&self.context, log).await
    }

    async fn append(&self, log: &StartLog, record: Bytes) -> Result<(), BrokerError> {
        self.context.ensure_open()?;
        start_logs::append(&self.context, &self.publisher, log, record).await
    }

    async fn read_log(&self, log: &StartLog) -> Result<Vec<Bytes>, BrokerError> {
        self.context.ensure_open()?;
        start_logs::read(&self.context, &self.publisher, log).await
    }

    async fn delete_log(&self, log: &StartLog) -> Result<(), BrokerError> {
        let connection = self.context.connection.current().await?;
        topology::delete(&connection, self.context.names.log(log)?).await
    }
}
