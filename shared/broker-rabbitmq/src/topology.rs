//! Declares, counts and deletes exchanges and queues.

use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{BrokerError, QueueId};
use lapin::ExchangeKind;
use lapin::options::{
    ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use tokio::time::{Instant, sleep};

use crate::connection::{Connection, OpenChannel};
use crate::error::{ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED, transient};
use crate::names::Names;
use crate::options::RabbitOptions;

/// In effect no delivery limit. At its limit the server would drop a dead letter. Results and requests are requeued for
/// as long as the database is down, which is not their fault. Their reader dead-letters what it cannot process.
const UNLIMITED_DELIVERIES: i64 = i32::MAX as i64;

/// The server may count a consumer for this long after its end.
const CONSUMER_COUNT_LAG: Duration = Duration::from_secs(1);

/// Declares the exchanges, once per connection. A user without that permission relies on another user to declare them.
pub(crate) async fn declare_exchanges(
    connection: &Arc<Connection>,
    names: &Names,
) -> Result<(), BrokerError> {
    if connection.are_exchanges_declared() {
        return Ok(());
    }
    let mut channel = connection.open_channel().await?;
    for exchange in ["triggers", "results", "requests", "dead", "live"] {
        let declare = channel.amqp.exchange_declare(
            names.exchange(exchange),
            ExchangeKind::Topic,
            ExchangeDeclareOptions {
                durable: true,
                ..ExchangeDeclareOptions::default()
            },
            FieldTable::default(),
        );
        match channel.answer("declare an exchange", declare).await {
            Err(e) if e.code == Some(ACCESS_REFUSED) => channel = connection.open_channel().await?,
            declared => declared?,
        }
    }
    connection.set_exchanges_declared(true);
    Ok(())
}

/// Declares a queue and its binding. If the user lacks that permission, the queue must exist.
pub(crate) async fn declare_queue(
    connection: &Arc<Connection>,
    names: &Names,
    options: &RabbitOptions,
    queue: &QueueId,
) -> Result<(), BrokerError> {
    declare_exchanges(connection, names).await?;
    let mut channel = connection.open_channel().await?;
    let durable = QueueDeclareOptions::durable();
    let arguments = queue_arguments(names, options, queue);
    let declare = channel
        .amqp
        .queue_declare(names.queue(queue)?, durable, arguments);
    match channel.answer("declare a queue", declare).await {
        Err(e) if e.code == Some(ACCESS_REFUSED) => {
            let channel = connection.open_channel().await?;
            return match count(&channel, names.queue(queue)?).await? {
                Some(_) => Ok(()),
                // Transient: another user may declare it at any time.
                None => Err(transient(format!(
                    "failed to declare queue {queue}: it does not exist, and this user may not declare it; see docs/rabbitmq.md"
                ))),
            };
        }
        Err(e) if e.code == Some(PRECONDITION_FAILED) => {
            let error = e.error;
            tracing::warn!(%queue, %error, "queue exists with other limits and keeps them; set a policy to change them");
            channel = connection.open_channel().await?;
        }
        declared => drop(declared?),
    }
    bind(&channel, names, queue).await
}

async fn bind(channel: &OpenChannel, names: &Names, queue: &QueueId) -> Result<(), BrokerError> {
    let bind = channel.amqp.queue_bind(
        names.queue(queue)?,
        names.exchange_of(queue),
        Names::binding(queue)?,
        QueueBindOptions::default(),
        FieldTable::default(),
    );
    Ok(channel.answer("bind a queue", bind).await?)
}

/// The server's counts of one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Messages that no consumer holds.
    pub(crate) ready: u64,
    pub(crate) consumers: u64,
}

impl Counts {
    /// The server also returns these counts when the queue's leader does not answer within a quarter of a second.
    pub(crate) const NONE: Self = Self {
        ready: 0,
        consumers: 0,
    };
}

