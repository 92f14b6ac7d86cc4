//! The format of dead letters: the original message, its queue and the reason. All drivers use it, so dead letters of
//! any broker can be shown and replayed. It does not interpret the messages.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::{BrokerError, ErrorKind};

/// A message that was settled with [`Settlement::Dead`](crate::Settlement::Dead). Its JSON form is the payload in
/// [`QueueId::Dead`](crate::QueueId::Dead).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Why the message was refused.
    pub reason: String,
    /// The original queue, as [`QueueId`](crate::QueueId) displays it.
    pub queue: String,
    /// The original topic.
    pub topic: String,
    /// When the message was moved, in milliseconds since the Unix epoch, by the broker's clock.
    pub at_ms: i64,
    /// The original payload.
    pub payload: Bytes,
}

/// Payloads in UTF-8 stay readable; others are encoded as base64.
#[derive(Serialize, Deserialize)]
struct Wire {
    reason: String,
    queue: String,
    topic: String,
    at_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

impl DeadLetter {
    /// Encodes the payload for the dead-letter queue.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Permanent`] if it cannot be written as JSON. No value of this type causes that.
    pub fn encode(&self) -> Result<Bytes, BrokerError> {
        let (text, base64) = match std::str::from_utf8(&self.payload) {
            Ok(text) => (Some(text.to_owned()), None),
            Err(_) => (None, Some(STANDARD.encode(&self.payload))),
        };
        let wire = Wire {
            reason: self.reason.clone(),
            queue: self.queue.clone(),
            topic: self.topic.clone(),
            at_ms: self.at_ms,
            text,
            base64,
        };
        serde_json::to_vec(&wire)
            .map(Bytes::from)
            .map_err(|e| malformed("failed to encode a dead letter").caused_by(e))
    }

    /// Decodes the output of [`encode`](Self::encode).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Permanent`] if the payload is not a dead letter.
    pub fn decode(payload: &[u8]) -> Result<Self, BrokerError> {
        let wire: Wire = serde_json::from_slice(payload)
            .map_err(|e| malformed("failed to decode a dead letter").caused_by(e))?;
        let payload = match (wire.text, wire.base64) {
            (Some(text), None) => Bytes::from(text),
            (None, Some(base64)) => STANDARD.decode(base64).map(Bytes::from).map_err(|e| {
                malformed("failed to decode the payload of a dead letter").caused_by(e)
            })?,
            _ => {
                return Err(malformed(
                    "failed to decode a dead letter: it needs either `text` or `base64`",
                ));
            }
        };
        Ok(Self {
            reason: wire.reason,
            queue: wire.queue,
            topic: wire.topic,
            at_ms: wire.at_ms,
            payload,
        })
    }
}

fn malformed(message: &str) -> BrokerError {
    BrokerError::new(ErrorKind::Permanent, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(payload: &'static [u8]) -> DeadLetter {
        DeadLetter {
            reason: "unknown version 7".into(),
            queue: "x.billing.one".into(),
            topic: "invoices".into(),
            at_ms: 1_700_000_000_000,
            payload: Bytes::from_static(payload),
        }
    }

    #[test]
    fn text_and_bytes_round_trip() {
        for payload in [&b"{\"v\":7}"[..], b"", b"\xff\xfe\x00"] {
            let letter = letter(payload);
            assert_eq!(
                DeadLetter::decode(&letter.encode().unwrap()).unwrap(),
                letter
            );
        }
    }

    #[test]
    fn other_messages_are_refused() {
        for bad in [
            "",
            "{}",
            r#"{"reason":"r","queue":"q","topic":"t","at_ms":1}"#,
            r#"{"reason":"r","queue":"q","topic":"t","at_ms":1,"base64":"%"}"#,
        ] {
            assert!(DeadLetter::decode(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
