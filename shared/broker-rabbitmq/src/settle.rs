//! Acks, giving back and dead letters of one queue.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
    // Before they are acked: a crash in between leaves the message in both queues, not in none.
    bury(tap, publisher, names, &sorted.dead).await?;
    sorted
        .done
        .extend(sorted.dead.iter().map(|(receipt, _)| receipt));
    let sent = tap.with_session(|session| {
        for (receipt, delay) in &sorted.later {
            session.postpone(*receipt, *delay);
        }
        let acked = session.ack(&sorted.done)?;
        let given_back = session.give_back(&sorted.again)?;
        Ok((acked || given_back).then(|| session.channel()))
    });
    if !sorted.later.is_empty() {
        tap.retime();
    }
    let answered = match sent {
        None | Some(Ok(None)) => return Ok(()),
        Some(Err(e)) => return Err(failed("settle", e)),
        Some(Ok(Some(answered))) => answered,
    };
    // AMQP answers no ack. It answers the next question on the same channel after it has taken them.
    let (up, channel) = answered;
    topology::ready(&up, &channel, tap.name()).await?;
    Ok(())
}

async fn bury(
    tap: &Tap,
    publisher: &Publisher,
    names: &Names,
    dead: &[(Receipt, String)],
) -> Result<(), BrokerError> {
    if dead.is_empty() {
        return Ok(());
    }
    let at_ms = now_ms();
    let letters = tap.with_session(|session| {
        dead.iter()
            .filter_map(|(receipt, reason)| {
                let message = &session.held(*receipt)?.message;
                Some(DeadLetter {
                    reason: reason.clone(),
                    queue: tap.queue().to_string(),
                    topic: message.topic.clone(),
                    at_ms,
                    payload: message.payload.clone(),
                })
            })
            .collect::<Vec<_>>()
    });
    let parcels = letters
        .unwrap_or_default()
        .iter()
        .map(|letter| parcel(letter, names))
        .collect::<Result<Vec<_>, _>>()?;
    if parcels.is_empty() {
        return Ok(());
    }
    let sent = publisher.publish(&parcels).await?;
    if sent.iter().all(|sent| *sent == Sent::Confirmed) {
        return Ok(());
    }
    if sent.contains(&Sent::Unroutable) {
        // It was lost, or nobody has made it. The next try finds it.
        tap.declare(&QueueId::Dead).await?;
    }
    Err(BrokerError::new(
        ErrorKind::Transient,
        "failed to settle: the dead-letter queue did not take a message",
    ))
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
        payload: letter.encode()?,
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
