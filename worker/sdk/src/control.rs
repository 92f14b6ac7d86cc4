//! Orders from the schedulers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Channel, Listener};
use cueline_model::RunId;
use cueline_protocol::{Control, ControlReply, Holding, VERSION, decode, encode};
use tokio::sync::mpsc;

use crate::builder::Settings;

/// The most attempts that one question may ask for; of the rest nothing is said.
const MAX_ASKED: usize = 10_000;

/// An order that was understood.
#[derive(Debug)]
pub(crate) enum Order {
    /// End this run.
    Cancel(RunId),
    /// Which of these are in the journal?
    Holdings(Vec<Holding>, Channel),
}

fn channel(settings: &Settings) -> Channel {
    Channel::Control {
        group: settings.group.to_string(),
        executor: settings.name.to_string(),
    }
}

/// Starts to listen.
pub(crate) async fn listen(settings: &Settings) -> Result<Listener, cueline_broker::BrokerError> {
    settings.broker.listen(&channel(settings)).await
}

/// Hands orders to the core until it is dropped.
pub(crate) async fn run(
    settings: Arc<Settings>,
    mut listener: Listener,
    core: mpsc::Sender<Order>,
) {
    loop {
        while let Some(announcement) = listener.recv().await {
            let order = match decode::<Control>(&announcement.payload) {
                Ok(Control::Cancel { run, .. }) => Order::Cancel(run),
                Ok(Control::Holdings { mut runs, .. }) => {
                    let Some(reply_to) = announcement.reply_to else {
                        continue;
                    };
                    runs.truncate(MAX_ASKED);
                    Order::Holdings(runs, reply_to)
                }
                Ok(Control::Echo { .. }) => continue,
                Err(error) => {
                    tracing::warn!(%error, "an order was not understood and is ignored");
                    continue;
                }
            };
            if core.send(order).await.is_err() {
                return;
            }
        }
        tracing::warn!("orders are no longer heard; listening anew");
        tokio::time::sleep(Duration::from_millis(500)).await;
        match listen(&settings).await {
            Ok(anew) => listener = anew,
            Err(error) => tracing::warn!(%error, "listening failed; trying again"),
        }
    }
}

/// Answers [`Order::Holdings`].
pub(crate) async fn reply(settings: &Settings, to: &Channel, held: Vec<Holding>) {
    let reply = ControlReply { v: VERSION, held };
    let sent = settings.broker.announce(to, Bytes::from(encode(&reply)));
    if let Err(error) = sent.await {
        tracing::warn!(%error, "an answer was not sent; it will be asked again");
    }
}
