//! Exchanges and queues: made, looked at and deleted.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cueline_broker::{BrokerError, ErrorKind, QueueId};
use lapin::options::{
    ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, ExchangeKind};
use tokio::time::{Instant, sleep};

use crate::error::{ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED, code, failed, late};
use crate::link::Up;
use crate::names::Names;
use crate::options::RabbitOptions;

/// Dead letters have nowhere to go, however often they are delivered: the product would drop them. And reports and requests are given back
/// for as long as the database is away, which says nothing about them: what cannot be taken in at all is buried by whoever reads it.
const NEVER: i64 = i32::MAX as i64;

/// How long a consumer may be counted after it was ended.
const CONSUMER_GOES: Duration = Duration::from_secs(1);

/// A call's end, with AMQP's reply code apart, and the channel that the server has closed then.
enum Answer<T> {
    Done(T),
    Refused(u16, lapin::Error),
}

async fn ask<T>(
    up: &Up,
    what: &str,
    call: impl Future<Output = lapin::Result<T>>,
) -> Result<Answer<T>, BrokerError> {
    match tokio::time::timeout(up.request_timeout(), call).await {
        Ok(Ok(done)) => Ok(Answer::Done(done)),
        Ok(Err(e)) => match code(&e) {
            Some(code) => Ok(Answer::Refused(code, e)),
            None => Err(failed(what, e)),
        },
        Err(_) => Err(late(what, up.request_timeout())),
    }
}

/// Makes the exchanges, once for each connection. A user who may not do so relies on those that somebody else has made.
pub(crate) async fn exchanges(up: &Up, names: &Names) -> Result<(), BrokerError> {
    if up.exchanges.load(Ordering::Acquire) {
        return Ok(());
    }
    let mut channel = up.channel().await?;
    for exchange in ["triggers", "results", "requests", "dead", "live"] {
        let declared = channel.exchange_declare(
            names.own(exchange),
            ExchangeKind::Topic,
            ExchangeDeclareOptions {
                durable: true,
                ..ExchangeDeclareOptions::default()
            },
            FieldTable::default(),
        );
        match ask(up, "declare an exchange", declared).await? {
            Answer::Done(()) => {}
            Answer::Refused(ACCESS_REFUSED, _) => channel = up.channel().await?,
            Answer::Refused(_, e) => return Err(failed("declare an exchange", e)),
        }
    }
    up.exchanges.store(true, Ordering::Release);
    Ok(())
}

/// Makes sure that a queue and its binding exist. A user who may not make one is content with one that is there.
pub(crate) async fn declare(
    up: &Up,
    names: &Names,
    options: &RabbitOptions,
    queue: &QueueId,
) -> Result<(), BrokerError> {
    exchanges(up, names).await?;
    let name = names.queue(queue)?;
    let what = "declare a queue";
    let mut channel = up.channel().await?;
    let durable = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    let declared = channel.queue_declare(name.clone(), durable, arguments(names, options, queue));
    match ask(up, what, declared).await? {
        Answer::Done(_) => {}
        Answer::Refused(ACCESS_REFUSED, _) => return found(up, queue, name).await,
        Answer::Refused(PRECONDITION_FAILED, e) => {
            // Other limits than these were set when it was made; they are changed with a policy, not here.
            tracing::warn!(%queue, error = %e, "the queue is there with other limits; it keeps them");
            channel = up.channel().await?;
        }
        Answer::Refused(_, e) => return Err(failed(what, e)),
    }
    bind(up, &channel, names, queue, name).await
}

async fn bind(
    up: &Up,
    channel: &Channel,
    names: &Names,
    queue: &QueueId,
    name: ShortString,
) -> Result<(), BrokerError> {
    let bound = channel.queue_bind(
        name,
        names.exchange(queue),
        Names::binding(queue)?,
        QueueBindOptions::default(),
        FieldTable::default(),
    );
    up.within("bind a queue", bound).await
}

/// Whoever may not declare needs somebody else to have done so; until then it is worth trying again.
async fn found(up: &Up, queue: &QueueId, name: ShortString) -> Result<(), BrokerError> {
    match ready(up, &up.channel().await?, name).await? {
        Some(_) => Ok(()),
        None => Err(BrokerError::new(
            ErrorKind::Transient,
            format!(
                "failed to declare queue {queue}: it is not there, and this user may not make it; see docs/rabbitmq.md"
            ),
        )),
    }
}

