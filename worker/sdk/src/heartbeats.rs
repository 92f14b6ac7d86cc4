//! Sends heartbeats, each followed by the echo that renews the lease.

use std::sync::Arc;
use std::time::Duration;

use cueline_broker::Channel;
use cueline_model::Heartbeat;
use cueline_protocol::{HeartbeatMessage, VERSION, Versioned, encode};
use serde::Serialize;
use tokio::time::{sleep, timeout};

use crate::lease::{BrokerLease, LeaseTimings};
use crate::settings::Settings;
use crate::status::WorkerStatus;

/// The longest time that sending one message may take, without a lease.
const SEND_TIMEOUT: Duration = Duration::from_secs(2);

/// The phase of the worker's life in which a heartbeat is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeartbeatKind {
    /// The worker waits for its queue.
    Starting,
    Running,
    /// The worker has drained and stopped.
    Stopped,
}

/// Sends the worker's heartbeats.
pub(crate) struct Heartbeats {
    pub(crate) settings: Arc<Settings>,
    pub(crate) status: Arc<WorkerStatus>,
    pub(crate) lease: Arc<BrokerLease>,
}

impl Heartbeats {
    /// Sends a heartbeat every `heartbeat_every`, and more often while no echo returns. Also sends one at once when the
    /// drain begins or the lease is renewed. Never returns.
    pub(crate) async fn run(self) {
        loop {
            self.send(HeartbeatKind::Running).await;
            tokio::select! {
                () = self.pause() => {}
                () = self.status.drain_began() => {}
                () = self.lease.heartbeat_requested() => {}
            }
        }
    }

    async fn pause(&self) {
        let every = self.settings.heartbeat_every;
        let Some(timings) = &self.settings.lease_timings else {
            return sleep(every).await;
        };
        let retry = every.min(timings.retry_every());
        sleep(retry).await;
        if self.lease.is_newest_echo_returned() {
            sleep(every.saturating_sub(retry)).await;
        }
    }

    /// Sends one heartbeat. A failure is only logged: the next heartbeat follows soon.
    pub(crate) async fn send(&self, kind: HeartbeatKind) {
        // The echo is made before the heartbeat is sent, because its time becomes the time of the lease's proof.
        let echo = match kind {
            HeartbeatKind::Running => self.lease.next_echo(self.settings.clock.now_ms()),
            HeartbeatKind::Starting | HeartbeatKind::Stopped => None,
        };
        let message = HeartbeatMessage {
            v: VERSION,
            heartbeat: self.heartbeat(kind),
        };
        if self.announce(&Channel::Heartbeats, &message).await
            && let Some(echo) = echo
        {
            self.announce(&self.settings.control_channel(), &echo).await;
        }
    }

    fn heartbeat(&self, kind: HeartbeatKind) -> Heartbeat {
        let accepts = kind == HeartbeatKind::Running
            && !self.status.is_draining()
            && !self.status.is_journal_unusable()
            && !self.lease.is_fenced();
        Heartbeat {
            executor: self.settings.executor.clone(),
            incarnation: self.settings.incarnation.clone(),
            capabilities: self.settings.handlers.capabilities(),
            capacity: u32::try_from(self.settings.concurrency).unwrap_or(u32::MAX),
            held: self.status.held() as u64,
            running: self.status.running() as u64,
            draining: !accepts,
            gone: kind == HeartbeatKind::Stopped,
        }
    }

    async fn announce(&self, channel: &Channel, message: &(impl Serialize + Versioned)) -> bool {
        let sending = self
            .settings
            .broker
            .announce(channel, encode(message).into());
        let timings = self.settings.lease_timings.as_ref();
        let limit = timings.map_or(SEND_TIMEOUT, LeaseTimings::send_timeout);
        match timeout(limit, sending).await {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => {
                tracing::warn!(%error, "failed to send a heartbeat; the next one follows");
            }
            Err(_) => tracing::warn!(
                timeout_ms = limit.as_millis(),
                "a heartbeat was not sent in time; the next one follows"
            ),
        }
        false
    }
}
