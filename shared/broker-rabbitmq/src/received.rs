//! Reads a delivery of the server: topic, payload and how often it was delivered.

use bytes::Bytes;
use cueline_broker::{DeadLetter, QueueId};
use lapin::types::{AMQPValue, FieldTable};

use crate::names::{Names, TOPIC_HEADER};

/// A message as the server delivered it.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) topic: String,
    pub(crate) payload: Bytes,
    pub(crate) redelivered: bool,
    /// The number of deliveries, including this one.
    pub(crate) deliveries: u32,
    /// The server has dead-lettered it, by its header `x-death`. A client with rights on the exchange may write that header
    /// too, so it proves nothing about the sender.
    pub(crate) moved_by_broker: bool,
}

impl Received {
    pub(crate) fn read(delivery: lapin::message::Delivery, names: &Names, queue: &QueueId) -> Self {
        let headers = delivery.properties.headers().as_ref();
        let earlier = headers
            .and_then(|headers| number(headers, "x-delivery-count"))
            .unwrap_or(0);
        let header = headers.and_then(|headers| text(headers, TOPIC_HEADER));
        let key = delivery.routing_key.as_str();
        let payload = Bytes::from(delivery.data);
        let moved = headers
            .filter(|_| *queue == QueueId::Dead)
            .and_then(|headers| moved_by_server(headers, names, key, &payload));
        let moved_by_broker = moved.is_some();
        let (topic, payload) =
            moved.unwrap_or_else(|| (Names::parse_topic(queue, key, header), payload));
        Self {
            topic,
            payload,
            redelivered: delivery.redelivered || earlier > 0,
            deliveries: u32::try_from(earlier.saturating_add(1)).unwrap_or(u32::MAX),
            moved_by_broker,
        }
    }
}

/// Makes the dead letter of a message that the server itself dead-lettered, and tells its topic. The dead-letter queue
/// holds such a message in its original form, with the routing key that it had in its own queue.
fn moved_by_server(
    headers: &FieldTable,
    names: &Names,
    key: &str,
    payload: &Bytes,
) -> Option<(String, Bytes)> {
    let AMQPValue::FieldArray(deaths) = headers.inner().get("x-death")? else {
        return None;
    };
    let AMQPValue::FieldTable(last) = deaths.as_slice().first()? else {
        return None;
    };
    let name = text(last, "queue")?;
    let seconds = match last.inner().get("time") {
        Some(AMQPValue::Timestamp(seconds)) => i64::try_from(*seconds).unwrap_or(0),
        _ => 0,
    };
    let reason = text(last, "reason").unwrap_or_default();
    let queue = names.parse_queue(&name);
    let from = queue.as_ref().unwrap_or(&QueueId::Dead);
    let topic = Names::parse_topic(from, key, text(headers, TOPIC_HEADER));
    let letter = DeadLetter {
        reason: format!("RabbitMQ dropped it: {reason}"),
        queue: queue.map_or(name, |queue| queue.to_string()),
        topic: topic.clone(),
        at_ms: seconds.saturating_mul(1_000),
        payload: payload.clone(),
    };
    // If the dead letter cannot be encoded, operators see the message in its original form.
    letter.encode().ok().map(|payload| (topic, payload))
}

/// The text in a field of a table.
pub(crate) fn text(table: &FieldTable, name: &str) -> Option<String> {
    match table.inner().get(name)? {
        AMQPValue::LongString(text) => Some(String::from_utf8_lossy(text.as_bytes()).into_owned()),
        AMQPValue::ShortString(text) => Some(text.as_str().to_owned()),
        _ => None,
    }
}

fn number(table: &FieldTable, name: &str) -> Option<u64> {
    let number = match table.inner().get(name)? {
        AMQPValue::ShortShortInt(n) => i64::from(*n),
        AMQPValue::ShortShortUInt(n) => i64::from(*n),
        AMQPValue::ShortInt(n) => i64::from(*n),
        AMQPValue::ShortUInt(n) => i64::from(*n),
        AMQPValue::LongInt(n) => i64::from(*n),
        AMQPValue::LongUInt(n) => i64::from(*n),
        AMQPValue::LongLongInt(n) => *n,
        _ => return None,
    };
    u64::try_from(number).ok()
}
