//! The bare pipeline's queues on NATS: a work-queue stream in files and a durable pull consumer for each.

use std::time::Duration;

use anyhow::{Result, anyhow};
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::{self, consumer, context, stream};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::TryStreamExt as _;

use super::{BATCH, Pipe, Queue};

const FETCH_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) struct Nats {
    context: jetstream::Context,
    prefix: String,
    triggers: PullConsumer,
    outcomes: PullConsumer,
    unacked: Vec<jetstream::Message>,
}

async fn connect(url: &str) -> Result<jetstream::Context> {
    let client = async_nats::connect(url).await?;
    let context = context::ContextBuilder::new()
        .max_ack_inflight(BATCH * 4)
        .build(client);
    Ok(context)
}

impl Nats {
    pub(crate) async fn open(url: &str, prefix: &str) -> Result<Self> {
        let context = connect(url).await?;
        let make = async |queue: Queue| -> Result<PullConsumer> {
            let name = format!("{prefix}-{}", queue.name());
            let stream = stream::Config {
                subjects: vec![name.clone()],
                name,
                retention: stream::RetentionPolicy::WorkQueue,
                storage: stream::StorageType::File,
                ..stream::Config::default()
            };
            let stream = context.get_or_create_stream(stream).await?;
            let consumer = consumer::pull::Config {
                durable_name: Some("all".to_owned()),
                ack_policy: consumer::AckPolicy::Explicit,
                max_ack_pending: 100_000,
                ..consumer::pull::Config::default()
            };
            Ok(stream.get_or_create_consumer("all", consumer).await?)
        };
        Ok(Self {
            triggers: make(Queue::Triggers).await?,
            outcomes: make(Queue::Outcomes).await?,
            prefix: prefix.to_owned(),
            context,
            unacked: Vec::new(),
        })
    }
}

#[async_trait]
impl Pipe for Nats {
    async fn publish(&mut self, to: Queue, payloads: Vec<Bytes>) -> Result<()> {
        let subject = format!("{}-{}", self.prefix, to.name());
        let mut confirmations = Vec::with_capacity(payloads.len());
        for payload in payloads {
            confirmations.push(self.context.publish(subject.clone(), payload).await?);
        }
        for confirmation in confirmations {
            confirmation.await?;
        }
        Ok(())
    }

    async fn consume(&mut self, from: Queue) -> Result<Vec<Bytes>> {
        let consumer = match from {
            Queue::Triggers => &self.triggers,
            Queue::Outcomes => &self.outcomes,
        };
        loop {
            // Takes the waiting messages. If there are none, it waits for the next one.
            let now = consumer.fetch().max_messages(BATCH).messages().await?;
            self.unacked = now.try_collect().await.map_err(|e| anyhow!(e))?;
            if self.unacked.is_empty() {
                let next = consumer.batch().max_messages(1).expires(FETCH_TIMEOUT);
                self.unacked = next
                    .messages()
                    .await?
                    .try_collect()
                    .await
                    .map_err(|e| anyhow!(e))?;
            }
            if !self.unacked.is_empty() {
                return Ok(self.unacked.iter().map(|m| m.payload.clone()).collect());
            }
        }
    }

    async fn ack(&mut self) -> Result<()> {
        for message in self.unacked.drain(..) {
            message.ack().await.map_err(|e| anyhow!(e))?;
        }
        Ok(())
    }
}

/// Deletes all streams of this prefix.
pub(crate) async fn delete_all(url: &str, prefix: &str) -> Result<()> {
    let context = connect(url).await?;
    let names: Vec<String> = context.stream_names().try_collect().await?;
    // The driver and the ceiling name their streams differently.
    let driver = format!("{}_", prefix.to_ascii_uppercase());
    let ceiling = format!("{prefix}-");
    let ours = |name: &&String| name.starts_with(&driver) || name.starts_with(&ceiling);
    for name in names.iter().filter(ours) {
        context.delete_stream(name).await?;
    }
    Ok(())
}
