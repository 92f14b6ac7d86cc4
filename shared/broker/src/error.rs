//! Errors of brokers.

/// Whether a retry can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The same call may succeed later: connection lost, timeout, busy, disk full.
    Transient,
    /// The same call will always fail: malformed, forbidden, not supported.
    Permanent,
    /// The driver has been closed.
    Closed,
}

/// A failed call to a broker. The message starts with "failed to".
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct BrokerError {
    kind: ErrorKind,
    message: String,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl BrokerError {
    /// Makes an error of `kind`. The message starts with "failed to".
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// Adds the cause.
    #[must_use]
    pub fn caused_by(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Whether a retry can help.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }
}
