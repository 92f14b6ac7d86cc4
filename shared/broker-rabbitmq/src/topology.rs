//! Declares and deletes exchanges and queues.

use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{BrokerError, QueueId, StartLog};
use lapin::ExchangeKind;
use lapin::options::{
    ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use tokio::time::{Instant, sleep};

use crate::connection::{Connection, OpenChannel};
use crate::counts::{Counts, count};
use crate::error::{ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED, transient};
use crate::names::Names;
use crate::options::RabbitOptions;

/// In effect no delivery limit. At its limit the server would drop a dead letter. Results and requests are requeued for
/// as long as the database is down, which is not their fault. Their reader dead-letters what it cannot process.
const UNLIMITED_DELIVERIES: i64 = i32::MAX as i64;

/// The most bytes of a start log. RabbitMQ does not limit the records of a stream. When a file is full, the server
/// drops the oldest files that do not fit. It then has at least the newest 28 MB, which are 10,000 records of 2.8 kB.
const LOG_BYTES: i64 = 32_000_000;
/// The size of the files that a start log consists of.
const LOG_SEGMENT_BYTES: i64 = 4_000_000;

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
    for exchange in ["triggers", "results", "requests", "dead", "live", "starts"] {
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
    let arguments = queue_arguments(names, options, queue);
    let binding = Binding::of_queue(names, queue)?;
    declare(connection, names, &queue.to_string(), &binding, arguments).await
}

/// Declares the stream of a start log and its binding. If the user lacks that permission, the log must exist.
pub(crate) async fn declare_log(
    connection: &Arc<Connection>,
    names: &Names,
    log: &StartLog,
) -> Result<(), BrokerError> {
    let binding = Binding {
        queue: names.log(log)?,
        exchange: names.log_exchange(),
        key: Names::log_key(log)?,
    };
    declare(
        connection,
        names,
        &log.to_string(),
        &binding,
        log_arguments(),
    )
    .await
}

/// Declares the queue of proofs and its binding. If the user lacks that permission, the queue must exist.
pub(crate) async fn declare_proofs(
    connection: &Arc<Connection>,
    names: &Names,
    options: &RabbitOptions,
) -> Result<(), BrokerError> {
    let binding = Binding {
        queue: names.proofs(),
        exchange: names.announcement_exchange(),
        key: Names::proof_key(),
    };
    declare(
        connection,
        names,
        "proofs",
        &binding,
        proof_arguments(options),
    )
    .await
}

async fn declare(
    connection: &Arc<Connection>,
    names: &Names,
    shown: &str,
    binding: &Binding,
    arguments: FieldTable,
) -> Result<(), BrokerError> {
    declare_exchanges(connection, names).await?;
    let mut channel = connection.open_channel().await?;
    let durable = QueueDeclareOptions::durable();
    let declare = channel
        .amqp
        .queue_declare(binding.queue.clone(), durable, arguments);
    match channel.answer("declare a queue", declare).await {
        Err(e) if e.code == Some(ACCESS_REFUSED) => {
            let channel = connection.open_channel().await?;
            return match count(&channel, binding.queue.clone()).await? {
                Some(_) => Ok(()),
                // Transient: another user may declare it at any time.
                None => Err(transient(format!(
                    "failed to declare queue {shown}: it does not exist, and this user may not declare it; see docs/rabbitmq.md"
                ))),
            };
        }
        Err(e) if e.code == Some(PRECONDITION_FAILED) => {
            let error = e.error;
            tracing::warn!(queue = shown, %error, "queue exists with other limits and keeps them; set a policy to change them");
            channel = connection.open_channel().await?;
        }
        declared => drop(declared?),
    }
    binding.bind(&channel).await
}

/// Routes messages of an exchange to a queue.
struct Binding {
    queue: ShortString,
    exchange: ShortString,
    key: ShortString,
}

impl Binding {
    fn of_queue(names: &Names, queue: &QueueId) -> Result<Self, BrokerError> {
        Ok(Self {
            queue: names.queue(queue)?,
            exchange: names.exchange_of(queue),
            key: Names::binding(queue)?,
        })
    }

    async fn bind(&self, channel: &OpenChannel) -> Result<(), BrokerError> {
        let bind = channel.amqp.queue_bind(
            self.queue.clone(),
            self.exchange.clone(),
            self.key.clone(),
            QueueBindOptions::default(),
            FieldTable::default(),
        );
        Ok(channel.answer("bind a queue", bind).await?)
    }

    async fn unbind(&self, channel: &OpenChannel) -> Result<(), BrokerError> {
        let unbind = channel.amqp.queue_unbind(
            self.queue.clone(),
            self.exchange.clone(),
            self.key.clone(),
            FieldTable::default(),
        );
        Ok(channel.answer("unbind a queue", unbind).await?)
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
    let binding = Binding::of_queue(names, queue)?;
    binding.unbind(&channel).await?;
    match count(&channel, name.clone()).await? {
        None => Ok(true),
        Some(Counts::NONE) => delete(connection, name).await.map(|()| true),
        Some(_) => binding.bind(&channel).await.map(|()| false),
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
    arguments.extend(group_size(options));
    if *queue != QueueId::Dead {
        let dead = names.exchange_of(&QueueId::Dead);
        arguments.extend([
            ("x-dead-letter-exchange", text(dead.as_str())),
            ("x-dead-letter-strategy", text("at-least-once")),
        ]);
    }
    table(arguments)
}

/// A new proof replaces the last one.
fn proof_arguments(options: &RabbitOptions) -> FieldTable {
    let text = |text: &str| AMQPValue::LongString(text.into());
    let mut arguments = vec![
        ("x-queue-type", text("quorum")),
        ("x-max-length", AMQPValue::LongLongInt(1)),
        ("x-overflow", text("drop-head")),
    ];
    arguments.extend(group_size(options));
    table(arguments)
}

/// The number of servers that keep a quorum queue, if it is configured.
fn group_size(options: &RabbitOptions) -> Option<(&'static str, AMQPValue)> {
    let replicas = options.replicas?;
    let size = AMQPValue::LongLongInt(replicas.into());
    Some(("x-quorum-initial-group-size", size))
}

/// Each server of a cluster gets a copy of the stream, because only a server with a copy serves readers.
fn log_arguments() -> FieldTable {
    table(vec![
        ("x-queue-type", AMQPValue::LongString("stream".into())),
        ("x-max-length-bytes", AMQPValue::LongLongInt(LOG_BYTES)),
        (
            "x-stream-max-segment-size-bytes",
            AMQPValue::LongLongInt(LOG_SEGMENT_BYTES),
        ),
    ])
}

fn table(arguments: Vec<(&'static str, AMQPValue)>) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert(name.into(), value);
    }
    table
}