/// Messages that wait in a queue on the server, consumed ones aside; `None` without such a queue, and then the channel is closed.
pub(crate) async fn ready(
    up: &Up,
    channel: &Channel,
    name: ShortString,
) -> Result<Option<(u64, u64)>, BrokerError> {
    let passive = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let what = "look at a queue";
    let looked = channel.queue_declare(name, passive, FieldTable::default());
    match ask(up, what, looked).await? {
        Answer::Done(queue) => Ok(Some((
            u64::from(queue.message_count()),
            u64::from(queue.consumer_count()),
        ))),
        Answer::Refused(NOT_FOUND, _) => Ok(None),
        Answer::Refused(_, e) => Err(failed(what, e)),
    }
}

/// Deletes a queue; nothing there is fine.
pub(crate) async fn delete(up: &Up, name: ShortString) -> Result<(), BrokerError> {
    let channel = up.channel().await?;
    let what = "delete a queue";
    let deleted = channel.queue_delete(name, QueueDeleteOptions::default());
    match ask(up, what, deleted).await? {
        Answer::Done(_) | Answer::Refused(NOT_FOUND, _) => Ok(()),
        Answer::Refused(_, e) => Err(failed(what, e)),
    }
}

/// Deletes a queue in which nothing waits and that nobody consumes. Quorum queues do not know the product's own `if-empty`; so it is
/// taken off its exchange first, and put back unless it is empty then. What is published in between is refused as unroutable.
pub(crate) async fn delete_if_empty(
    up: &Up,
    names: &Names,
    queue: &QueueId,
) -> Result<bool, BrokerError> {
    let name = names.queue(queue)?;
    let channel = up.channel().await?;
    match settled(up, &channel, name.clone()).await? {
        None => return Ok(true),
        Some((0, 0)) => {}
        Some(_) => return Ok(false),
    }
    let unbound = channel.queue_unbind(
        name.clone(),
        names.exchange(queue),
        Names::binding(queue)?,
        FieldTable::default(),
    );
    up.within("unbind a queue", unbound).await?;
    match ready(up, &channel, name.clone()).await? {
        None => Ok(true),
        Some((0, 0)) => delete(up, name).await.map(|()| true),
        Some(_) => bind(up, &channel, names, queue, name).await.map(|()| false),
    }
}

/// The counts of a queue, some time after its last consumer here was ended: the server counts one for a while after it has told us that
/// it is gone, and as long as messages that it holds have not come back.
async fn settled(
    up: &Up,
    channel: &Channel,
    name: ShortString,
) -> Result<Option<(u64, u64)>, BrokerError> {
    let give_up = Instant::now() + CONSUMER_GOES;
    loop {
        match ready(up, channel, name.clone()).await? {
            Some((0, consumers)) if consumers > 0 && Instant::now() < give_up => {
                sleep(Duration::from_millis(20)).await;
            }
            counts => return Ok(counts),
        }
    }
}

fn arguments(names: &Names, options: &RabbitOptions, queue: &QueueId) -> FieldTable {
    let text = |text: &str| AMQPValue::LongString(text.into());
    let number = |number: i64| AMQPValue::LongLongInt(number);
    let mut arguments = FieldTable::default();
    let mut set = |name: &str, value| {
        arguments.insert(name.into(), value);
    };
    set("x-queue-type", text("quorum"));
    if let Some(replicas) = options.replicas {
        set("x-quorum-initial-group-size", number(i64::from(replicas)));
    }
    let deliveries = match queue {
        QueueId::Executor { .. } => i64::from(options.delivery_limit),
        QueueId::Results | QueueId::Requests | QueueId::Dead => NEVER,
    };
    set("x-delivery-limit", number(deliveries));
    set(
        "x-max-length",
        number(i64::try_from(options.queue_limit).unwrap_or(i64::MAX)),
    );
    set("x-overflow", text("reject-publish"));
    if matches!(queue, QueueId::Dead) {
        return arguments;
    }
    set(
        "x-dead-letter-exchange",
        AMQPValue::LongString(names.own("dead").as_str().into()),
    );
    set("x-dead-letter-strategy", text("at-least-once"));
    arguments
}
