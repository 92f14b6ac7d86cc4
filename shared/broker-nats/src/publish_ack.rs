//! The reply of a stream to a publish: whether the message is stored.

use cueline_broker::BrokerError;
use serde::Deserialize;

use crate::error::{ServerError, code, transient};

/// Confirmations and errors have up to some 200 bytes, and a list of consumers has hundreds of kilobytes.
const MAX_ACK_BYTES: usize = 1_024;

/// The reply of a stream to a publish.
#[derive(Debug, Deserialize)]
pub(crate) struct PublishAck {
    #[serde(default)]
    pub(crate) error: Option<ServerError>,
    /// The stream already holds a message with this id.
    #[serde(default)]
    pub(crate) duplicate: bool,
    /// The position of the message in the stream. They begin at 1.
    #[serde(default)]
    seq: u64,
}

impl PublishAck {
    pub(crate) fn parse(payload: &[u8]) -> Result<Self, BrokerError> {
        let ack: Self = serde_json::from_slice(payload)
            .map_err(|e| transient(format!("failed to read a confirmation from NATS: {e}")))?;
        if ack.is_in_process() {
            return Err(transient(
                "failed to publish: the stream's leader waits for a majority to store an earlier copy",
            ));
        }
        Ok(ack)
    }

    /// The message is a copy of one that has no position yet, and may never get one. Server 2.10 says so like this,
    /// later ones by an error.
    fn is_in_process(&self) -> bool {
        self.duplicate && self.seq == 0
    }

    /// Whether a reply says that a stream has stored a message.
    pub(crate) fn is_stored(reply: &[u8]) -> bool {
        reply.len() <= MAX_ACK_BYTES
            && serde_json::from_slice(reply)
                .is_ok_and(|ack: Self| ack.error.is_none() && ack.seq > 0)
    }

    /// Whether a reply of `JetStream` says that a stream or `JetStream` itself has no leader now, or one without a
    /// majority.
    pub(crate) fn is_unavailable(reply: &[u8]) -> bool {
        let is_short = reply.len() <= MAX_ACK_BYTES;
        is_short
            && serde_json::from_slice(reply).is_ok_and(|ack: Self| match &ack.error {
                Some(error) => code::UNAVAILABLE.contains(&error.err_code),
                None => ack.is_in_process(),
            })
    }
}
