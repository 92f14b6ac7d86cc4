//! Start logs: a stream for each executor, which readers consume without removing anything.
//!
//! A stream has no end that a consumer could see. A reader therefore appends a marker and reads up to it. Confirmed
//! records lie before the marker. Readers skip the markers of others.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{BrokerError, StartLog};
use futures_util::StreamExt as _;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use tokio::time::{Instant, timeout_at};

use crate::connection::OpenChannel;
use crate::context::DriverContext;
use crate::counts::count;
use crate::error::{NOT_FOUND, failed, timed_out, transient};
use crate::publish::{Outcome, Publisher, SingleMessage};
use crate::received::text;

/// The header of a marker, with the id of its reader.
const MARKER_HEADER: &str = "cueline-marker";
/// Records that the server sends ahead of their acks. Records of the largest size then take 16 MiB.
const PREFETCH: u16 = 1_000;
/// Records that one ack covers.
const ACK_INTERVAL: usize = 250;
/// Records and markers that are looked at to see whether there is a record. Behind more markers none is found.
const FIRST_RECORDS: u16 = 100;
/// The longest wait for the first record. Without one in this time, the log counts as empty.
const FIRST_WITHIN: Duration = Duration::from_millis(250);
/// The longest time of one read. Then it fails, and the caller reads again.
const READ_WITHIN: Duration = Duration::from_mins(1);

const WHAT: &str = "read a start log";

/// See [`cueline_broker::Driver::append`].
pub(crate) async fn append(
    context: &DriverContext,
    publisher: &Publisher,
    log: &StartLog,
    record: Bytes,
) -> Result<(), BrokerError> {
    log.check_size(&record)?;
    let message = SingleMessage::new(record, FieldTable::default());
    match publisher.append(log, message).await? {
        Outcome::Confirmed => Ok(()),
        Outcome::Unroutable if exists(context, log).await? => Err(not_up(log)),
        Outcome::Unroutable => Err(log.missing()),
        Outcome::Rejected | Outcome::Unconfirmed => Err(transient(format!(
            "failed to append to {log}: RabbitMQ did not confirm it"
        ))),
    }
}

/// See [`cueline_broker::Driver::read_log`].
pub(crate) async fn read(
    context: &DriverContext,
    publisher: &Publisher,
    log: &StartLog,
) -> Result<Vec<Bytes>, BrokerError> {
    let marker = reader_id();
    let mut headers = FieldTable::default();
    headers.insert(
        MARKER_HEADER.into(),
        AMQPValue::LongString(marker.as_str().into()),
    );
    match publisher
        .append(log, SingleMessage::new(Bytes::new(), headers))
        .await?
    {
        Outcome::Confirmed => {}
        Outcome::Unroutable if exists(context, log).await? => return Err(not_up(log)),
        Outcome::Unroutable => return Ok(Vec::new()),
        Outcome::Rejected | Outcome::Unconfirmed => {
            return Err(transient(format!(
                "failed to read {log}: RabbitMQ did not confirm the marker of the end"
            )));
        }
    }
    let Some((channel, mut deliveries)) = subscribe(context, log, PREFETCH).await? else {
        return Ok(Vec::new());
    };
    let within = context.options.request_timeout;
    let records = read_to(&marker, log, &mut deliveries, &channel, within).await;
    // In the background, because the caller needs no answer to it.
    context.tasks.spawn(end(channel, deliveries));
    records
}

/// See [`cueline_broker::Driver::is_log_empty`].
///
/// It appends no marker, because that would take as much room as what the caller wants to save.
pub(crate) async fn is_empty(context: &DriverContext, log: &StartLog) -> Result<bool, BrokerError> {
    let Some((channel, mut deliveries)) = subscribe(context, log, FIRST_RECORDS).await? else {
        return Ok(true);
    };
    let deadline = Instant::now() + FIRST_WITHIN;
    let is_empty = loop {
        match timeout_at(deadline, deliveries.next()).await {
            Ok(Some(Ok(delivery))) if marker_of(&delivery).is_some() => {}
            Ok(Some(Ok(_))) => break Ok(false),
            Ok(Some(Err(e))) => break Err(failed(WHAT, e)),
            Ok(None) | Err(_) => break Ok(true),
        }
    };
    context.tasks.spawn(end(channel, deliveries));
    is_empty
}

