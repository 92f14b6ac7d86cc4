//! Reads messages that a consumer delivered. No I/O.

use async_nats::{Message, Subject};
use bytes::Bytes;
use cueline_broker::{Delivery, QueueId, Receipt};

use crate::dead_letter;
use crate::deadline;
use crate::names::Location;
use crate::receipts::Unsettled;

#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) unsettled: Unsettled,
    payload: Bytes,
    deliveries: u32,
    /// The stream stored it after its deadline, so no fetch may return it.
    pub(crate) is_expired: bool,
}

impl Received {
    /// Parses a message of the queue at this location. `None` if no consumer delivered it.
    pub(crate) fn parse(message: Message, queue: &QueueId, location: &Location) -> Option<Self> {
        let ack_subject = message.reply?;
        let metadata = Metadata::parse(&ack_subject)?;
        let (mut payload, mut is_expired) = (message.payload.clone(), false);
        if let Some(headers) = &message.headers {
            is_expired = deadline::is_expired(headers, metadata.stored_at_ms);
            if *queue == QueueId::Dead
                && let Some(letter) =
                    dead_letter::read(headers, &message.payload, metadata.stored_at_ms)
            {
                payload = letter;
            }
        }
        Some(Self {
            unsettled: Unsettled {
                ack_subject,
                sequence: metadata.sequence,
                topic: location.topic(&message.subject),
                payload: message.payload,
            },
            payload,
            deliveries: metadata.deliveries,
            is_expired,
        })
    }

    pub(crate) fn into_delivery(self, receipt: Receipt) -> Delivery {
        Delivery {
            receipt,
            topic: self.unsettled.topic,
            payload: self.payload,
            redelivered: self.deliveries > 1,
            deliveries: self.deliveries,
            // A stream moves nothing by itself.
            moved_by_broker: false,
        }
    }
}

/// The sequence number in the stream of a message with this ack subject. `None` if no consumer delivered it.
pub(crate) fn stream_sequence(ack_subject: &Subject) -> Option<u64> {
    Metadata::parse(ack_subject).map(|metadata| metadata.sequence)
}

/// The parts of an ack subject that describe a delivery.
#[derive(Debug, PartialEq, Eq)]
struct Metadata {
    deliveries: u32,
    /// The sequence number in the stream.
    sequence: u64,
    stored_at_ms: i64,
}

impl Metadata {
    /// Parses `$JS.ACK.<stream>.<consumer>.<deliveries>.<sequence>.<consumer sequence>.<nanoseconds>.<pending>`. Newer
    /// servers may put a domain and an account after the second token, and more tokens at the end.
    fn parse(ack_subject: &Subject) -> Option<Self> {
        let tokens: Vec<&str> = ack_subject.split('.').collect();
        if tokens.len() < 9 || tokens[..2] != ["$JS", "ACK"] {
            return None;
        }
        let first = if tokens.len() == 9 { 4 } else { 6 };
        let nanoseconds: i64 = tokens.get(first + 3)?.parse().ok()?;
        Some(Self {
            deliveries: tokens.get(first)?.parse().ok()?,
            sequence: tokens.get(first + 1)?.parse().ok()?,
            stored_at_ms: nanoseconds / 1_000_000,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_the_ack_subject_are_parsed() {
        let metadata = Metadata {
            deliveries: 3,
            sequence: 71,
            stored_at_ms: 1_795_261_092_381,
        };
        for subject in [
            "$JS.ACK.T.b~one.3.71.5.1795261092381946135.2",
            "$JS.ACK.hub.ACCOUNT.T.b~one.3.71.5.1795261092381946135.2",
            "$JS.ACK._.ACCOUNT.T.b~one.3.71.5.1795261092381946135.2.random",
        ] {
            let parsed = Metadata::parse(&subject.into());
            assert_eq!(parsed.as_ref(), Some(&metadata), "{subject}");
        }
        for other in [
            "",
            "$JS.ACK.T.c.1",
            "a.b.c.d.1.2.3.4.5",
            "$JS.ACK.T.c.x.1.1.1.1",
        ] {
            assert_eq!(Metadata::parse(&other.into()), None, "{other}");
        }
    }
}
