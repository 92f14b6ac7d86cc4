//! Publishes refused deliveries to the dead-letter queue.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use cueline_broker::{BrokerError, DeadLetter, QueueId, Receipt};

use crate::consumer::Consumer;
use crate::context::DriverContext;
use crate::error::transient;
use crate::publish::{AmqpMessage, Outcome, Publisher};
use crate::topology;

/// The largest dead letter without its seal, in bytes. RabbitMQ 4 accepts 16 MiB. It closes the channel on a larger
/// message, on every attempt.
const MAX_LETTER_BYTES: usize = 15 << 20;

/// How much of the payload a larger dead letter keeps, in bytes. JSON makes it at most six times as long.
const KEPT_BYTES: usize = 2 << 20;

/// Publishes the deliveries of these receipts as dead letters, with their reasons. Returns the receipts of the
/// confirmed ones, and the error of the others. Unknown receipts are ignored.
pub(crate) async fn publish(
    context: &DriverContext,
    consumer: &Consumer,
    publisher: &Publisher,
    dead: &[(Receipt, String)],
) -> (Vec<Receipt>, Option<BrokerError>) {
    let (mut receipts, mut messages, mut failure) = (Vec::new(), Vec::new(), None);
    for (receipt, letter) in letters(consumer, dead) {
        let message = encode(&letter).and_then(|payload| {
            let payload = match &context.options.seal_dead_letters {
                Some(seal) => seal.seal(&payload),
                None => payload,
            };
            AmqpMessage::new(&context.names, &QueueId::Dead, &letter.topic, payload)
        });
        match message {
            Ok(message) => {
                receipts.push(receipt);
                messages.push(message);
            }
            Err(e) => failure = Some(e),
        }
    }
    let outcomes = match publisher.publish(&messages).await {
        Ok(outcomes) => outcomes,
        Err(e) => return (Vec::new(), Some(e)),
    };
    if outcomes.contains(&Outcome::Unroutable) {
        // A dead letter without its queue cannot be confirmed. The next attempt finds the queue.
        failure = declare_queue(context).await.err().or(failure);
    }
    let count = receipts.len();
    let confirmed: Vec<Receipt> = receipts
        .into_iter()
        .zip(outcomes)
        .filter(|(_, outcome)| *outcome == Outcome::Confirmed)
        .map(|(receipt, _)| receipt)
        .collect();
    if confirmed.len() < count && failure.is_none() {
        failure = Some(transient(
            "failed to settle: the dead-letter queue did not confirm a message",
        ));
    }
    (confirmed, failure)
}

async fn declare_queue(context: &DriverContext) -> Result<(), BrokerError> {
    let connection = context.connection.current().await?;
    topology::declare_queue(
        &connection,
        &context.names,
        &context.options,
        &QueueId::Dead,
    )
    .await
}

fn letters(consumer: &Consumer, dead: &[(Receipt, String)]) -> Vec<(Receipt, DeadLetter)> {
    let at_ms = now_ms();
    let letters = consumer.with_session(|session| {
        dead.iter()
            .filter_map(|(receipt, reason)| {
                let message = &session.get(*receipt)?.message;
                let letter = DeadLetter {
                    reason: reason.clone(),
                    queue: consumer.queue.to_string(),
                    topic: message.topic.clone(),
                    at_ms,
                    payload: message.payload.clone(),
                };
                Some((*receipt, letter))
            })
            .collect()
    });
    letters.unwrap_or_default()
}

/// Encodes a dead letter, cut to a size that the server accepts.
fn encode(letter: &DeadLetter) -> Result<Bytes, BrokerError> {
    let encoded = letter.encode()?;
    if encoded.len() <= MAX_LETTER_BYTES {
        return Ok(encoded);
    }
    let whole = letter.payload.len();
    // Cut a text between characters, because half a character is not valid UTF-8.
    let kept = std::str::from_utf8(&letter.payload).map_or(KEPT_BYTES.min(whole), |text| {
        text.floor_char_boundary(KEPT_BYTES)
    });
    DeadLetter {
        reason: format!(
            "{} [cut: only the first {kept} of {whole} bytes are kept]",
            letter.reason
        ),
        payload: letter.payload.slice(..kept),
        ..letter.clone()
    }
    .encode()
}

#[expect(
    clippy::disallowed_methods,
    reason = "AMQP reports no time; operators see this one and nothing depends on it"
)]
fn now_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_that_is_too_large_for_the_server_is_cut_and_says_so() {
        // The largest payload of a message. JSON makes it six times as long; base64 adds a third.
        for (payload, is_cut) in [
            ("\u{1}".repeat(8 << 20).into_bytes(), true),
            ("报".repeat(6 << 20).into_bytes(), true),
            (vec![0xff; 8 << 20], false),
            (vec![0xff; 12 << 20], true),
            (vec![b'a'; 8 << 20], false),
        ] {
            let letter = DeadLetter {
                reason: "why".into(),
                queue: "results".into(),
                topic: "t".into(),
                at_ms: 7,
                payload: payload.into(),
            };
            let encoded = encode(&letter).unwrap();
            assert!(encoded.len() <= MAX_LETTER_BYTES, "{}", encoded.len());
            let read = DeadLetter::decode(&encoded).unwrap();
            assert!(letter.payload.starts_with(&read.payload));
            assert_eq!(read.payload.len() < letter.payload.len(), is_cut);
            assert_eq!(read.reason.contains("only the first"), is_cut);
        }
    }
}
