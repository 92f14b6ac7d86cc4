//! Acks, giving back and dead letters of one queue.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use cueline_broker::{BrokerError, DeadLetter, ErrorKind, QueueId, Receipt, Settlement};
use lapin::BasicProperties;

use crate::confirms::Sent;
use crate::delivery::with_topic;
use crate::error::failed;
use crate::names::Names;
use crate::options::LONGEST_HOLD;
use crate::publish::{Parcel, Publisher};
use crate::tap::Tap;
use crate::topology;

/// A dead letter is cut if it is longer, so that the server takes it: in 4.x a message has at most 16 MiB, and a larger one ends the
/// channel, again and again.
const LARGEST_LETTER: usize = 15 << 20;
/// What is kept then: at worst, JSON makes it six times as long.
const KEPT: usize = 2 << 20;

/// What is to be done, by kind.
#[derive(Default)]
struct Sorted {
    done: Vec<Receipt>,
    again: Vec<Receipt>,
    later: Vec<(Receipt, Duration)>,
    dead: Vec<(Receipt, String)>,
}

impl Sorted {
    fn new(queue: &QueueId, settlements: &[(Receipt, Settlement)]) -> Self {
        let mut sorted = Self::default();
        for (receipt, how) in settlements {
            match how {
                Settlement::Ack => sorted.done.push(*receipt),
                Settlement::Retry(delay) if delay.is_zero() => sorted.again.push(*receipt),
                Settlement::Retry(delay) => {
                    sorted.later.push((*receipt, (*delay).min(LONGEST_HOLD)));
                }
                // A dead letter that is refused again stays what it is.
                Settlement::Dead(_) if *queue == QueueId::Dead => sorted.again.push(*receipt),
                Settlement::Dead(reason) => sorted.dead.push((*receipt, reason.clone())),
            }
        }
        sorted
    }
}

/// See [`cueline_broker::Driver::settle`].
pub(crate) async fn settle(
    tap: &Tap,
    publisher: &Publisher,
    names: &Names,
    settlements: &[(Receipt, Settlement)],
) -> Result<(), BrokerError> {
    let mut sorted = Sorted::new(tap.queue(), settlements);
    // Before they are acked: a crash in between leaves the message in both queues, not in none. Those that were not taken stay handed
    // out, and hold up no others.
    let (buried, failure) = bury(tap, publisher, names, &sorted.dead).await;
    sorted.done.extend(buried);
    let sent = tap.with_session(|session| {
        for (receipt, delay) in &sorted.later {
            session.postpone(*receipt, *delay);
        }
        session.ack(&sorted.done)?;
        session.give_back(&sorted.again)?;
        Ok(session.unanswered())
    });
    if !sorted.later.is_empty() {
        tap.retime();
    }
    match sent {
        None | Some(Ok(None)) => {}
        Some(Err(e)) => return Err(failed("settle", e)),
        Some(Ok(Some(sent))) => {
            // AMQP answers no ack. It answers the next question on the same channel after it has taken them.
            let (up, channel) = &sent.over;
            topology::ready(up, channel, tap.name()).await?;
            tap.with_session(|session| session.answered(&sent));
        }
    }
    failure.map_or(Ok(()), Err)
}

/// Publishes dead letters; those that were confirmed, and why others were not.
async fn bury(
    tap: &Tap,
    publisher: &Publisher,
    names: &Names,
    dead: &[(Receipt, String)],
) -> (Vec<Receipt>, Option<BrokerError>) {
    let (mut receipts, mut parcels, mut failure) = (Vec::new(), Vec::new(), None);
    for (receipt, letter) in letters(tap, dead) {
        match parcel(&letter, names) {
            Ok(parcel) => {
                receipts.push(receipt);
                parcels.push(parcel);
            }
            Err(e) => failure = Some(e),
        }
    }
    if parcels.is_empty() {
        return (Vec::new(), failure);
    }
    let sent = match publisher.publish(&parcels).await {
        Ok(sent) => sent,
        Err(e) => return (Vec::new(), Some(e)),
    };
    if sent.contains(&Sent::Unroutable) {
        // It was lost, or nobody has made it. The next try finds it.
        failure = tap.declare(&QueueId::Dead).await.err().or(failure);
    }
    let count = receipts.len();
    let confirmed = receipts.into_iter().zip(sent);
    let buried: Vec<Receipt> = confirmed
        .filter(|(_, sent)| *sent == Sent::Confirmed)
        .map(|(receipt, _)| receipt)
        .collect();
    if buried.len() < count && failure.is_none() {
        failure = Some(BrokerError::new(
            ErrorKind::Transient,
            "failed to settle: the dead-letter queue did not take a message",
        ));
    }
    (buried, failure)
}

fn letters(tap: &Tap, dead: &[(Receipt, String)]) -> Vec<(Receipt, DeadLetter)> {
    let at_ms = now_ms();
    let letters = tap.with_session(|session| {
        dead.iter()
            .filter_map(|(receipt, reason)| {
                let message = &session.held(*receipt)?.message;
                let letter = DeadLetter {
                    reason: reason.clone(),
                    queue: tap.queue().to_string(),
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

/// The letter as the server takes it.
fn encode(letter: &DeadLetter) -> Result<Bytes, BrokerError> {
    let encoded = letter.encode()?;
    if encoded.len() <= LARGEST_LETTER {
        return Ok(encoded);
    }
    let whole = letter.payload.len();
    // A text stays one.
    let kept = std::str::from_utf8(&letter.payload)
        .map_or(KEPT.min(whole), |text| text.floor_char_boundary(KEPT));
    DeadLetter {
        reason: format!(
            "{} [of its {whole} bytes the first {kept} are kept]",
            letter.reason
        ),
        payload: letter.payload.slice(..kept),
        ..letter.clone()
    }
    .encode()
}

fn parcel(letter: &DeadLetter, names: &Names) -> Result<Parcel<'static>, BrokerError> {
    let (key, long) = Names::key(&QueueId::Dead, &letter.topic)?;
    let properties = BasicProperties::default();
    Ok(Parcel {
        queue: &QueueId::Dead,
        exchange: names.exchange(&QueueId::Dead),
        key,
        properties: if long {
            with_topic(properties, &letter.topic)
        } else {
            properties
        },
        payload: encode(letter)?,
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "the product tells no time; this one is shown to people and decides nothing"
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
    fn a_letter_that_the_server_would_not_take_is_cut_and_says_so() {
        // The largest payload of a message by default; JSON makes it six times as long, base64 longer by a third.
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
            assert!(encoded.len() <= LARGEST_LETTER, "{}", encoded.len());
            let read = DeadLetter::decode(&encoded).unwrap();
            assert!(letter.payload.starts_with(&read.payload));
            assert_eq!(read.payload.len() < letter.payload.len(), is_cut);
            assert_eq!(read.reason.contains("bytes the first"), is_cut);
        }
    }
}
