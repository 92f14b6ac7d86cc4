//! Settles the deliveries of one queue.

use cueline_broker::{BrokerError, QueueId, Receipt, Settlement};

use crate::consumer::Consumer;
use crate::context::DriverContext;
use crate::counts::count;
use crate::dead_letters;
use crate::options::MAX_UNSETTLED_TIME;
use crate::publish::Publisher;

/// See [`cueline_broker::Driver::settle`].
pub(crate) async fn settle(
    context: &DriverContext,
    consumer: &Consumer,
    publisher: &Publisher,
    settlements: &[(Receipt, Settlement)],
) -> Result<(), BrokerError> {
    let (mut acked, mut requeued, mut delayed, mut dead) = (vec![], vec![], vec![], vec![]);
    for (receipt, settlement) in settlements {
        match settlement {
            Settlement::Ack => acked.push(*receipt),
            Settlement::Retry(delay) if delay.is_zero() => requeued.push(*receipt),
            Settlement::Retry(delay) => delayed.push((*receipt, *delay)),
            // A dead letter that is refused again stays a dead letter.
            Settlement::Dead(_) if consumer.queue == QueueId::Dead => requeued.push(*receipt),
            Settlement::Dead(reason) => dead.push((*receipt, reason.clone())),
        }
    }
    // Dead letters are confirmed before their deliveries are acked. A crash in between leaves a message in both queues
    // instead of in none. Unconfirmed ones stay unsettled and delay no others.
    let (dead_lettered, failure) = dead_letters::publish(context, consumer, publisher, &dead).await;
    acked.extend(dead_lettered);
    let queued = consumer.with_session(|session| {
        for (receipt, delay) in delayed {
            session.postpone(receipt, delay.min(MAX_UNSETTLED_TIME));
        }
        session.ack(&acked)?;
        session.requeue(&requeued)?;
        Ok::<_, BrokerError>(session.channel.clone())
    });
    if let Some(channel) = queued.transpose()?
        && !(acked.is_empty() && requeued.is_empty())
    {
        // AMQP does not answer an ack. An answer to a later call on the same channel shows that the server has
        // processed the acks. Unknown receipts need it too: an earlier call may have acked them without getting its
        // answer.
        count(&channel, consumer.name.clone()).await?;
    }
    failure.map_or(Ok(()), Err)
}
