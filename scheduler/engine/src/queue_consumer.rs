//! The loop of a stage that reads a durable queue: fetch a batch, process it, fetch the next.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Broker, BrokerError, Delivery, QueueId, Settlement};
use cueline_runtime::{Backoff, Linger, Stop};

use crate::error::EngineError;

/// A stage that reads one durable queue.
pub(crate) trait QueueConsumer: Send + Sync + 'static {
    const QUEUE: QueueId;
    /// How long a batch waits for more items; none unless a stage says otherwise.
    const LINGER: Option<Linger> = None;

    fn broker(&self) -> &Broker;

    /// The most messages fetched at once.
    fn max_messages(&self) -> usize;

    /// Processes and settles a batch, which is not empty. Returns its number of items.
    fn process(
        &self,
        batch: &[Delivery],
        stop: &Stop,
    ) -> impl Future<Output = Result<usize, EngineError>> + Send;
}

/// How long one fetch waits for a message.
const FETCH_WAIT: Duration = Duration::from_secs(5);

/// Consumes until the stop. A fetched batch is processed and settled in spite of a stop. Otherwise its messages would
/// stay undelivered until the broker's ack timeout.
pub(crate) async fn run<C: QueueConsumer>(consumer: Arc<C>, stop: Stop) {
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    while !stop.is_soft() {
        let batch = tokio::select! {
            batch = fetch(&*consumer, FETCH_WAIT) => batch,
            () = stop.soft() => return,
        };
        let processed = match batch {
            Ok(batch) if batch.is_empty() => Ok(None),
            Ok(batch) => consumer.process(&batch, &stop).await.map(Some),
            Err(e) => Err(e),
        };
        match processed {
            Ok(items) => {
                backoff.reset();
                if let (Some(linger), Some(items)) = (C::LINGER, items) {
                    linger.pause_after(items).await;
                }
            }
            Err(e) => {
                let wait = backoff.next_wait();
                tracing::error!(queue = %C::QUEUE, error = %e, wait_ms = wait.as_millis(), "failed to process messages; trying again. Check the database and the broker");
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = stop.soft() => {}
                }
            }
        }
    }
}

/// Fetches one batch, waiting up to `wait` for its first message.
pub(crate) async fn fetch<C: QueueConsumer>(
    consumer: &C,
    wait: Duration,
) -> Result<Vec<Delivery>, EngineError> {
    let broker = consumer.broker();
    Ok(broker
        .fetch(&C::QUEUE, consumer.max_messages(), wait)
        .await?)
}

/// Settles all deliveries of a batch in the same way.
pub(crate) async fn settle_all(
    broker: &Broker,
    queue: &QueueId,
    batch: &[Delivery],
    settlement: Settlement,
) -> Result<(), BrokerError> {
    let settlements: Vec<_> = batch
        .iter()
        .map(|d| (d.receipt, settlement.clone()))
        .collect();
    broker.settle(queue, &settlements).await
}

/// Processes one batch of the messages that have arrived. Returns its number of items.
pub(crate) async fn consume_once<C: QueueConsumer>(consumer: &C) -> Result<usize, EngineError> {
    let batch = fetch(consumer, Duration::ZERO).await?;
    if batch.is_empty() {
        return Ok(0);
    }
    consumer.process(&batch, &Stop::new()).await
}
