//! Publishing with confirms: a batch goes out without waiting in between, then each message is confirmed, refused or returned.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use cueline_broker::{BrokerError, ErrorKind};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::error::{NOT_FOUND, code, failed, late};
use crate::link::{Link, Up, forget_exchanges};
use crate::names::Names;
use crate::started::Started;
use crate::topology;

/// Batches under way at the same time; further ones wait for their turn.
const AT_ONCE: usize = 8;

/// A message is written to disk.
const PERSISTENT: u8 = 2;

/// A message on its way.
pub(crate) struct Parcel {
    pub(crate) exchange: ShortString,
    pub(crate) key: ShortString,
    pub(crate) properties: BasicProperties,
    pub(crate) payload: Bytes,
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// On disk.
    Confirmed,
    /// No queue is bound for it.
    Unroutable,
    /// Its queue did not take it.
    Rejected,
}

/// See the module.
pub(crate) struct Publisher {
    link: Arc<Link>,
    names: Names,
    turns: Semaphore,
    idle: Mutex<Vec<Confirming>>,
}

/// A channel on which nothing is under way.
struct Confirming {
    up: Arc<Up>,
    channel: Channel,
}

impl Publisher {
    pub(crate) fn new(link: Arc<Link>, names: Names) -> Self {
        Self {
            link,
            names,
            turns: Semaphore::new(AT_ONCE),
            idle: Mutex::default(),
        }
    }

    /// What became of each message, in the order given. After an error, or when it is dropped half-way, some may have been taken.
    pub(crate) async fn publish(&self, parcels: &[Parcel]) -> Result<Vec<Sent>, BrokerError> {
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
        let sent = match timeout(within, send(&lane.channel, parcels)).await {
            Ok(Ok(sent)) => sent,
            Ok(Err(e)) if code(&e) == Some(NOT_FOUND) => {
                // An exchange is gone. It is made again for the next try, by whoever may.
                forget_exchanges(&lane.up);
                let gone = format!("failed to publish: {e}");
                return Err(BrokerError::new(ErrorKind::Transient, gone).caused_by(e));
            }
            Ok(Err(e)) => return Err(failed("publish", e)),
            Err(_) => return Err(late("publish", within)),
        };
        // Only a channel that owes nothing is used again: what it returned could be taken for another batch's.
        self.idle().push(lane);
        Ok(sent)
    }

    async fn lane(&self) -> Result<Confirming, BrokerError> {
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
        Ok(Confirming { up, channel })
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Confirming>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn send(channel: &Channel, parcels: &[Parcel]) -> lapin::Result<Vec<Sent>> {
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
    let mut sent = vec![Sent::Confirmed; parcels.len()];
    let mut returned = Vec::new();
    for (place, confirm) in confirms.into_iter().enumerate() {
        let back = match confirm.await? {
            Confirmation::Ack(back) => back,
            Confirmation::Nack(back) => {
                sent[place] = Sent::Rejected;
                back
            }
            Confirmation::NotRequested => None,
        };
        returned.extend(back);
    }
    // lapin hands a returned message over with any confirm of its channel, not with its own.
    for back in returned {
        let properties = &back.delivery.properties;
        let place = properties
            .correlation_id()
            .as_ref()
            .map(ShortString::as_str);
        if let Some(place) = place.and_then(|place| place.parse::<usize>().ok())
            && let Some(sent) = sent.get_mut(place)
        {
            *sent = Sent::Unroutable;
        }
    }
    Ok(sent)
}
