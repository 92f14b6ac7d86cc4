//! What a delivered message says about itself. Pure.

use async_nats::{HeaderMap, Message, Subject};
use bytes::Bytes;
use cueline_broker::{DeadLetter, Delivery, QueueId, Receipt};

use crate::fence;
use crate::names::topic;
use crate::receipts::Held;

/// Headers of a dead letter: why, and from where. Its payload stays as it was, so that it never grows too large.
const REASON: &str = "Cueline-Reason";
const QUEUE: &str = "Cueline-Queue";
const TOPIC: &str = "Cueline-Topic";
/// What is longer is cut; the reason comes first.
const LONGEST_REASON: usize = 2_048;
const LONGEST_ORIGIN: usize = 512;

/// A message with what there is to know about this delivery.
#[derive(Debug)]
pub(crate) struct Delivered {
    pub(crate) held: Held,
    payload: Bytes,
    deliveries: u32,
    /// It came into its queue after the time that it had for that: it is not to be handed out.
    pub(crate) is_late: bool,
}

impl Delivered {
    /// `None` for what did not come from a consumer.
    pub(crate) fn read(message: Message, queue: &QueueId) -> Option<Self> {
        let ack = message.reply?;
        let about = About::read(&ack)?;
        let topic = topic(&message.subject);
        let is_late = message
            .headers
            .as_ref()
            .is_some_and(|headers| fence::is_late(headers, about.at_ms));
        let headers = message.headers.as_ref().filter(|_| *queue == QueueId::Dead);
        let letter = headers.and_then(|headers| letter(headers, &message.payload, about.at_ms));
        let payload = letter
            .and_then(|letter| letter.encode().ok())
            .unwrap_or_else(|| message.payload.clone());
        Some(Self {
            held: Held {
                ack,
                sequence: about.sequence,
                topic,
                payload: message.payload,
            },
            payload,
            deliveries: about.deliveries,
            is_late,
        })
    }

    pub(crate) fn with(self, receipt: Receipt) -> Delivery {
        Delivery {
            receipt,
            topic: self.held.topic,
            payload: self.payload,
            redelivered: self.deliveries > 1,
            deliveries: self.deliveries,
        }
    }
}

/// What the subject for acks tells.
#[derive(Debug, PartialEq, Eq)]
struct About {
    deliveries: u32,
    sequence: u64,
    /// When the stream took the message in.
    at_ms: i64,
}

impl About {
    /// `$JS.ACK.<stream>.<consumer>.<deliveries>.<sequence>.<consumer's sequence>.<nanoseconds>.<pending>`; newer servers may put
    /// a domain and an account after the second token, and more at the end.
    fn read(ack: &Subject) -> Option<Self> {
        let tokens: Vec<&str> = ack.split('.').collect();
        if tokens.len() < 9 || tokens[..2] != ["$JS", "ACK"] {
            return None;
        }
        let first = if tokens.len() == 9 { 4 } else { 6 };
        let nanoseconds: i64 = tokens.get(first + 3)?.parse().ok()?;
        Some(Self {
            deliveries: tokens.get(first)?.parse().ok()?,
            sequence: tokens.get(first + 1)?.parse().ok()?,
            at_ms: nanoseconds / 1_000_000,
        })
    }
}

/// Headers for a message that goes to the dead letters.
pub(crate) fn dead_headers(reason: &str, queue: &QueueId, topic: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value, longest) in [
        (REASON, reason, LONGEST_REASON),
        (QUEUE, &*queue.to_string(), LONGEST_ORIGIN),
        (TOPIC, topic, LONGEST_ORIGIN),
    ] {
        headers.insert(name, quoted(value, longest));
    }
    headers
}

/// As a JSON string, which has no line breaks, of at most `longest` bytes.
fn quoted(text: &str, longest: usize) -> String {
    let mut text = text;
    loop {
        let quoted = serde_json::Value::from(text).to_string();
        if quoted.len() <= longest {
            return quoted;
        }
        let end = text.floor_char_boundary(text.len() - (quoted.len() - longest).div_ceil(6));
        text = &text[..end];
    }
}

/// `None` for a message that somebody published as it is.
fn letter(headers: &HeaderMap, payload: &Bytes, at_ms: i64) -> Option<DeadLetter> {
    let text = |name: &str| {
        let value = headers.get(name)?;
        serde_json::from_str::<String>(value.as_str()).ok()
    };
    Some(DeadLetter {
        reason: text(REASON)?,
        queue: text(QUEUE)?,
        topic: text(TOPIC)?,
        at_ms,
        payload: payload.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_the_ack_subject_are_read() {
        let about = About {
            deliveries: 3,
            sequence: 71,
            at_ms: 1_795_261_092_381,
        };
        for ack in [
            "$JS.ACK.T.b~one.3.71.5.1795261092381946135.2",
            "$JS.ACK.hub.ACCOUNT.T.b~one.3.71.5.1795261092381946135.2",
            "$JS.ACK._.ACCOUNT.T.b~one.3.71.5.1795261092381946135.2.random",
        ] {
            assert_eq!(About::read(&ack.into()).as_ref(), Some(&about), "{ack}");
        }
        for other in [
            "",
            "$JS.ACK.T.c.1",
            "a.b.c.d.1.2.3.4.5",
            "$JS.ACK.T.c.x.1.1.1.1",
        ] {
            assert_eq!(About::read(&other.into()), None, "{other}");
        }
    }

    #[test]
    fn reasons_fit_in_headers_and_come_back() {
        for reason in [
            "why",
            "",
            "two\nlines \"quoted\" and größe",
            &"\u{1}报".repeat(5_000),
        ] {
            let headers = dead_headers(reason, &QueueId::Results, "t");
            let value = headers.get(REASON).unwrap();
            assert!(value.as_str().len() <= LONGEST_REASON);
            assert!(!value.as_str().contains('\n'));
            let letter = letter(&headers, &Bytes::new(), 7).unwrap();
            assert!(reason.starts_with(&letter.reason));
            assert!(letter.reason.len() > 300 || letter.reason == reason);
            assert_eq!((&*letter.queue, &*letter.topic), ("results", "t"));
        }
    }
}
