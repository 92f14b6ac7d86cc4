//! Settings of the driver, and its fixed limits on payloads and batches.

use std::path::PathBuf;
use std::time::Duration;

use cueline_broker::{BrokerError, DeadLetterSeal};

use crate::error::permanent;

/// A certificate that identifies the driver to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate and its chain, as PEM.
    pub certificate: PathBuf,
    /// Its private key, as PEM (PKCS#8).
    pub key: PathBuf,
}

/// Settings of a [`RabbitDriver`](crate::RabbitDriver).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RabbitOptions {
    /// The prefix of all queue and exchange names; `cueline` by default. 1 to 60 letters, digits, `-`, `_` and `.`.
    pub prefix: String,
    /// A delivery that is unsettled for this long returns to its queue; 30 s by default, at most 15 min. The server's
    /// own limit is 30 min.
    pub ack_wait: Duration,
    /// The most messages that wait in one queue; 1,000,000 by default. Beyond it the queue refuses messages as full.
    /// The server counts late and still accepts messages in flight. An existing queue keeps its limit.
    pub queue_limit: u64,
    /// How often the server delivers a trigger before it dead-letters it; 10,000 by default. Lost connections and idle
    /// consumers count as deliveries, so the limit is far above those of callers. Other queues have no such limit.
    pub delivery_limit: u32,
    /// How many servers of a cluster hold each queue; the server's own default (5 in 3.10) if `None`. An existing queue
    /// keeps its servers.
    pub replicas: Option<u16>,
    /// The driver stops consuming a queue after this long without a fetch, and undelivered messages return to the
    /// queue; 5 s by default.
    pub idle_after: Duration,
    /// The longest wait for the connection, and for an answer of the server; 10 s by default. The call then fails with
    /// a transient error.
    pub request_timeout: Duration,
    /// A queue is unresponsive if it confirms nothing for this long while the server answers; 3 s by default. The
    /// driver then holds back its messages and reports them as unknown at once.
    pub unresponsive_after: Duration,
    /// The interval at which the driver publishes one message to an unresponsive queue; 30 s by default. The queue may
    /// have lost the earlier messages.
    pub probe_every: Duration,
    /// The interval of AMQP heartbeats, in whole seconds; 10 s by default. A connection ends after two intervals
    /// without one.
    pub heartbeat: Duration,
    /// The longest wait between two attempts to connect; 5 s by default. The first wait is 100 ms, and each one
    /// doubles.
    pub reconnect_wait: Duration,
    /// The certificates of trusted authorities (`amqps`), as PEM; those of the system by default.
    pub ca_file: Option<PathBuf>,
    /// The client certificate, for a server that asks for one; none by default.
    pub client_certificate: Option<ClientCertificate>,
    /// The name of the connections in the server's lists; `cueline` by default.
    pub connection_name: String,
    /// Seals the dead letters of this process; `None` by default, for schedulers.
    pub seal_dead_letters: Option<DeadLetterSeal>,
}

impl Default for RabbitOptions {
    fn default() -> Self {
        Self {
            prefix: "cueline".into(),
            ack_wait: Duration::from_secs(30),
            queue_limit: 1_000_000,
            delivery_limit: 10_000,
            replicas: None,
            idle_after: Duration::from_secs(5),
            request_timeout: Duration::from_secs(10),
            unresponsive_after: Duration::from_secs(3),
            probe_every: Duration::from_secs(30),
            heartbeat: Duration::from_secs(10),
            reconnect_wait: Duration::from_secs(5),
            ca_file: None,
            client_certificate: None,
            connection_name: "cueline".into(),
            seal_dead_letters: None,
        }
    }
}

/// The longest time that a delivery stays unsettled. After 30 min the server would close the channel and requeue all
/// deliveries on it.
pub(crate) const MAX_UNSETTLED_TIME: Duration = Duration::from_mins(15);

/// The largest payload, in bytes. RabbitMQ 4 accepts 16 MiB; the limit leaves room for the headers.
pub(crate) const MAX_PAYLOAD_BYTES: usize = 8 << 20;

/// The most messages in one `publish`.
pub(crate) const MAX_BATCH: usize = 5_000;

impl RabbitOptions {
    /// Rejects settings with which no queue can work.
    pub(crate) fn validate(&self) -> Result<(), BrokerError> {
        let wrong = |what: &str| Err(permanent(format!("failed to open the broker: {what}")));
        if self.ack_wait.is_zero() || self.ack_wait > MAX_UNSETTLED_TIME {
            return wrong("`ack_wait` must be longer than 0 and at most 15 min");
        }
        if self.idle_after.is_zero()
            || self.request_timeout.is_zero()
            || self.unresponsive_after.is_zero()
            || self.probe_every.is_zero()
        {
            return wrong(
                "`idle_after`, `request_timeout`, `unresponsive_after` and `probe_every` must be longer than 0",
            );
        }
        if !(1..=i64::MAX as u64).contains(&self.queue_limit)
            || !(1..=i32::MAX as u32).contains(&self.delivery_limit)
        {
            return wrong(
                "`queue_limit` and `delivery_limit` must be at least 1, and fit into 63 and 31 bits",
            );
        }
        if !(1..=600).contains(&self.heartbeat.as_secs()) {
            return wrong("`heartbeat` must be 1 s to 10 min");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_unusable_settings_are_rejected() {
        RabbitOptions::default().validate().unwrap();
        let wrong: [fn(&mut RabbitOptions); 6] = [
            |o| o.ack_wait = Duration::ZERO,
            |o| o.ack_wait = MAX_UNSETTLED_TIME * 2,
            |o| o.delivery_limit = 0,
            |o| o.queue_limit = u64::MAX,
            |o| o.unresponsive_after = Duration::ZERO,
            |o| o.heartbeat = Duration::from_millis(500),
        ];
        for spoil in wrong {
            let mut options = RabbitOptions::default();
            spoil(&mut options);
            assert!(options.validate().is_err(), "{options:?}");
        }
    }
}
