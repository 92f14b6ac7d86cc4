//! What the server's refusals mean to callers.

use std::time::Duration;

use cueline_broker::{BrokerError, ErrorKind, QueueId};
use lapin::Error;

/// AMQP's reply codes that decide something here.
pub(crate) const ACCESS_REFUSED: u16 = 403;
pub(crate) const NOT_FOUND: u16 = 404;
pub(crate) const PRECONDITION_FAILED: u16 = 406;

/// The reply code with which the server closed a channel or connection, if it did.
pub(crate) fn code(error: &Error) -> Option<u16> {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(e) => Some(e.get_id()),
        _ => None,
    }
}

/// `what` finishes "failed to …". What the server refuses it will refuse again; a lost connection comes back.
pub(crate) fn failed(what: &str, error: Error) -> BrokerError {
    let kind = match code(&error) {
        // Also: not implemented, not allowed, command invalid, syntax error.
        Some(ACCESS_REFUSED | NOT_FOUND | PRECONDITION_FAILED | 501..=504 | 530 | 540) => {
            ErrorKind::Permanent
        }
        _ => ErrorKind::Transient,
    };
    BrokerError::new(kind, format!("failed to {what}: {error}")).caused_by(error)
}

pub(crate) fn late(what: &str, after: Duration) -> BrokerError {
    BrokerError::new(
        ErrorKind::Transient,
        format!("failed to {what}: no answer from RabbitMQ within {after:?}"),
    )
}

pub(crate) fn no_queue(queue: &QueueId) -> BrokerError {
    BrokerError::new(
        ErrorKind::Permanent,
        format!("failed to fetch: there is no queue {queue}"),
    )
}

pub(crate) fn closed() -> BrokerError {
    BrokerError::new(
        ErrorKind::Closed,
        "failed to use the broker: it has been closed",
    )
}
