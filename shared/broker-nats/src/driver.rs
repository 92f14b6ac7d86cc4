//! The driver itself: puts the connection, the queues and the channels together.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cueline_broker::{
    Announcement, BrokerError, Capabilities, Channel, Delivery, Driver, ErrorKind, Listener,
    Outgoing, QueueId, QueueStats, Receipt, Refusal, Settlement,
};
use futures_util::StreamExt as _;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::channels::Channels;
use crate::clock::ServerClock;
use crate::doubts::Doubts;
use crate::error::permanent;
use crate::fetch::Fetcher;
use crate::link::Link;
use crate::names::{Names, Stream};
use crate::options::NatsOptions;
use crate::pipeline::Pipeline;
use crate::publish::{HEADER_BYTES, Publisher};
use crate::puller::Idle;
use crate::queues::Queues;
use crate::receipts::Receipts;
use crate::settle::Settler;

/// A broker on NATS `JetStream`, over one connection.
///
/// The connection is made again by itself, for ever; a call that meets its end fails with a transient error, within
/// [`request_timeout`](NatsOptions::request_timeout) of the last sign of life. Dropping the driver ends the connection.
pub struct NatsDriver {
    options: Arc<NatsOptions>,
    link: Link,
    queues: Arc<Queues>,
    receipts: Arc<Receipts>,
    publisher: Publisher,
    fetcher: Fetcher,
    settler: Settler,
    channels: Channels,
    tasks: TaskTracker,
    closed: CancellationToken,
    _close_on_drop: DropGuard,
}

impl std::fmt::Debug for NatsDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NatsDriver")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl NatsDriver {
    /// Connects to `address`: `nats://host:port` or `tls://host:port`, with `user:password@` or `token@` before the host if need
    /// be; several servers of a cluster are separated by commas.
    ///
    /// Fails permanently if the options or the address cannot be right or the server refuses the user, transiently if
    /// no server answers; see also [`retry_on_initial_connect`](NatsOptions::retry_on_initial_connect).
    pub async fn connect(address: &str, options: NatsOptions) -> Result<Self, BrokerError> {
        options.validate()?;
        let options = Arc::new(options);
        let link = Link::open(address, &options).await?;
        let (tasks, closed) = (TaskTracker::new(), CancellationToken::new());
        let (pipeline, sorting) =
            Pipeline::open(link.clone(), options.window, options.request_timeout).await?;
        let pipeline = Arc::new(pipeline);
        tasks.spawn(closed.clone().run_until_cancelled_owned(sorting));
        let names = Names::new(&options.prefix, options.identity.as_ref());
        let queues = Arc::new(Queues::new(
            names.clone(),
            Arc::clone(&options),
            Arc::clone(&pipeline),
        ));
        let receipts = Arc::new(Receipts::new(options.ack_wait));
        let driver = Self {
            publisher: Publisher {
                queues: Arc::clone(&queues),
                pipeline: Arc::clone(&pipeline),
                clock: ServerClock::new(names.stream(Stream::Triggers), options.counts_within()),
                doubts: Doubts::default(),
                deduplicates: !options.duplicate_window.is_zero(),
            },
            fetcher: Fetcher {
                link: link.clone(),
                queues: Arc::clone(&queues),
                receipts: Arc::clone(&receipts),
                patience: options.request_timeout,
                idle: Idle::new(options.ack_wait),
            },
            settler: Settler {
                queues: Arc::clone(&queues),
                receipts: Arc::clone(&receipts),
                pipeline: Arc::clone(&pipeline),
                link: link.clone(),
            },
            channels: Channels {
                link: link.clone(),
                names,
                options: Arc::clone(&options),
                pipeline,
            },
            queues,
            receipts,
            link,
            options,
            tasks,
            _close_on_drop: closed.clone().drop_guard(),
            closed,
        };
        driver.hear_of_deletions().await?;
        Ok(driver)
    }

    /// Ends the connection and waits until nothing of this driver runs any more. Calls after it fail with
    /// [`ErrorKind::Closed`].
    pub async fn close(&self) {
        self.closed.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Forgets queues that others delete. Where that may not be heard, they are forgotten after some time.
    async fn hear_of_deletions(&self) -> Result<(), BrokerError> {
        if self.options.identity.is_some() {
            // An executor publishes no triggers.
            return Ok(());
        }
        let stream = self.queues.names.stream(Stream::Triggers);
        let subject = format!("$JS.EVENT.ADVISORY.CONSUMER.DELETED.{stream}.*");
        let subscribed = self.link.client.subscribe(subject).await;
        let mut deletions = subscribed
            .map_err(|e| permanent("failed to subscribe to what is deleted").caused_by(e))?;
        let queues = Arc::clone(&self.queues);
        let hearing = async move {
            while let Some(deletion) = deletions.next().await {
                if let Some(consumer) = deletion.subject.rsplit('.').next() {
                    queues.forget_consumer(consumer);
                }
            }
        };
        let closed = self.closed.clone();
        self.tasks.spawn(closed.run_until_cancelled_owned(hearing));
        Ok(())
    }

    fn max_payload_bytes(&self) -> usize {
        let server = self.link.client.max_payload().saturating_sub(HEADER_BYTES);
        self.options.max_payload_bytes.min(server)
    }

    fn open(&self) -> Result<(), BrokerError> {
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
            deduplicates: !self.options.duplicate_window.is_zero(),
            delayed_retry: true,
            // It does over a restart in peace; SIGKILL takes what was not written yet, of the last tenth of a second.
            counts_across_restart: false,
            shared_by_processes: true,
            exact_limit: true,
            max_batch: self.options.max_batch,
            max_payload_bytes: self.max_payload_bytes(),
        }
    }

    async fn declare(&self, queue: &QueueId) -> Result<(), BrokerError> {
        self.open()?;
        self.queues.declare(queue).await
    }

    async fn delete(&self, queue: &QueueId, only_if_empty: bool) -> Result<bool, BrokerError> {
        self.open()?;
        let deleted = self.queues.delete(queue, only_if_empty).await?;
        if deleted {
            self.receipts.forget(queue);
            self.fetcher.idle.forget(queue);
        }
        Ok(deleted)
    }

    async fn publish(&self, batch: &[Outgoing]) -> Result<Vec<Result<(), Refusal>>, BrokerError> {
        self.open()?;
        let (count, most) = (batch.len(), self.options.max_batch);
        if count > most {
            return Err(permanent(format!(
                "failed to publish {count} messages: {most} is the most at once"
            )));
        }
        self.publisher
            .publish(batch, self.max_payload_bytes())
            .await
    }

    async fn fetch(
        &self,
        queue: &QueueId,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, BrokerError> {
        self.open()?;
        self.fetcher.fetch(queue, max, wait).await
    }

    async fn settle(
        &self,
        queue: &QueueId,
        settlements: &[(Receipt, Settlement)],
    ) -> Result<(), BrokerError> {
        self.open()?;
        self.settler.settle(queue, settlements).await
    }

    async fn stats(&self, _queues: &[QueueId]) -> Result<Vec<QueueStats>, BrokerError> {
        self.open()?;
        self.queues.stats().await
    }

    async fn announce(&self, channel: &Channel, message: Announcement) -> Result<(), BrokerError> {
        self.open()?;
        self.channels.announce(channel, message).await
    }

    async fn listen(&self, channel: &Channel) -> Result<Listener, BrokerError> {
        self.open()?;
        self.channels
            .listen(channel, &self.tasks, self.closed.clone())
            .await
    }
}
