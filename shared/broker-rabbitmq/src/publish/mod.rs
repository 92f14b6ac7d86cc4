//! Publishes batches with publisher confirms.
//!
//! A batch is written without waiting between its messages. The server then confirms, rejects or returns each
//! message, or the queue of a message does not answer. See `docs/rabbitmq.md`.

mod batch;
mod confirms;
mod message;
mod single;
mod unresponsive;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cueline_broker::{BrokerError, QueueId};
use lapin::PublisherConfirm;
use lapin::options::{BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

pub(crate) use self::batch::publish_batch;
use self::confirms::Confirms;
pub(crate) use self::confirms::Outcome;
pub(crate) use self::message::{AmqpMessage, SingleMessage};
use self::unresponsive::{Plan, UnresponsiveQueues};
use crate::connection::{OpenChannel, enqueue};
use crate::context::DriverContext;
use crate::error::{CallError, NOT_FOUND, timed_out, transient};
use crate::topology;

/// Batches that are published at the same time. Further batches wait.
const MAX_CONCURRENT_BATCHES: usize = 8;
/// Appends to start logs at the same time. Further ones wait.
const MAX_CONCURRENT_APPENDS: usize = 8;
/// Proofs that are stored at the same time. Further ones wait.
const MAX_CONCURRENT_PROOFS: usize = 8;

/// Publishes batches over idle channels.
pub(crate) struct Publisher {
    context: Arc<DriverContext>,
    slots: Semaphore,
    append_slots: Semaphore,
    proof_slots: Semaphore,
    /// Channels in confirm mode. Each carries one batch at a time, because lapin attaches a returned message to any
    /// confirm of its channel.
    idle: Mutex<Vec<OpenChannel>>,
    unresponsive: UnresponsiveQueues,
}

impl Publisher {
    pub(crate) fn new(context: Arc<DriverContext>) -> Self {
        Self {
            slots: Semaphore::new(MAX_CONCURRENT_BATCHES),
            append_slots: Semaphore::new(MAX_CONCURRENT_APPENDS),
            proof_slots: Semaphore::new(MAX_CONCURRENT_PROOFS),
            idle: Mutex::default(),
            unresponsive: UnresponsiveQueues::new(
                context.options.probe_every,
                context.tasks.clone(),
                context.stop.clone(),
            ),
            context,
        }
    }

    /// Publishes a batch and returns one outcome for each message, in order. After an error, or if the call is dropped,
    /// the server may have accepted some messages.
    pub(crate) async fn publish(
        &self,
        batch: &[AmqpMessage<'_>],
    ) -> Result<Vec<Outcome>, BrokerError> {
        let queues = batch.iter().map(|message| message.queue);
        let plan = self.unresponsive.plan(queues, Instant::now());
        if plan.iter().all(|plan| *plan == Plan::HoldBack) {
            return Ok(vec![Outcome::Unconfirmed; batch.len()]);
        }
        let within = self.context.publishing.request_timeout;
        // The wait for a slot needs a limit, because its holder may wait for a server that does not answer.
        let Ok(Ok(_slot)) = timeout(within, self.slots.acquire()).await else {
            return Err(timed_out("publish", within));
        };
        let channel = self.confirm_channel().await?;
        ensure_unblocked(&channel)?;
        let give_up = Instant::now() + within;
        let sent = match timeout_at(give_up, send(&channel, batch, &plan)).await {
            Ok(sent) => sent.map_err(|e| publish_error(&channel, e))?,
            Err(_) => return Err(timed_out("publish", within)),
        };
        let (probes, waited): (Vec<_>, Vec<_>) = sent
            .into_iter()
            .partition(|(place, _)| plan[*place] == Plan::Probe);
        let reusable = probes.is_empty();
        let mut confirms = Confirms::new(batch.len(), waited);
        confirms
            .wait(self.context.options.unresponsive_after, give_up)
            .await;
        self.mark_unresponsive(batch, probes, &channel);
        if let Some(e) = confirms.failed.take() {
            let error = publish_error(&channel, e);
            if !confirms.any_answered() {
                return Err(error);
            }
        } else if !confirms.open.is_empty() {
            self.resolve_open(batch, &mut confirms, &channel, give_up)
                .await?;
        } else if reusable {
            // A channel with open confirms is not used again: its returned messages could be matched to the next batch.
            self.idle().push(channel);
        }
        Ok(confirms.outcomes)
    }

    /// Decides why some messages have no answer: either the server does not answer, or their queues do not. A call to
    /// the server shows which.
    async fn resolve_open(
        &self,
        batch: &[AmqpMessage<'_>],
        confirms: &mut Confirms,
        channel: &OpenChannel,
        give_up: Instant,
    ) -> Result<(), BrokerError> {
        let ask = channel.amqp.basic_qos(1, BasicQosOptions::default());
        match timeout_at(give_up, ask).await {
            Ok(Ok(())) => {
                confirms.collect_present();
                let open = std::mem::take(&mut confirms.open);
                self.mark_unresponsive(batch, open, channel);
                Ok(())
            }
            _ if confirms.any_answered() => Ok(()),
            Ok(Err(e)) => Err(publish_error(channel, e)),
            Err(_) => Err(timed_out(
                "publish",
                self.context.publishing.request_timeout,
            )),
        }
    }

    fn mark_unresponsive(
        &self,
        batch: &[AmqpMessage<'_>],
        open: impl IntoIterator<Item = (usize, PublisherConfirm)>,
        channel: &OpenChannel,
    ) {
        let mut by_queue: HashMap<&QueueId, Vec<PublisherConfirm>> = HashMap::new();
        for (place, confirm) in open {
            let queue = batch[place].queue;
            by_queue.entry(queue).or_default().push(confirm);
        }
        for (queue, confirms) in by_queue {
            self.unresponsive.mark(queue, confirms, channel.clone());
        }
    }

    async fn confirm_channel(&self) -> Result<OpenChannel, BrokerError> {
        loop {
            let idle = self.idle().pop();
            match idle {
                Some(channel) if channel.is_open() => return Ok(channel),
                Some(_) => {}
                None => break,
            }
        }
        let connection = self.context.publishing.current().await?;
        topology::declare_exchanges(&connection, &self.context.names).await?;
        let channel = connection.open_channel().await?;
        let select = channel.amqp.confirm_select(ConfirmSelectOptions::default());
        channel.answer("ask for confirms", select).await?;
        Ok(channel)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<OpenChannel>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fails while the server does not read what is published.
fn ensure_unblocked(channel: &OpenChannel) -> Result<(), BrokerError> {
    if channel.connection.is_blocked() {
        return Err(transient(
            "failed to publish: RabbitMQ is short of memory or disk and blocks publishing",
        ));
    }
    Ok(())
}

/// The error that ended a publishing channel.
fn publish_error(channel: &OpenChannel, error: lapin::Error) -> BrokerError {
    let failure = CallError::new("publish", error);
    if failure.code == Some(NOT_FOUND) {
        // An exchange was deleted. The next attempt declares it again, if this user may.
        channel.connection.set_exchanges_declared(false);
        return transient(failure.error.to_string()).caused_by(failure.error);
    }
    failure.error
}

/// Queues for the socket all messages that are not held back, then waits until they are written. Returns the confirms
/// with the places of their messages.
async fn send(
    channel: &OpenChannel,
    batch: &[AmqpMessage<'_>],
    plan: &[Plan],
) -> lapin::Result<Vec<(usize, PublisherConfirm)>> {
    let mandatory = BasicPublishOptions {
        mandatory: true,
        ..BasicPublishOptions::default()
    };
    let mut calls = Vec::with_capacity(batch.len());
    for (place, message) in batch.iter().enumerate() {
        if plan[place] == Plan::HoldBack {
            continue;
        }
        let properties = message.properties.clone();
        let call = enqueue(channel.amqp.basic_publish(
            message.exchange.clone(),
            message.routing_key.clone(),
            mandatory,
            &message.payload,
            properties.with_correlation_id(place.to_string().into()),
        ));
        calls.push((place, call));
    }
    let mut confirms = Vec::with_capacity(calls.len());
    for (place, call) in calls {
        confirms.push((place, call.await?));
    }
    Ok(confirms)
}
