//! Limits of the driver, each with its default and what happens there.

use std::path::PathBuf;
use std::time::Duration;

use cueline_broker::{BrokerError, ErrorKind};

/// A certificate with which a client shows who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate, and those it is signed with, as PEM.
    pub certificate: PathBuf,
    /// Its private key, as PEM (PKCS#8).
    pub key: PathBuf,
}

/// Limits of a [`RabbitDriver`](crate::RabbitDriver).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RabbitOptions {
    /// What the names of queues and exchanges start with; `cueline` by default.
    pub prefix: String,
    /// A message that was handed out and not settled for this long is handed out again; 30 s by default, at most 15 min. The
    /// product has no such limit of its own below 30 min.
    pub ack_wait: Duration,
    /// The most messages that wait in one queue; 1,000,000 by default. Past it, publishing is refused as full. The product counts
    /// late: what is on its way is still taken. Set when a queue is made; a queue that is there keeps the limit that it has.
    pub queue_limit: u64,
    /// How often the product delivers a trigger before it moves it to the dead letters by itself; 10,000 by default. Far beyond
    /// what callers count, because a cut connection and an idle consumer count too. The other queues have no such limit.
    pub delivery_limit: u32,
    /// How many servers of a cluster hold each queue; what the product does by itself by default (5 in 3.10). Set when a queue
    /// is made.
    pub replicas: Option<u16>,
    /// The largest payload, in bytes; 8 MiB by default. A larger one is refused.
    pub max_payload_bytes: usize,
    /// The most messages in one `publish`; 5,000 by default.
    pub max_batch: usize,
    /// The most messages that the product sends ahead for one queue; 2,000 by default.
    pub prefetch: u16,
    /// The most messages of one queue that are handed out and unsettled here; 50,000 by default. Past it, a fetch waits.
    pub unsettled_limit: usize,
    /// About how many bytes of messages are sent ahead for one queue; 64 MiB by default. Past it, fewer are sent ahead.
    pub prefetch_bytes: usize,
    /// A queue from which nothing is fetched for this long is no longer consumed, and what was sent ahead goes back to it; 5 s
    /// by default.
    pub idle_after: Duration,
    /// The most announcements that wait for one listener; 1,024 by default. Past it the oldest are lost.
    pub listener_buffer: usize,
    /// How long a call waits for the connection and for the server's answer; 10 s by default. After that it fails with a transient
    /// error.
    pub request_timeout: Duration,
    /// A queue that confirms no message for this long, while the server answers, is left aside until it does: what is published to it is
    /// unknown at once, and holds up nothing else; 3 s by default.
    pub silent_after: Duration,
    /// The server and the driver take each other for dead after two of these without a sign; 10 s by default, in whole seconds.
    pub heartbeat: Duration,
    /// The longest wait between two tries to connect; 5 s by default. The first is 100 ms.
    pub reconnect_wait: Duration,
    /// What the server's certificate is checked against with `amqps`, as PEM; the system's authorities by default.
    pub ca_file: Option<PathBuf>,
    /// The certificate with which the driver shows who it is, if the server asks; none by default.
    pub client_certificate: Option<ClientCertificate>,
    /// What the connections are called in the server's lists; `cueline` by default.
    pub connection_name: String,
}

impl Default for RabbitOptions {
    fn default() -> Self {
        Self {
            prefix: "cueline".into(),
            ack_wait: Duration::from_secs(30),
            queue_limit: 1_000_000,
            delivery_limit: 10_000,
            replicas: None,
            max_payload_bytes: 8 << 20,
            max_batch: 5_000,
            prefetch: 2_000,
            unsettled_limit: 50_000,
            prefetch_bytes: 64 << 20,
            idle_after: Duration::from_secs(5),
            listener_buffer: 1_024,
            request_timeout: Duration::from_secs(10),
            silent_after: Duration::from_secs(3),
            heartbeat: Duration::from_secs(10),
            reconnect_wait: Duration::from_secs(5),
            ca_file: None,
            client_certificate: None,
            connection_name: "cueline".into(),
        }
    }
}

/// Nothing stays unsettled for longer: after 30 min the product closes the channel, and with it gives back everything else.
pub(crate) const LONGEST_HOLD: Duration = Duration::from_mins(15);

/// The product's own limit in 3.x is larger, in 4.x it is 16 MiB. A dead letter may be six times its message, and is cut then.
const LARGEST_PAYLOAD: usize = 16 << 20;

impl RabbitOptions {
    /// Refuses limits that no queue can work with.
    pub(crate) fn validate(&self) -> Result<(), BrokerError> {
        let wrong = |what: &str| {
            Err(BrokerError::new(
                ErrorKind::Permanent,
                format!("failed to open the broker: {what}"),
            ))
        };
        if self.ack_wait.is_zero() || self.ack_wait > LONGEST_HOLD {
            return wrong("`ack_wait` must be longer than 0 and at most 15 min");
        }
        if self.idle_after.is_zero()
            || self.request_timeout.is_zero()
            || self.silent_after.is_zero()
        {
            return wrong(
                "`idle_after`, `request_timeout` and `silent_after` must be longer than 0",
            );
        }
        if self.max_batch == 0
            || self.prefetch == 0
            || self.unsettled_limit == 0
            || self.listener_buffer == 0
            || self.delivery_limit == 0
            || self.queue_limit == 0
            || self.prefetch_bytes == 0
        {
            return wrong(
                "`max_batch`, `prefetch`, `prefetch_bytes`, `unsettled_limit`, `listener_buffer`, `delivery_limit` and `queue_limit` must be at least 1",
            );
        }
        if self.queue_limit > i64::MAX as u64 || self.delivery_limit > i32::MAX as u32 {
            return wrong("`queue_limit` and `delivery_limit` are too large");
        }
        if self.max_payload_bytes > LARGEST_PAYLOAD {
            return wrong("`max_payload_bytes` must be at most 16 MiB");
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
    fn defaults_are_taken_and_nonsense_is_not() {
        RabbitOptions::default().validate().unwrap();
        let wrong: [fn(&mut RabbitOptions); 6] = [
            |o| o.ack_wait = Duration::ZERO,
            |o| o.ack_wait = LONGEST_HOLD * 2,
            |o| o.prefetch = 0,
            |o| o.queue_limit = u64::MAX,
            |o| o.max_payload_bytes = LARGEST_PAYLOAD + 1,
            |o| o.heartbeat = Duration::from_millis(500),
        ];
        for spoil in wrong {
            let mut options = RabbitOptions::default();
            spoil(&mut options);
            assert!(options.validate().is_err(), "{options:?}");
        }
    }
}