/// Reads from the oldest record on. `None` if there is no such log.
async fn subscribe(
    context: &DriverContext,
    log: &StartLog,
    prefetch: u16,
) -> Result<Option<(OpenChannel, lapin::Consumer)>, BrokerError> {
    let channel = context.connection.current().await?.open_channel().await?;
    let qos = channel.amqp.basic_qos(prefetch, BasicQosOptions::default());
    channel.answer(WHAT, qos).await?;
    let mut arguments = FieldTable::default();
    arguments.insert(
        "x-stream-offset".into(),
        AMQPValue::LongString("first".into()),
    );
    let consume = channel.amqp.basic_consume(
        context.names.log(log)?,
        "".into(),
        BasicConsumeOptions::default(),
        arguments,
    );
    let deliveries = match channel.answer(WHAT, consume).await {
        Err(e) if e.code == Some(NOT_FOUND) => return Ok(None),
        deliveries => deliveries?,
    };
    Ok(Some((channel, deliveries)))
}

/// Whether the server knows the log. It also refuses messages for one that is not up yet after a restart.
async fn exists(context: &DriverContext, log: &StartLog) -> Result<bool, BrokerError> {
    let channel = context.connection.current().await?.open_channel().await?;
    let counts = count(&channel, context.names.log(log)?).await?;
    Ok(counts.is_some())
}

fn not_up(log: &StartLog) -> BrokerError {
    transient(format!("failed to use {log}: it is not up yet"))
}

/// Reads the records up to the marker. Fails if nothing arrives for `within`.
async fn read_to(
    marker: &str,
    log: &StartLog,
    deliveries: &mut lapin::Consumer,
    channel: &OpenChannel,
    within: Duration,
) -> Result<Vec<Bytes>, BrokerError> {
    let give_up = Instant::now() + READ_WITHIN;
    let (mut records, mut unacked) = (Vec::new(), 0);
    loop {
        let deadline = give_up.min(Instant::now() + within);
        let delivery = match timeout_at(deadline, deliveries.next()).await {
            Ok(Some(Ok(delivery))) => delivery,
            Ok(Some(Err(e))) => return Err(failed(WHAT, e)),
            Ok(None) => {
                return Err(transient(format!(
                    "failed to read {log}: it was deleted, or the connection ended"
                )));
            }
            Err(_) => return Err(timed_out(WHAT, within)),
        };
        let tag = delivery.delivery_tag;
        match marker_of(&delivery) {
            Some(found) if found == marker => return Ok(records),
            Some(_) => {}
            None => records.push(Bytes::from(delivery.data)),
        }
        unacked += 1;
        if unacked == ACK_INTERVAL {
            unacked = 0;
            // An ack lets the server send more. It removes nothing from a stream.
            let all = BasicAckOptions { multiple: true };
            channel
                .answer(WHAT, channel.amqp.basic_ack(tag, all))
                .await?;
        }
    }
}

/// The id in the header of a marker. `None` for a record.
fn marker_of(delivery: &Delivery) -> Option<String> {
    text(delivery.properties.headers().as_ref()?, MARKER_HEADER)
}

/// Ends a subscription and its channel.
async fn end(channel: OpenChannel, deliveries: lapin::Consumer) {
    if !channel.is_open() {
        return;
    }
    // lapin cancels a dropped consumer by itself. If that cancel comes after the close, the close fails.
    let cancel = channel
        .amqp
        .basic_cancel(deliveries.tag(), BasicCancelOptions::default());
    let mut ended = channel.answer("end the read of a start log", cancel).await;
    drop(deliveries);
    if ended.is_ok() {
        let close = channel.amqp.close(200, "done".into());
        ended = channel.answer("close a channel", close).await;
    }
    if let Err(e) = ended {
        tracing::debug!(error = %e.error, "failed to close the channel of a start log's reader");
    }
}

/// Identifies one read among all. No decision but this one depends on it, so it needs no seed.
fn reader_id() -> String {
    let number = RandomState::new().hash_one(std::process::id());
    format!("{number:016x}")
}
