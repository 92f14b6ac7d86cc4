//! Signs of life.

use std::sync::Arc;

use bytes::Bytes;
use cueline_broker::Channel;
use cueline_protocol::{Beat, VERSION, encode};

use crate::builder::Settings;
use crate::core::Gauges;

/// Announces beats.
pub(crate) struct Beats {
    pub(crate) settings: Arc<Settings>,
    pub(crate) gauges: Arc<Gauges>,
}

impl Beats {
    /// Announces one every `beat_every`, and one at once when the drain begins, until it is dropped.
    pub(crate) async fn run(self) {
        loop {
            self.announce(false).await;
            tokio::select! {
                () = tokio::time::sleep(self.settings.beat_every) => {}
                () = self.gauges.drain_began() => {}
            }
        }
    }

    /// Announces one now. A failure is only noted: the next one follows soon.
    pub(crate) async fn announce(&self, gone: bool) {
        let held = self.gauges.held();
        let beat = Beat {
            v: VERSION,
            group: self.settings.group.clone(),
            name: self.settings.name.clone(),
            incarnation: self.settings.incarnation.clone(),
            capabilities: self.settings.handlers.capabilities(),
            capacity: u32::try_from(self.settings.concurrency).unwrap_or(u32::MAX),
            held: held as u64,
            running: self.gauges.running() as u64,
            draining: gone || self.gauges.is_draining(),
            gone,
        };
        let payload = Bytes::from(encode(&beat));
        let sent = self.settings.broker.announce(&Channel::Heartbeats, payload);
        if let Err(error) = sent.await {
            tracing::warn!(%error, "a sign of life was not sent");
        }
    }
}
