//! Publishes a batch of the port: checks limits and translates refusals.

use std::collections::HashMap;

use cueline_broker::{BrokerError, Outgoing, QueueId, Refusal};

use super::{AmqpMessage, Outcome, Publisher};
use crate::context::DriverContext;
use crate::counts::count;
use crate::error::permanent;
use crate::options::{MAX_BATCH, MAX_PAYLOAD_BYTES};

/// See [`cueline_broker::Driver::publish`].
pub(crate) async fn publish_batch(
    context: &DriverContext,
    publisher: &Publisher,
    batch: &[Outgoing],
) -> Result<Vec<Result<(), Refusal>>, BrokerError> {
    if batch.len() > MAX_BATCH {
        return Err(permanent(format!(
            "failed to publish: {} messages are more than the {MAX_BATCH} of a batch",
            batch.len()
        )));
    }
    let fits = |outgoing: &&Outgoing| outgoing.payload.len() <= MAX_PAYLOAD_BYTES;
    let mut messages = Vec::with_capacity(batch.len());
    for outgoing in batch.iter().filter(fits) {
        let Outgoing { queue, topic, .. } = outgoing;
        let message = AmqpMessage::new(&context.names, queue, topic, outgoing.payload.clone())?;
        messages.push(message.with_id(&outgoing.id));
    }
    let mut outcomes = publisher.publish(&messages).await?.into_iter();
    let mut limits = HashMap::new();
    let mut answers = Vec::with_capacity(batch.len());
    for outgoing in batch {
        answers.push(if fits(&outgoing) {
            let outcome = outcomes.next().unwrap_or(Outcome::Unconfirmed);
            answer(context, &outgoing.queue, outcome, &mut limits).await
        } else {
            Err(Refusal::TooLarge {
                bytes: outgoing.payload.len(),
                limit: MAX_PAYLOAD_BYTES,
            })
        });
    }
    Ok(answers)
}

async fn answer<'a>(
    context: &DriverContext,
    queue: &'a QueueId,
    outcome: Outcome,
    limits: &mut HashMap<&'a QueueId, u64>,
) -> Result<(), Refusal> {
    match outcome {
        Outcome::Confirmed => Ok(()),
        Outcome::Unroutable => Err(Refusal::NoQueue(queue.to_string())),
        Outcome::Unconfirmed => Err(Refusal::Unknown {
            queue: queue.to_string(),
            why: "RabbitMQ did not confirm it".into(),
        }),
        Outcome::Rejected => {
            if !limits.contains_key(queue) {
                limits.insert(queue, limit(context, queue).await);
            }
            Err(Refusal::Full {
                queue: queue.to_string(),
                limit: limits[queue],
            })
        }
    }
}

/// The limit of a queue that has just refused a message. A quorum queue refuses only when it is full. AMQP does not
/// report a lower limit of a policy, so the number of waiting messages is used.
async fn limit(context: &DriverContext, queue: &QueueId) -> u64 {
    let own = context.options.queue_limit;
    let counted = async {
        let channel = context.connection.current().await?.open_channel().await?;
        count(&channel, context.names.queue(queue)?).await
    };
    match counted.await {
        Ok(Some(counts)) => own.min(counts.ready.max(1)),
        Ok(None) | Err(_) => own,
    }
}
