//! Bare clients of the brokers: the two queues of the ceiling, and the deletion of what a benchmark has created.

mod nats;
mod rabbitmq;

use anyhow::Result;
use async_trait::async_trait;
use bytes::Bytes;

use crate::args::Servers;

/// The most messages consumed at once.
pub(crate) const BATCH: usize = 1_000;

/// A broker with two durable queues.
#[async_trait]
pub(crate) trait Pipe: Send + Sync + 'static {
    /// Publishes, and returns when the broker has confirmed all.
    async fn publish(&mut self, to: Queue, payloads: Vec<Bytes>) -> Result<()>;
    /// Consumes up to a batch, and waits for the first message.
    async fn consume(&mut self, from: Queue) -> Result<Vec<Bytes>>;
    /// Acknowledges the last batch.
    async fn ack(&mut self) -> Result<()>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Queue {
    Triggers,
    Outcomes,
}

impl Queue {
    const fn name(self) -> &'static str {
        match self {
            Self::Triggers => "triggers",
            Self::Outcomes => "outcomes",
        }
    }
}

/// Connects, and declares both queues with names that begin with `prefix`.
pub(crate) async fn open(servers: &Servers, prefix: &str) -> Result<Box<dyn Pipe>> {
    Ok(if servers.is_rabbitmq() {
        Box::new(rabbitmq::Rabbit::open(&servers.broker, prefix).await?)
    } else {
        Box::new(nats::Nats::open(&servers.broker, prefix).await?)
    })
}

/// Deletes the streams, queues and exchanges whose names begin with `prefix`. `executors` of the group `default` had a
/// queue.
pub(crate) async fn delete_all(
    servers: &Servers,
    prefix: &str,
    executors: &[String],
) -> Result<()> {
    if servers.is_rabbitmq() {
        return rabbitmq::delete_all(&servers.broker, prefix, executors).await;
    }
    nats::delete_all(&servers.broker, prefix).await
}
