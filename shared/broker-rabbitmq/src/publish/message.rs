//! A message as AMQP publishes it.

use bytes::Bytes;
use cueline_broker::{BrokerError, QueueId};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use crate::names::{Names, TOPIC_HEADER, short};

/// Makes the server write a message to disk.
const PERSISTENT: u8 = 2;

/// The arguments of one `basic.publish`.
pub(crate) struct AmqpMessage<'a> {
    pub(crate) queue: &'a QueueId,
    pub(super) exchange: ShortString,
    pub(super) routing_key: ShortString,
    pub(super) properties: BasicProperties,
    pub(super) payload: Bytes,
}

impl<'a> AmqpMessage<'a> {
    pub(crate) fn new(
        names: &Names,
        queue: &'a QueueId,
        topic: &str,
        payload: Bytes,
    ) -> Result<Self, BrokerError> {
        let (routing_key, topic_in_header) = Names::routing_key(queue, topic)?;
        let mut properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
        if topic_in_header {
            let mut headers = FieldTable::default();
            headers.insert(TOPIC_HEADER.into(), AMQPValue::LongString(topic.into()));
            properties = properties.with_headers(headers);
        }
        Ok(Self {
            queue,
            exchange: names.exchange_of(queue),
            routing_key,
            properties,
            payload,
        })
    }

    /// Shows `id` to operators as the message id. An id that is too long for AMQP is left out.
    pub(crate) fn with_id(mut self, id: &str) -> Self {
        if let Ok(id) = short(id.to_owned()) {
            self.properties = self.properties.with_message_id(id);
        }
        self
    }
}

/// A message that is published alone: a record of a start log, the marker of a reader, or a proof.
pub(crate) struct SingleMessage {
    pub(super) properties: BasicProperties,
    pub(super) payload: Bytes,
}

impl SingleMessage {
    pub(crate) fn empty() -> Self {
        Self::new(Bytes::new(), FieldTable::default())
    }

    pub(crate) fn new(payload: Bytes, headers: FieldTable) -> Self {
        let properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_headers(headers);
        Self {
            properties,
            payload,
        }
    }
}
