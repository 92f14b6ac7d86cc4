//! Dead letters on NATS: the original payload, with the reason and the origin in headers. A wrapped payload of the
//! largest size would exceed the server's limit. A seal is a header too. It covers the letter as [`read`] restores it.

use std::time::{SystemTime, UNIX_EPOCH};

use async_nats::HeaderMap;
use async_nats::header::NATS_MESSAGE_ID;
use bytes::Bytes;
use cueline_broker::{DeadLetter, DeadLetterSeal, QueueId};

use crate::names::Names;
use crate::receipts::Unsettled;
use crate::requests::Request;

const REASON: &str = "Cueline-Reason";
const QUEUE: &str = "Cueline-Queue";
const TOPIC: &str = "Cueline-Topic";
/// When a sealed letter was written, in milliseconds since the Unix epoch, by its writer's clock. The seal cannot cover
/// the time at which the server stores it.
const AT: &str = "Cueline-At";
const SEAL: &str = "Cueline-Seal";
/// In bytes. A longer reason is cut.
const MAX_REASON: usize = 2_048;
/// In bytes. A longer queue or topic is cut.
const MAX_ORIGIN: usize = 512;
/// Bytes of a topic that become part of the subject; the header has more. Escaping makes a topic up to three times as
/// long. The server closes the connection on a protocol line over 4 KiB.
const MAX_TOPIC_IN_SUBJECT: usize = 256;

/// What the dead letters of a driver have in common.
pub(crate) struct LetterWriter<'a> {
    pub(crate) names: &'a Names,
    /// The largest payload in bytes. A longer one is cut, because the server closes the connection on a larger message.
    pub(crate) max_payload: usize,
    pub(crate) seal: Option<&'a DeadLetterSeal>,
    /// Random, and known to this process alone. A stream drops the second of two messages with one id, also if another
    /// user published the first.
    pub(crate) nonce: u64,
}

/// Makes the request that moves a delivery to the dead-letter queue.
pub(crate) fn request(
    writer: &LetterWriter<'_>,
    queue: &QueueId,
    unsettled: &Unsettled,
    reason: &str,
) -> Request {
    let LetterWriter {
        names,
        max_payload,
        seal,
        nonce,
    } = *writer;
    let Unsettled {
        sequence,
        topic,
        payload,
        ..
    } = unsettled;
    let (bytes, kept) = (payload.len(), payload.len().min(max_payload));
    let cut = format!("{reason} [cut: only the first {kept} of {bytes} bytes are kept]");
    let mut headers = headers(if kept < bytes { &cut } else { reason }, queue, topic);
    // A second try after a lost reply has the same id, so the stream drops the duplicate.
    let stream = names.locate(queue).stream_name;
    headers.insert(NATS_MESSAGE_ID, format!("{nonce:016x}:{stream}:{sequence}"));
    let topic = &topic[..topic.floor_char_boundary(MAX_TOPIC_IN_SUBJECT)];
    let subject = names.locate(&QueueId::Dead).subject(topic);
    let payload = payload.slice(..kept);
    if let Some(seal) = seal {
        add_seal(&mut headers, &payload, seal, now_ms());
    }
    let request = Request::new(subject, payload);
    let headers = Some(headers);
    Request { headers, ..request }
}

fn headers(reason: &str, queue: &QueueId, topic: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value, max_bytes) in [
        (REASON, reason, MAX_REASON),
        (QUEUE, &*queue.to_string(), MAX_ORIGIN),
        (TOPIC, topic, MAX_ORIGIN),
    ] {
        headers.insert(name, quoted(value, max_bytes));
    }
    headers
}

/// Encodes a text as a JSON string, because a header cannot hold line breaks. Cuts it to at most `max_bytes`.
fn quoted(mut text: &str, max_bytes: usize) -> String {
    loop {
        let quoted = serde_json::Value::from(text).to_string();
        if quoted.len() <= max_bytes {
            return quoted;
        }
        // One byte takes up to six bytes in JSON.
        let excess = (quoted.len() - max_bytes).div_ceil(6);
        text = &text[..text.floor_char_boundary(text.len() - excess)];
    }
}

/// Seals the letter of complete headers.
fn add_seal(headers: &mut HeaderMap, payload: &Bytes, seal: &DeadLetterSeal, at_ms: i64) {
    let Some(letter) = encoded(headers, payload, at_ms) else {
        return;
    };
    let sealed = seal.seal(&letter);
    let line = sealed
        .strip_prefix(&*letter)
        .and_then(|rest| rest.strip_prefix(b"\n"))
        .and_then(|line| std::str::from_utf8(line).ok());
    if let Some(line) = line {
        headers.insert(AT, at_ms.to_string());
        headers.insert(SEAL, line.to_owned());
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "operators see this time and nothing depends on it"
)]
fn now_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        })
}

/// Restores the payload that the port expects, with its seal if it has one. `None` for a message that was published
/// without these headers.
pub(crate) fn read(headers: &HeaderMap, payload: &Bytes, stored_at_ms: i64) -> Option<Bytes> {
    let Some(seal) = headers.get(SEAL) else {
        return encoded(headers, payload, stored_at_ms);
    };
    let at_ms = headers.get(AT).and_then(|at| at.as_str().parse().ok());
    let letter = encoded(headers, payload, at_ms.unwrap_or(stored_at_ms))?;
    Some(
        [&letter[..], b"\n", seal.as_str().as_bytes()]
            .concat()
            .into(),
    )
}

/// The letter that these headers and this payload make.
fn encoded(headers: &HeaderMap, payload: &Bytes, at_ms: i64) -> Option<Bytes> {
    let text = |name: &str| {
        let value = headers.get(name)?;
        serde_json::from_str::<String>(value.as_str()).ok()
    };
    let letter = DeadLetter {
        reason: text(REASON)?,
        queue: text(QUEUE)?,
        topic: text(TOPIC)?,
        at_ms,
        payload: payload.clone(),
    };
    letter.encode().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_fits_in_its_header_and_can_be_read() {
        for reason in [
            "why",
            "",
            "two\nlines \"quoted\" and größe",
            &"\u{1}报".repeat(5_000),
        ] {
            let headers = headers(reason, &QueueId::Results, "t");
            let value = headers.get(REASON).unwrap();
            assert!(value.as_str().len() <= MAX_REASON);
            assert!(!value.as_str().contains('\n'));
            let letter = read(&headers, &Bytes::new(), 7).unwrap();
            let letter = DeadLetter::decode(&letter).unwrap();
            assert!(reason.starts_with(&letter.reason));
            assert!(letter.reason.len() > 300 || letter.reason == reason);
            assert_eq!((&*letter.queue, &*letter.topic), ("results", "t"));
        }
    }

    /// A seal that shows what it covers.
    fn copying_seal() -> DeadLetterSeal {
        DeadLetterSeal::new(|letter| [&letter[..], b"\n", &letter[..]].concat())
    }

    #[test]
    fn a_seal_covers_the_letter_that_is_read() {
        for reason in ["why", &"\u{1}报".repeat(5_000)] {
            for payload in [&b"{}"[..], b"\xff"] {
                let payload = Bytes::from_static(payload);
                let mut headers = headers(reason, &QueueId::Results, "t");
                add_seal(&mut headers, &payload, &copying_seal(), 7);
                let read = read(&headers, &payload, 9).unwrap();
                let end = read.len() / 2;
                assert_eq!(read[end + 1..], read[..end]);
                assert_eq!(DeadLetter::decode(&read[..end]).unwrap().at_ms, 7);
            }
        }
    }
}
