//! The bare pipeline's queues on RabbitMQ: quorum queues, publisher confirms, manual acks.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, ExchangeDeleteOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer};

use super::{BATCH, Pipe, Queue};

pub(crate) struct Rabbit {
    channel: Channel,
    _connection: Connection,
    prefix: String,
    consumer: Option<Consumer>,
    unacked: Vec<Delivery>,
}

impl Rabbit {
    pub(crate) async fn open(url: &str, prefix: &str) -> Result<Self> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        let prefetch = u16::try_from(BATCH * 2)?;
        channel
            .basic_qos(prefetch, BasicQosOptions::default())
            .await?;
        for queue in [Queue::Triggers, Queue::Outcomes] {
            let mut arguments = FieldTable::default();
            arguments.insert(
                "x-queue-type".into(),
                AMQPValue::LongString("quorum".into()),
            );
            let options = QueueDeclareOptions {
                durable: true,
                ..QueueDeclareOptions::default()
            };
            let name = format!("{prefix}-{}", queue.name());
            channel
                .queue_declare(name.as_str().into(), options, arguments)
                .await?;
        }
        Ok(Self {
            channel,
            _connection: connection,
            prefix: prefix.to_owned(),
            consumer: None,
            unacked: Vec::new(),
        })
    }
}

#[async_trait]
impl Pipe for Rabbit {
    async fn publish(&mut self, to: Queue, payloads: Vec<Bytes>) -> Result<()> {
        let name = format!("{}-{}", self.prefix, to.name());
        let mut confirmations = Vec::with_capacity(payloads.len());
        for payload in payloads {
            let properties = BasicProperties::default().with_delivery_mode(2);
            let options = BasicPublishOptions::default();
            let sent = self.channel.basic_publish(
                "".into(),
                name.as_str().into(),
                options,
                &payload,
                properties,
            );
            confirmations.push(sent.await?);
        }
        for confirmation in confirmations {
            if !matches!(confirmation.await?, Confirmation::Ack(_)) {
                bail!("a message was refused");
            }
        }
        Ok(())
    }

    async fn consume(&mut self, from: Queue) -> Result<Vec<Bytes>> {
        if self.consumer.is_none() {
            let name = format!("{}-{}", self.prefix, from.name());
            let consumer = self.channel.basic_consume(
                name.as_str().into(),
                "".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            );
            self.consumer = Some(consumer.await?);
        }
        let ended = "a consumer has ended";
        let consumer = self.consumer.as_mut().context(ended)?;
        let first = consumer.next().await.context(ended)??;
        self.unacked.push(first);
        while self.unacked.len() < BATCH
            && let Some(next) = consumer.next().now_or_never()
        {
            self.unacked.push(next.context(ended)??);
        }
        let payloads = self.unacked.iter().map(|d| Bytes::copy_from_slice(&d.data));
        Ok(payloads.collect())
    }

    async fn ack(&mut self) -> Result<()> {
        if let Some(last) = self.unacked.last() {
            last.ack(BasicAckOptions { multiple: true }).await?;
        }
        self.unacked.clear();
        Ok(())
    }
}

/// Deletes the queues and exchanges of a benchmark with these executors of the group `default`.
pub(crate) async fn delete_all(url: &str, prefix: &str, executors: &[String]) -> Result<()> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let mut queues = vec![format!("{prefix}-triggers"), format!("{prefix}-outcomes")];
    queues.extend(["results", "requests", "dead"].map(|q| format!("{prefix}.{q}")));
    let of_executor = |name: &String| format!("{prefix}.x.default.{name}");
    queues.extend(executors.iter().map(of_executor));
    for queue in queues {
        // Deleting a queue that does not exist succeeds.
        let deleted = channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default());
        tokio::time::timeout(Duration::from_secs(10), deleted).await??;
    }
    for exchange in ["triggers", "results", "requests", "dead", "live"] {
        let name = format!("{prefix}.{exchange}");
        let options = ExchangeDeleteOptions::default();
        channel
            .exchange_delete(name.as_str().into(), options)
            .await?;
    }
    Ok(())
}