/// Counts a queue. `None` if it does not exist; the server has then closed the channel.
pub(crate) async fn count(
    channel: &OpenChannel,
    name: ShortString,
) -> Result<Option<Counts>, BrokerError> {
    let passive = QueueDeclareOptions::default().passive();
    let declare = channel
        .amqp
        .queue_declare(name, passive, FieldTable::default());
    match channel.answer("count a queue", declare).await {
        Ok(queue) => Ok(Some(Counts {
            ready: queue.message_count().into(),
            consumers: queue.consumer_count().into(),
        })),
        Err(e) if e.code == Some(NOT_FOUND) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Deletes a queue. A queue that does not exist counts as deleted.
pub(crate) async fn delete(
    connection: &Arc<Connection>,
    name: ShortString,
) -> Result<(), BrokerError> {
    let channel = connection.open_channel().await?;
    let delete = channel
        .amqp
        .queue_delete(name, QueueDeleteOptions::default());
    match channel.answer("delete a queue", delete).await {
        Err(e) if e.code == Some(NOT_FOUND) => Ok(()),
        deleted => Ok(deleted.map(drop)?),
    }
}

/// Deletes a queue without messages and consumers. Returns whether it did.
///
/// Quorum queues do not support AMQP's `if-empty`. The driver therefore unbinds the queue, counts again, and restores
/// the binding unless it is empty. Messages published in between are refused as unroutable.
pub(crate) async fn delete_if_empty(
    connection: &Arc<Connection>,
    names: &Names,
    queue: &QueueId,
) -> Result<bool, BrokerError> {
    let name = names.queue(queue)?;
    let channel = connection.open_channel().await?;
    match count_without_ended_consumers(&channel, name.clone()).await? {
        None => return Ok(true),
        Some(Counts::NONE) => {}
        Some(_) => return Ok(false),
    }
    let unbind = channel.amqp.queue_unbind(
        name.clone(),
        names.exchange_of(queue),
        Names::binding(queue)?,
        FieldTable::default(),
    );
    channel.answer("unbind a queue", unbind).await?;
    match count(&channel, name.clone()).await? {
        None => Ok(true),
        Some(Counts::NONE) => delete(connection, name).await.map(|()| true),
        Some(_) => bind(&channel, names, queue).await.map(|()| false),
    }
}

/// Counts a queue after the driver ended its own consumer. The server still counts an ended consumer until its messages
/// are back in the queue.
async fn count_without_ended_consumers(
    channel: &OpenChannel,
    name: ShortString,
) -> Result<Option<Counts>, BrokerError> {
    let give_up = Instant::now() + CONSUMER_COUNT_LAG;
    loop {
        match count(channel, name.clone()).await? {
            Some(Counts {
                ready: 0,
                consumers,
            }) if consumers > 0 && Instant::now() < give_up => {
                sleep(Duration::from_millis(20)).await;
            }
            counts => return Ok(counts),
        }
    }
}

fn queue_arguments(names: &Names, options: &RabbitOptions, queue: &QueueId) -> FieldTable {
    let text = |text: &str| AMQPValue::LongString(text.into());
    let deliveries = match queue {
        QueueId::Executor { .. } => i64::from(options.delivery_limit),
        QueueId::Results | QueueId::Requests | QueueId::Dead => UNLIMITED_DELIVERIES,
    };
    let limit = i64::try_from(options.queue_limit).unwrap_or(i64::MAX);
    let mut arguments = vec![
        ("x-queue-type", text("quorum")),
        ("x-delivery-limit", AMQPValue::LongLongInt(deliveries)),
        ("x-max-length", AMQPValue::LongLongInt(limit)),
        ("x-overflow", text("reject-publish")),
    ];
    if let Some(replicas) = options.replicas {
        arguments.push((
            "x-quorum-initial-group-size",
            AMQPValue::LongLongInt(replicas.into()),
        ));
    }
    if *queue != QueueId::Dead {
        let dead = names.exchange_of(&QueueId::Dead);
        arguments.extend([
            ("x-dead-letter-exchange", text(dead.as_str())),
            ("x-dead-letter-strategy", text("at-least-once")),
        ]);
    }
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert(name.into(), value);
    }
    table
}
