//! Errors that `JetStream` reports, and whether a retry can help.

use cueline_broker::{BrokerError, ErrorKind};
use serde::Deserialize;

pub(crate) fn transient(message: impl Into<String>) -> BrokerError {
    BrokerError::new(ErrorKind::Transient, message)
}

pub(crate) fn permanent(message: impl Into<String>) -> BrokerError {
    BrokerError::new(ErrorKind::Permanent, message)
}

/// `JetStream`'s error codes; see `errors.json` in the server's sources.
pub(crate) mod code {
    const NOT_AVAILABLE: u64 = 10_008;
    const NOT_LEADER: u64 = 10_009;
    /// An earlier copy of the message waits for a majority.
    const DUPLICATE_IN_PROCESS: u64 = 10_158;
    /// There is no leader, or it has no majority.
    pub(crate) const UNAVAILABLE: [u64; 3] = [NOT_AVAILABLE, NOT_LEADER, DUPLICATE_IN_PROCESS];
    pub(crate) const CONSUMER_NOT_FOUND: u64 = 10_014;
    pub(crate) const MESSAGE_NOT_FOUND: u64 = 10_037;
    pub(crate) const MESSAGE_TOO_LARGE: u64 = 10_054;
    pub(crate) const STREAM_NAME_IN_USE: u64 = 10_058;
    pub(crate) const STREAM_NOT_FOUND: u64 = 10_059;
    pub(crate) const STORE_FAILED: u64 = 10_077;
}

/// The `error` of a `JetStream` response.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ServerError {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    pub(crate) err_code: u64,
    #[serde(default)]
    description: String,
}

impl ServerError {
    /// The queue, the stream or the server has no room left.
    pub(crate) fn is_full(&self) -> bool {
        self.err_code == code::STORE_FAILED && self.description.starts_with("maximum ")
    }

    /// `action` completes "failed to …".
    pub(crate) fn into_broker_error(self, action: &str) -> BrokerError {
        let (description, number) = (&self.description, self.err_code);
        let message = format!("failed to {action}: {description} ({number})");
        // A code of 4xx blames the request, except 408 (timeout), 409 (an earlier copy is in process) and 429 (too many
        // requests). A full queue may get room again.
        match self.code {
            400..500 if !matches!(self.code, 408 | 409 | 429) && !self.is_full() => {
                permanent(message)
            }
            _ => transient(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_says_whether_trying_again_can_help() {
        for (code, kind) in [
            (400, ErrorKind::Permanent),
            (404, ErrorKind::Permanent),
            (408, ErrorKind::Transient),
            (409, ErrorKind::Transient),
            (429, ErrorKind::Transient),
            (500, ErrorKind::Transient),
            (503, ErrorKind::Transient),
        ] {
            let text = format!(r#"{{"code":{code},"err_code":1,"description":"why"}}"#);
            let refused: ServerError = serde_json::from_str(&text).unwrap();
            let error = refused.into_broker_error("try");
            assert_eq!(error.kind(), kind, "{code}");
            assert_eq!(error.to_string(), "failed to try: why (1)");
        }
    }
}
