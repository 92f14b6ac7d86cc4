//! What the server answers when it refuses, and what that means here.

use cueline_broker::{BrokerError, ErrorKind};
use serde::Deserialize;

pub(crate) fn transient(message: impl Into<String>) -> BrokerError {
    BrokerError::new(ErrorKind::Transient, message)
}

pub(crate) fn permanent(message: impl Into<String>) -> BrokerError {
    BrokerError::new(ErrorKind::Permanent, message)
}

/// `JetStream`'s numbers for what went wrong; see `errors.json` in the server's sources.
pub(crate) mod code {
    pub(crate) const CONSUMER_NOT_FOUND: u64 = 10_014;
    pub(crate) const TOO_LARGE: u64 = 10_054;
    pub(crate) const STREAM_NAME_IN_USE: u64 = 10_058;
    pub(crate) const STREAM_NOT_FOUND: u64 = 10_059;
    pub(crate) const STORE_FAILED: u64 = 10_077;
}

/// An error in an answer.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Told {
    #[serde(default)]
    pub(crate) code: u16,
    #[serde(default)]
    pub(crate) err_code: u64,
    #[serde(default)]
    pub(crate) description: String,
}

impl Told {
    /// The queue, the stream or the server holds as much as it may.
    pub(crate) fn is_full(&self) -> bool {
        self.err_code == code::STORE_FAILED && self.description.starts_with("maximum ")
    }

    pub(crate) fn is_not_found(&self) -> bool {
        matches!(
            self.err_code,
            code::CONSUMER_NOT_FOUND | code::STREAM_NOT_FOUND
        )
    }

    /// As an error; `what` finishes "failed to …".
    pub(crate) fn error(&self, what: &str) -> BrokerError {
        // 4xx is the request's fault, but for 408 and 429: too slow, too much at once.
        let kind = match self.code {
            408 | 429 => ErrorKind::Transient,
            400..500 => ErrorKind::Permanent,
            _ => ErrorKind::Transient,
        };
        let (description, number) = (&self.description, self.err_code);
        BrokerError::new(kind, format!("failed to {what}: {description} ({number})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_say_whether_trying_again_can_help() {
        for (code, kind) in [
            (400, ErrorKind::Permanent),
            (404, ErrorKind::Permanent),
            (408, ErrorKind::Transient),
            (429, ErrorKind::Transient),
            (500, ErrorKind::Transient),
            (503, ErrorKind::Transient),
        ] {
            let text = format!(r#"{{"code":{code},"err_code":1,"description":"why"}}"#);
            let told: Told = serde_json::from_str(&text).unwrap();
            let error = told.error("try");
            assert_eq!(error.kind(), kind, "{code}");
            assert_eq!(error.to_string(), "failed to try: why (1)");
        }
    }
}
