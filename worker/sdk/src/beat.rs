//! Signs of life, each with an echo by which the worker knows that it has reached the broker.

use std::sync::Arc;
use std::time::Duration;

use cueline_broker::Channel;
use cueline_model::{ExecutorId, Heartbeat};
use cueline_protocol::{HeartbeatMessage, VERSION, Versioned, encode};
use serde::Serialize;
use tokio::time::{sleep, timeout};

use crate::contact::Contact;
use crate::control;
use crate::gauges::Gauges;
use crate::settings::{Limits, Settings};

/// How long the sending of one message may take where nothing depends on it.
const SEND_LIMIT: Duration = Duration::from_secs(2);
/// How soon a worker on which nothing depends tries again.
const SEARCH_EVERY: Duration = Duration::from_secs(1);

/// What a beat says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sign {
    /// It is about to take work, once its queue is there.
    Joins,
    /// It is there.
    Lives,
    /// It has stopped, in order.
    Leaves,
}

/// Announces beats.
pub(crate) struct Beats {
    pub(crate) settings: Arc<Settings>,
    pub(crate) gauges: Arc<Gauges>,
    pub(crate) contact: Arc<Contact>,
}

impl Beats {
    /// Announces one every `beat_every`, more often while no echo comes back, and one at once when the drain begins or contact is back, until it is
    /// dropped.
    pub(crate) async fn run(self) {
        loop {
            self.announce(Sign::Lives).await;
            tokio::select! {
                () = self.pause() => {}
                () = self.gauges.drain_began() => {}
                () = self.contact.beat_wanted() => {}
            }
        }
    }

    async fn pause(&self) {
        let every = self.settings.beat_every;
        let limits = self.settings.limits.as_ref();
        let search = every.min(limits.map_or(SEARCH_EVERY, Limits::search_every));
        sleep(search).await;
        if self.contact.is_answered() {
            sleep(every.saturating_sub(search)).await;
        }
    }

    /// Announces one now. A failure is only noted: the next one follows soon.
    pub(crate) async fn announce(&self, sign: Sign) {
        let held = self.gauges.held();
        let idle = sign != Sign::Lives || self.gauges.is_draining() || self.contact.is_fenced();
        let heartbeat = Heartbeat {
            executor: ExecutorId {
                group: self.settings.group.clone(),
                name: self.settings.name.clone(),
            },
            incarnation: self.settings.incarnation.clone(),
            capabilities: self.settings.handlers.capabilities(),
            capacity: u32::try_from(self.settings.concurrency).unwrap_or(u32::MAX),
            held: held as u64,
            running: self.gauges.running() as u64,
            draining: idle,
            gone: sign == Sign::Leaves,
        };
        let beat = HeartbeatMessage {
            v: VERSION,
            heartbeat,
        };
        // The instant that an echo proves is the one before the beat is sent.
        let echo = match sign {
            Sign::Lives => self.contact.next_echo(self.settings.clock.now_ms()),
            Sign::Joins | Sign::Leaves => None,
        };
        if self.send(&Channel::Heartbeats, &beat).await
            && let Some(echo) = echo
        {
            self.send(&control::channel(&self.settings), &echo).await;
        }
    }

    async fn send(&self, channel: &Channel, message: &(impl Serialize + Versioned)) -> bool {
        let sending = self
            .settings
            .broker
            .announce(channel, encode(message).into());
        let limits = self.settings.limits.as_ref();
        match timeout(limits.map_or(SEND_LIMIT, Limits::send_within), sending).await {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => tracing::warn!(%error, "a sign of life was not sent"),
            Err(_) => tracing::warn!("a sign of life was not sent in time"),
        }
        false
    }
}
