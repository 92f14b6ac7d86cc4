//! Maps the errors of lapin and the reply codes of the server to errors of the port.

use std::time::Duration;

use cueline_broker::{BrokerError, ErrorKind, QueueId};
use lapin::Error;
use tokio::time::timeout;

/// AMQP's reply codes on which the driver decides.
pub(crate) const ACCESS_REFUSED: u16 = 403;
pub(crate) const NOT_FOUND: u16 = 404;
pub(crate) const PRECONDITION_FAILED: u16 = 406;
pub(crate) const NOT_ALLOWED: u16 = 530;

/// A failed call. It carries the reply code if the server closed the channel or the connection because of the call.
#[derive(Debug)]
pub(crate) struct CallError {
    pub(crate) code: Option<u16>,
    pub(crate) error: BrokerError,
}

impl CallError {
    pub(crate) fn new(what: &str, error: Error) -> Self {
        Self {
            code: reply_code(&error),
            error: failed(what, error),
        }
    }
}

impl From<BrokerError> for CallError {
    fn from(error: BrokerError) -> Self {
        Self { code: None, error }
    }
}

impl From<CallError> for BrokerError {
    fn from(failure: CallError) -> Self {
        failure.error
    }
}

/// Waits for the server's answer to `call`, for at most `within`. `what` completes "failed to …".
pub(crate) async fn answered<T>(
    what: &str,
    within: Duration,
    call: impl Future<Output = lapin::Result<T>>,
) -> Result<T, CallError> {
    match timeout(within, call).await {
        Ok(answer) => answer.map_err(|e| CallError::new(what, e)),
        Err(_) => Err(timed_out(what, within).into()),
    }
}

/// A restarting server answers that a durable queue is not found, with this text, until the queue's process is up.
const NOT_UP: &str = "is down or inaccessible";

/// The reply code with which the server closed a channel or a connection. `None` also for a queue that exists and is
/// not up yet.
pub(crate) fn reply_code(error: &Error) -> Option<u16> {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(e) if e.get_message().as_str().contains(NOT_UP) => None,
        lapin::ErrorKind::ProtocolError(e) => Some(e.get_id()),
        _ => None,
    }
}

/// `what` completes "failed to …". A refusal by the server is permanent; a lost connection is transient.
pub(crate) fn failed(what: &str, error: Error) -> BrokerError {
    let kind = match reply_code(&error) {
        // 501 to 504 and 540: frame error, syntax error, command invalid, channel error, not implemented.
        Some(ACCESS_REFUSED | NOT_FOUND | PRECONDITION_FAILED | 501..=504 | NOT_ALLOWED | 540) => {
            ErrorKind::Permanent
        }
        _ => ErrorKind::Transient,
    };
    BrokerError::new(kind, format!("failed to {what}: {error}")).caused_by(error)
}

pub(crate) fn transient(message: impl Into<String>) -> BrokerError {
    BrokerError::new(ErrorKind::Transient, message)
}

pub(crate) fn permanent(message: impl Into<String>) -> BrokerError {
    BrokerError::new(ErrorKind::Permanent, message)
}

pub(crate) fn timed_out(what: &str, after: Duration) -> BrokerError {
    transient(format!(
        "failed to {what}: no answer from RabbitMQ within {after:?}"
    ))
}

pub(crate) fn no_queue(queue: &QueueId) -> BrokerError {
    permanent(format!("failed to fetch: there is no queue {queue}"))
}

pub(crate) fn closed() -> BrokerError {
    BrokerError::new(
        ErrorKind::Closed,
        "failed to use the broker: it has been closed",
    )
}
