//! What the server delivers, read.

use bytes::Bytes;
use cueline_broker::{DeadLetter, QueueId};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};

use crate::names::{Names, TOPIC_HEADER};

/// A message as it came.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) topic: String,
    pub(crate) payload: Bytes,
    pub(crate) redelivered: bool,
    /// This delivery included.
    pub(crate) deliveries: u32,
}

impl Message {
    pub(crate) fn read(delivery: lapin::message::Delivery, names: &Names, queue: &QueueId) -> Self {
        let headers = delivery.properties.headers().as_ref();
        let before = headers
            .and_then(|headers| number(headers, "x-delivery-count"))
            .unwrap_or(0);
        let long = headers.and_then(|headers| text(headers, TOPIC_HEADER));
        let topic = long.unwrap_or_else(|| Names::topic(delivery.routing_key.as_str()));
        let dropped = headers
            .filter(|_| matches!(queue, QueueId::Dead))
            .and_then(|headers| DroppedBy::read(headers, names));
        let payload = Bytes::from(delivery.data);
        Self {
            payload: match dropped {
                Some(dropped) => dropped.wrap(&topic, payload),
                None => payload,
            },
            topic,
            redelivered: delivery.redelivered || before > 0,
            deliveries: u32::try_from(before.saturating_add(1)).unwrap_or(u32::MAX),
        }
    }
}

/// A message that the server itself moved to the dead letters: it lies there as it was, not wrapped like ours.
struct DroppedBy {
    queue: String,
    reason: String,
    at_ms: i64,
}

impl DroppedBy {
    fn read(headers: &FieldTable, names: &Names) -> Option<Self> {
        let Some(AMQPValue::FieldArray(deaths)) = headers.inner().get("x-death") else {
            return None;
        };
        let Some(AMQPValue::FieldTable(last)) = deaths.as_slice().first() else {
            return None;
        };
        let name = text(last, "queue")?;
        let seconds = match last.inner().get("time") {
            Some(AMQPValue::Timestamp(seconds)) => i64::try_from(*seconds).unwrap_or(0),
            _ => 0,
        };
        let reason = text(last, "reason").unwrap_or_default();
        Some(Self {
            queue: names
                .parse_queue(&name)
                .map_or(name, |queue| queue.to_string()),
            reason: format!("RabbitMQ dropped it: {reason}"),
            at_ms: seconds.saturating_mul(1_000),
        })
    }

    fn wrap(self, topic: &str, payload: Bytes) -> Bytes {
        let letter = DeadLetter {
            reason: self.reason,
            queue: self.queue,
            topic: topic.to_owned(),
            at_ms: self.at_ms,
            payload: payload.clone(),
        };
        // One that cannot be wrapped is better shown as it is than not at all.
        letter.encode().unwrap_or(payload)
    }
}

/// The headers of a message whose topic does not fit into the routing key.
pub(crate) fn with_topic(properties: BasicProperties, topic: &str) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert(TOPIC_HEADER.into(), AMQPValue::LongString(topic.into()));
    properties.with_headers(headers)
}

fn text(table: &FieldTable, name: &str) -> Option<String> {
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
