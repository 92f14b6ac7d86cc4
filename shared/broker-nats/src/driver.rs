//! The driver: connects the parts and implements the port.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cueline_broker::{
    Announcement, BrokerError, BrokerStats, Capabilities, Channel, Delivery, Driver, ErrorKind,
    Listener, Outgoing, QueueId, Receipt, Refusal, Settlement, StartLog,
};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::channels::Channels;
use crate::connect::connect;
use crate::deadline::ServerClock;
use crate::error::permanent;
use crate::fetch::Fetcher;
use crate::names::{Names, Stream};
use crate::options::NatsOptions;
use crate::publish::{HEADER_BYTES, Publisher};
use crate::pull::PullPool;
use crate::queues::Queues;
use crate::receipts::Receipts;
use crate::requests::Requester;
use crate::settle::Settler;
use crate::start_logs::StartLogs;
use crate::unconfirmed::Unconfirmed;

/// The most messages in one `publish`.
const MAX_BATCH: usize = 5_000;
/// The largest payload in bytes, even if the server allows more.
const MAX_PAYLOAD: usize = 8 << 20;

/// A broker on NATS `JetStream`, over one connection.
///
/// The driver reconnects by itself, without a limit. If the connection is lost during a call, the call fails with a
/// transient error within [`request_timeout`](NatsOptions::request_timeout) of the last reply. Dropping the driver
/// closes the connection.
pub struct NatsDriver {
    queues: Arc<Queues>,
    publisher: Publisher,
    fetcher: Fetcher,
    settler: Settler,
    channels: Channels,
    start_logs: StartLogs,
    tasks: TaskTracker,
    closed: CancellationToken,
    _close_on_drop: DropGuard,
}

impl std::fmt::Debug for NatsDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NatsDriver")
            .field("options", &self.queues.options)
            .finish_non_exhaustive()
    }
}

impl NatsDriver {
    /// Connects to `address`: `nats://host:port` or `tls://host:port`, optionally with `user:password@` or `token@`
    /// before the host. Several servers of a cluster are separated by commas.
    ///
    /// # Errors
    ///
    /// Permanent if an option or the address is invalid, a file cannot be read, or the server refuses the user.
    /// Transient if no server answers, unless [`retry_on_initial_connect`](NatsOptions::retry_on_initial_connect) is
    /// set.
    // Boxed, so that its code is in this crate only, and not again in each that calls it.
    pub fn connect(
        address: &str,
        options: NatsOptions,
    ) -> BoxFuture<'_, Result<Self, BrokerError>> {
        Box::pin(async move {
            options.validate()?;
            let options = Arc::new(options);
            let names = Names::new(&options.prefix, options.identity.as_ref());
            let connection = connect(address, &options, &names).await?;
            let (max_in_flight, timeout) = (options.max_in_flight, options.request_timeout);
            let opening = Requester::open(connection, max_in_flight, timeout);
            let (requester, matching) = opening.await?;
            let (tasks, closed) = (TaskTracker::new(), CancellationToken::new());
            tasks.spawn(closed.clone().run_until_cancelled_owned(matching));
            let clock =
                ServerClock::new(names.stream(Stream::Triggers), options.trigger_valid_for());
            let queues = Queues::new(names, Arc::clone(&options), Arc::new(requester));
            let (queues, receipts) = (Arc::new(queues), Arc::new(Receipts::new(options.ack_wait)));
            let driver = Self {
                publisher: Publisher {
                    queues: Arc::clone(&queues),
                    clock,
                    unconfirmed: Unconfirmed::default(),
                },
                fetcher: Fetcher {
                    queues: Arc::clone(&queues),
                    receipts: Arc::clone(&receipts),
                    pool: PullPool::new(options.ack_wait),
                },
                settler: Settler::new(Arc::clone(&queues), receipts),
                channels: Channels {
                    queues: Arc::clone(&queues),
                },
                start_logs: StartLogs {
                    queues: Arc::clone(&queues),
                },
                queues,
                tasks,
                _close_on_drop: closed.clone().drop_guard(),
                closed,
            };
            driver.watch_deleted_consumers().await?;
            Ok(driver)
        })
    }

    /// Closes the connection and waits until the driver's tasks have ended. Later calls fail with
    /// [`ErrorKind::Closed`].
    pub fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.closed.cancel();
            self.tasks.close();
            self.tasks.wait().await;
        })
    }

    /// Removes queues from the cache when other processes delete them. Without this the cache would keep them until
    /// they expire.
    async fn watch_deleted_consumers(&self) -> Result<(), BrokerError> {
        if self.queues.options.identity.is_some() {
            // An executor may not subscribe to these events, and it publishes no triggers.
            return Ok(());
        }
        let stream = self.queues.names.stream(Stream::Triggers);
        let subject = format!("$JS.EVENT.ADVISORY.CONSUMER.DELETED.{stream}.*");
        let client = &self.queues.requester.connection.client;
        let subscribed = client.subscribe(subject).await;
        let mut deletions = subscribed
            .map_err(|e| permanent("failed to subscribe to deleted queues").caused_by(e))?;
        let queues = Arc::clone(&self.queues);
        let watching = async move {
            while let Some(deletion) = deletions.next().await {
                if let Some(consumer) = deletion.subject.rsplit('.').next() {
                    queues.forget_consumer(consumer);
                }
            }
        };
        let closed = self.closed.clone();
        self.tasks.spawn(closed.run_until_cancelled_owned(watching));
        Ok(())
    }

    fn max_payload(&self) -> usize {
        let server = self.queues.requester.connection.client.max_payload();
        MAX_PAYLOAD.min(server.saturating_sub(HEADER_BYTES))
    }

    fn ensure_open(&self) -> Result<(), BrokerError> {
        if self.closed.is_cancelled() {
            let message = "failed to use the broker: it is closed";
            return Err(BrokerError::new(ErrorKind::Closed, message));
        }
        Ok(())
    }
}

