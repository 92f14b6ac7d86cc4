//! Publishing with confirms: a batch goes out without waiting in between, then each message is confirmed, refused or returned, or its queue
//! does not answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{BrokerError, ErrorKind, QueueId};
use lapin::options::{BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, PublisherConfirm};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::confirms::{Confirming, Confirms, Sent};
use crate::error::{NOT_FOUND, code, failed, late};
use crate::link::{Link, forget_exchanges};
use crate::names::Names;
use crate::silence::{Chosen, Silence};
use crate::started::Started;
use crate::topology;

/// Batches under way at the same time; further ones wait for their turn.
const AT_ONCE: usize = 8;

/// A message is written to disk.
const PERSISTENT: u8 = 2;

/// A message on its way.
pub(crate) struct Parcel<'a> {
    pub(crate) queue: &'a QueueId,
    pub(crate) exchange: ShortString,
    pub(crate) key: ShortString,
    pub(crate) properties: BasicProperties,
    pub(crate) payload: Bytes,
}

/// See the module.
pub(crate) struct Publisher {
    link: Arc<Link>,
    names: Names,
    turns: Semaphore,
    idle: Mutex<Vec<Arc<Confirming>>>,
    silence: Silence,
    /// A queue that confirms nothing for so long while the server answers is silent.
    quiet: Duration,
}

impl Publisher {
    pub(crate) fn new(
        link: Arc<Link>,
        names: Names,
        quiet: Duration,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        Self {
            link,
            names,
            turns: Semaphore::new(AT_ONCE),
            idle: Mutex::default(),
            silence: Silence::new(tasks, stop),
            quiet,
        }
    }

    /// What became of each message, in the order given. After an error, or when it is dropped half-way, some may have been taken.
    pub(crate) async fn publish(&self, parcels: &[Parcel<'_>]) -> Result<Vec<Sent>, BrokerError> {
        let queues = parcels.iter().map(|parcel| parcel.queue);
        let Some(Chosen { going, probes }) = self.silence.choose(queues, Instant::now()) else {
            let all: Vec<&Parcel<'_>> = parcels.iter().collect();
            return self.publish_all(&all, 0).await;
        };
        let places: Vec<usize> = probes.iter().chain(&going).copied().collect();
        let mut all = vec![Sent::Unanswered; parcels.len()];
        if places.is_empty() {
            return Ok(all);
        }
        let chosen: Vec<&Parcel<'_>> = places.iter().map(|place| &parcels[*place]).collect();
        let sent = self.publish_all(&chosen, probes.len()).await?;
        for (place, sent) in places.into_iter().zip(sent) {
            all[place] = sent;
        }
        Ok(all)
    }

    /// The first `probes` of them are not waited for.
    async fn publish_all(
        &self,
        parcels: &[&Parcel<'_>],
        probes: usize,
    ) -> Result<Vec<Sent>, BrokerError> {
        let within = self.link.request_timeout();
        // The turn too: whoever had it may be waiting for a server that does not answer.
        let turn = timeout(within, self.turns.acquire()).await;
        let Ok(Ok(_turn)) = turn else {
            return Err(late("publish", within));
        };
        let lane = self.lane().await?;
        if lane.up.is_blocked() {
            let blocked =
                "failed to publish: RabbitMQ takes no messages, it is short of memory or disk";
            return Err(BrokerError::new(ErrorKind::Transient, blocked));
        }
        let give_up = Instant::now() + within;
        let mut confirms = match timeout_at(give_up, send(&lane.channel, parcels)).await {
            Ok(Ok(confirms)) => Confirms::new(confirms),
            Ok(Err(e)) => return Err(broken(&lane, e)),
            Err(_) => return Err(late("publish", within)),
        };
        let probing: Vec<_> = confirms.open.drain(..probes).collect();
        confirms.wait(self.quiet, give_up).await;
        self.leave_aside(parcels, probing, &lane);
        if let Some(e) = confirms.failed.take() {
            let error = broken(&lane, e);
            return if confirms.any() {
                Ok(confirms.sent)
            } else {
                Err(error)
            };
        }
        if !confirms.open.is_empty() {
            // Either it is the server that does not answer, or it is these queues.
            let asked = lane.channel.basic_qos(1, BasicQosOptions::default());
            match timeout_at(give_up, asked).await {
                Ok(Ok(())) => {
                    confirms.look();
                    let open = std::mem::take(&mut confirms.open);
                    self.leave_aside(parcels, open, &lane);
                }
                _ if confirms.any() => {}
                Ok(Err(e)) => return Err(broken(&lane, e)),
                Err(_) => return Err(late("publish", within)),
            }
        } else if probes == 0 {
            // Only a channel that owes nothing is used again: what it returned could be taken for another batch's.
            self.idle().push(lane);
        }
        Ok(confirms.sent)
    }

    /// The queues of these do not answer.
    fn leave_aside(
        &self,
        parcels: &[&Parcel<'_>],
        open: impl IntoIterator<Item = (usize, PublisherConfirm)>,
        over: &Arc<Confirming>,
    ) {
        let mut by_queue: HashMap<&QueueId, Vec<PublisherConfirm>> = HashMap::new();
        for (place, confirm) in open {
            let queue = parcels[place].queue;
            by_queue.entry(queue).or_default().push(confirm);
        }
        for (queue, confirms) in by_queue {
            self.silence.fell(queue, confirms, Arc::clone(over));
        }
    }

    async fn lane(&self) -> Result<Arc<Confirming>, BrokerError> {
        loop {
            let idle = self.idle().pop();
            match idle {
                Some(lane) if lane.up.is_open() && lane.channel.status().connected() => {
                    return Ok(lane);
                }
                Some(_) => {}
                None => break,
            }
        }
        let up = self.link.up().await?;
        topology::exchanges(&up, &self.names).await?;
        let channel = up.channel().await?;
        let select = channel.confirm_select(ConfirmSelectOptions::default());
        up.within("ask for confirms", select).await?;
        Ok(Arc::new(Confirming { up, channel }))
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Confirming>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The channel has ended.
fn broken(lane: &Confirming, error: lapin::Error) -> BrokerError {
    if code(&error) == Some(NOT_FOUND) {
        // An exchange is gone. It is made again for the next try, by whoever may.
        forget_exchanges(&lane.up);
        let gone = format!("failed to publish: {error}");
        return BrokerError::new(ErrorKind::Transient, gone).caused_by(error);
    }
    failed("publish", error)
}

/// Puts all in line for the socket.
async fn send(channel: &Channel, parcels: &[&Parcel<'_>]) -> lapin::Result<Vec<PublisherConfirm>> {
    let mandatory = BasicPublishOptions {
        mandatory: true,
        ..BasicPublishOptions::default()
    };
    let mut started = Vec::with_capacity(parcels.len());
    for (place, parcel) in parcels.iter().enumerate() {
        let properties = parcel
            .properties
            .clone()
            .with_delivery_mode(PERSISTENT)
            .with_correlation_id(place.to_string().into());
        started.push(Started::new(channel.basic_publish(
            parcel.exchange.clone(),
            parcel.key.clone(),
            mandatory,
            &parcel.payload,
            properties,
        )));
    }
    let mut confirms = Vec::with_capacity(parcels.len());
    for publish in started {
        confirms.push(publish.end().await?);
    }
    Ok(confirms)
}
