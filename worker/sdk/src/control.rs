//! The control channel: orders from schedulers, and the worker's own echoes.

use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Announcement, BrokerError, Channel, Listener};
use cueline_model::StoreId;
use cueline_protocol::origin::Purpose;
use cueline_protocol::{Control, HoldingsReply, Incarnation, decode, encode};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::identity::{AttemptKey, RunKey};
use crate::lease::{BrokerLease, LeaseTimings};
use crate::settings::Settings;
use crate::status::WorkerStatus;

/// The most attempts that one query may name. The reply says nothing about the rest.
const MAX_QUERIED: usize = 10_000;
/// How often the subscription is checked, without a lease.
const CHECK_EVERY: Duration = Duration::from_secs(10);
/// The pause before a new subscription.
const RESUBSCRIBE_PAUSE: Duration = Duration::from_millis(500);

/// An order from a scheduler.
#[derive(Debug)]
pub(crate) enum Order {
    /// End this run.
    Cancel(RunKey),
    Holdings(HoldingsQuery),
}

/// Asks which of these attempts are in the journal.
#[derive(Debug)]
pub(crate) struct HoldingsQuery {
    pub(crate) store: StoreId,
    pub(crate) attempts: Vec<AttemptKey>,
    pub(crate) nonce: String,
    pub(crate) reply_to: Channel,
}

/// Subscribes to the control channel.
pub(crate) async fn listen(settings: &Settings) -> Result<Listener, BrokerError> {
    settings.broker.listen(&settings.control_channel()).await
}

/// Passes orders to the event loop until it is dropped.
///
/// It never waits for the event loop. The echoes behind an order would wait as well, and a busy worker would lose its
/// lease.
pub(crate) async fn run(
    settings: Arc<Settings>,
    lease: Arc<BrokerLease>,
    status: Arc<WorkerStatus>,
    mut listener: Listener,
    orders: mpsc::Sender<Order>,
) {
    let timings = settings.lease_timings.as_ref();
    let check_every = timings.map_or(CHECK_EVERY, LeaseTimings::resubscribe_after);
    let mut dropping = false;
    loop {
        match tokio::time::timeout(check_every, listener.recv()).await {
            Ok(Some(announcement)) => {
                let Some(order) = parse(&announcement, &settings, &lease, &status) else {
                    continue;
                };
                match orders.try_send(order) {
                    Ok(()) => dropping = false,
                    Err(TrySendError::Closed(_)) => return,
                    Err(TrySendError::Full(_)) if dropping => {}
                    Err(TrySendError::Full(_)) => {
                        dropping = true;
                        tracing::warn!(
                            "too many orders are waiting; some were dropped, and schedulers will repeat them"
                        );
                    }
                }
                continue;
            }
            Ok(None) => tracing::warn!("the control channel was closed; subscribing again"),
            Err(_) if lease.is_fenced() => tracing::warn!(
                "no echo returned on the control channel: either the broker is out of reach, or the worker's user may not both publish and subscribe \
                 to this channel; subscribing again"
            ),
            Err(_) => continue,
        }
        tokio::time::sleep(RESUBSCRIBE_PAUSE).await;
        match listen(&settings).await {
            Ok(new) => listener = new,
            Err(error) => {
                tracing::warn!(%error, "failed to subscribe to the control channel; trying again");
            }
        }
    }
}

/// Parses the order in a message. Echoes are passed to the lease, name conflicts to the status, and answers about the
/// worker's key to its origin.
fn parse(
    announcement: &Announcement,
    settings: &Settings,
    lease: &BrokerLease,
    status: &WorkerStatus,
) -> Option<Order> {
    match decode::<Control>(&announcement.payload) {
        Ok(Control::Cancel { store, run, .. }) => Some(Order::Cancel(RunKey { store, run })),
        // The worker that has the name answers for it.
        Ok(Control::Holdings { .. }) if status.is_refused() => None,
        Ok(Control::Holdings {
            store,
            nonce,
            attempts,
            ..
        }) => {
            let attempts = attempts.into_iter().take(MAX_QUERIED);
            Some(Order::Holdings(HoldingsQuery {
                store,
                attempts: attempts.map(|id| AttemptKey::new(store, id)).collect(),
                nonce,
                reply_to: announcement.reply_to.clone()?,
            }))
        }
        Ok(Control::Echo {
            incarnation,
            number,
            ..
        }) => {
            lease.echo_returned(&incarnation, number);
            None
        }
        Ok(Control::NameConflict { kept, refused, .. }) => {
            take_name_conflict(kept, &refused, settings, status);
            None
        }
        Ok(Control::Enrolled { key, .. }) => {
            settings.origin.take_acceptance(&key);
            None
        }
        Ok(Control::NotEnrolled { key, reason, .. }) => {
            settings.origin.take_refusal(&key, &reason);
            None
        }
        Err(error) => {
            tracing::warn!(%error, "ignored a control message that cannot be parsed");
            None
        }
    }
}

/// Two workers have this worker's name. The refused one stops; schedulers repeat the message until it does.
fn take_name_conflict(
    kept: Incarnation,
    refused: &Incarnation,
    settings: &Settings,
    status: &WorkerStatus,
) {
    let executor = &settings.executor;
    if refused.incarnation == settings.incarnation && !status.is_refused() {
        tracing::error!(
            group = %executor.group,
            executor = %executor.name,
            other_host = kept.process.host.as_deref().unwrap_or("unknown"),
            other_pid = kept.process.pid,
            "another worker runs under this name and started earlier; this one stops. Give each worker its own --name"
        );
        status.refuse(kept.process);
    } else if kept.incarnation == settings.incarnation && status.warn_of_rival(&refused.incarnation)
    {
        tracing::warn!(
            group = %executor.group,
            executor = %executor.name,
            other_host = refused.process.host.as_deref().unwrap_or("unknown"),
            other_pid = refused.process.pid,
            "another worker was started under this name and is refused. Give each worker its own --name"
        );
    }
}

/// Answers a [`HoldingsQuery`].
pub(crate) async fn reply(settings: &Settings, to: &Channel, reply: HoldingsReply) {
    let payload = settings.origin.seal(Purpose::Holdings, encode(&reply));
    let sent = settings.broker.announce(to, payload.into());
    if let Err(error) = sent.await {
        tracing::warn!(%error, "failed to answer a holdings query; schedulers will repeat it");
    }
}