#[async_trait]
impl Driver for NatsDriver {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "NATS JetStream",
            durable: true,
            deduplicates: !self.queues.options.duplicate_window.is_zero(),
            delayed_retry: true,
            // SIGKILL loses the delivery counts of about the last tenth of a second.
            counts_across_restart: false,
            shared_by_processes: true,
            exact_limit: true,
            max_batch: MAX_BATCH,
            max_payload_bytes: self.max_payload(),
        }
    }

    async fn declare(&self, queue: &QueueId) -> Result<(), BrokerError> {
        self.ensure_open()?;
        self.queues.declare(queue).await
    }

    async fn delete(&self, queue: &QueueId, only_if_empty: bool) -> Result<bool, BrokerError> {
        self.ensure_open()?;
        let deleted = self.queues.delete(queue, only_if_empty).await?;
        if deleted {
            self.settler.receipts.remove_queue(queue);
            self.fetcher.pool.remove_queue(queue);
        }
        Ok(deleted)
    }

    async fn publish(&self, batch: &[Outgoing]) -> Result<Vec<Result<(), Refusal>>, BrokerError> {
        self.ensure_open()?;
        let count = batch.len();
        if count > MAX_BATCH {
            return Err(permanent(format!(
                "failed to publish {count} messages: at most {MAX_BATCH} are allowed at once"
            )));
        }
        self.publisher.publish(batch, self.max_payload()).await
    }

    async fn fetch(
        &self,
        queue: &QueueId,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, BrokerError> {
        self.ensure_open()?;
        self.fetcher.fetch(queue, max, wait).await
    }

    /// Messages are delivered only to a fetch.
    async fn stop_fetching(&self, _queue: &QueueId) -> Result<(), BrokerError> {
        Ok(())
    }

    async fn settle(
        &self,
        queue: &QueueId,
        settlements: &[(Receipt, Settlement)],
    ) -> Result<(), BrokerError> {
        self.ensure_open()?;
        self.settler.settle(queue, settlements).await
    }

    async fn stats(&self, queues: &[QueueId]) -> Result<BrokerStats, BrokerError> {
        self.ensure_open()?;
        self.queues.stats(queues).await
    }

    async fn announce(&self, channel: &Channel, message: Announcement) -> Result<(), BrokerError> {
        self.ensure_open()?;
        self.channels.announce(channel, message).await
    }

    async fn announce_stored(&self, channel: &Channel, payload: Bytes) -> Result<(), BrokerError> {
        self.ensure_open()?;
        self.channels.announce_stored(channel, payload).await
    }

    async fn declare_proofs(&self) -> Result<(), BrokerError> {
        self.ensure_open()?;
        self.queues.declare_proofs().await
    }

    async fn listen(&self, channel: &Channel) -> Result<Listener, BrokerError> {
        self.ensure_open()?;
        self.channels
            .listen(channel, &self.tasks, self.closed.clone())
            .await
    }

    async fn declare_log(&self, _log: &StartLog) -> Result<(), BrokerError> {
        self.ensure_open()?;
        self.queues.declare_logs().await
    }

    async fn is_log_empty(&self, log: &StartLog) -> Result<bool, BrokerError> {
        self.ensure_open()?;
        self.start_logs.is_empty(log).await
    }

    async fn append(&self, log: &StartLog, record: Bytes) -> Result<(), BrokerError> {
        self.ensure_open()?;
        self.start_logs.append(log, record).await
    }

    async fn read_log(&self, log: &StartLog) -> Result<Vec<Bytes>, BrokerError> {
        self.ensure_open()?;
        self.start_logs.read(log).await
    }

    async fn delete_log(&self, log: &StartLog) -> Result<(), BrokerError> {
        self.ensure_open()?;
        self.start_logs.delete(log).await
    }
}
