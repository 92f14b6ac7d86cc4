//! Orders from the schedulers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Announcement, Channel, Listener};
use cueline_model::{AttemptId, RunId, StoreId};
use cueline_protocol::{Control, HoldingsReply, VERSION, decode, encode};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::contact::Contact;
use crate::settings::{Limits, Settings};

/// The most attempts that one question may ask for; of the rest nothing is said.
const MAX_ASKED: usize = 10_000;

/// How long it is listened before it is looked again whether the listening is broken, where nothing depends on contact.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// An order that was understood.
#[derive(Debug)]
pub(crate) enum Order {
    /// End this run.
    Cancel(StoreId, RunId),
    /// Which of these are in the journal?
    Holdings(StoreId, Vec<AttemptId>, Channel),
}

/// Where orders come, and echoes.
pub(crate) fn channel(settings: &Settings) -> Channel {
    Channel::Control {
        group: settings.group.to_string(),
        executor: settings.name.to_string(),
    }
}

/// Starts to listen.
pub(crate) async fn listen(settings: &Settings) -> Result<Listener, cueline_broker::BrokerError> {
    settings.broker.listen(&channel(settings)).await
}

/// Hands orders to the core until it is dropped. Never waits for it: the echoes behind an order would wait as well, and what could not take orders in
/// time would also be without contact.
pub(crate) async fn run(
    settings: Arc<Settings>,
    contact: Arc<Contact>,
    mut listener: Listener,
    core: mpsc::Sender<Order>,
) {
    let limits = settings.limits.as_ref();
    let deaf_after = limits.map_or(LOOK_EVERY, Limits::deaf_after);
    let mut dropping = false;
    loop {
        match tokio::time::timeout(deaf_after, listener.recv()).await {
            Ok(Some(announcement)) => {
                let Some(order) = read(announcement, &contact) else {
                    continue;
                };
                match core.try_send(order) {
                    Ok(()) => dropping = false,
                    Err(TrySendError::Closed(_)) => return,
                    Err(TrySendError::Full(_)) if dropping => {}
                    Err(TrySendError::Full(_)) => {
                        dropping = true;
                        tracing::warn!(
                            "too many orders wait; some are dropped, and will come again"
                        );
                    }
                }
                continue;
            }
            Ok(None) => tracing::warn!("orders are no longer heard; listening anew"),
            Err(_) if contact.is_fenced() => tracing::warn!(
                "what this worker sends to its own control channel does not come back: either the broker is out of reach, or the worker's user \
                 may not both send to and hear that channel; listening anew"
            ),
            Err(_) => continue,
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        match listen(&settings).await {
            Ok(anew) => listener = anew,
            Err(error) => tracing::warn!(%error, "listening failed; trying again"),
        }
    }
}

fn read(announcement: Announcement, contact: &Contact) -> Option<Order> {
    match decode::<Control>(&announcement.payload) {
        Ok(Control::Cancel { store, run, .. }) => Some(Order::Cancel(store, run)),
        Ok(Control::Holdings {
            store,
            mut attempts,
            ..
        }) => {
            let reply_to = announcement.reply_to?;
            attempts.truncate(MAX_ASKED);
            Some(Order::Holdings(store, attempts, reply_to))
        }
        Ok(Control::Echo {
            incarnation,
            number,
            ..
        }) => {
            contact.hear(&incarnation, number);
            None
        }
        Err(error) => {
            tracing::warn!(%error, "an order was not understood and is ignored");
            None
        }
    }
}

/// Answers [`Order::Holdings`].
pub(crate) async fn reply(settings: &Settings, to: &Channel, held: Vec<AttemptId>) {
    let reply = HoldingsReply { v: VERSION, held };
    let sent = settings.broker.announce(to, Bytes::from(encode(&reply)));
    if let Err(error) = sent.await {
        tracing::warn!(%error, "an answer was not sent; it will be asked again");
    }
}
