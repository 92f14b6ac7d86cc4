//! Derives the outcome of an attempt from the end of its handler.

use std::any::Any;

use cueline_model::{LogStream, Outcome, OutcomeKind};

use super::buffer::cut;
use super::log::AttemptLog;
use crate::context::StopReason;
use crate::lease::BrokerLease;
use crate::returned::{Failure, Output};

/// How a handler ended.
pub(super) enum HandlerEnd {
    Returned(Result<Output, Failure>),
    Panicked(Box<dyn Any + Send>),
    /// It did not return after the request to stop: its future was dropped.
    Dropped,
}

/// The outcome of an attempt. `reason` is given if its handler was asked to stop.
///
/// A handler that returned success has succeeded, even after a request to stop. Its work is done, and any other outcome
/// could repeat it. Otherwise the reason decides.
pub(super) fn outcome_of(
    end: HandlerEnd,
    reason: Option<StopReason>,
    log: &AttemptLog,
    lease: &BrokerLease,
) -> Outcome {
    let stopped = reason.map(kind_of);
    let (kind, message, output, exit_status) = match end {
        HandlerEnd::Returned(Ok(output)) => {
            let note = reason.map(|r| format!("succeeded after it was asked to stop ({r:?})"));
            (
                OutcomeKind::Succeeded,
                note,
                output.text,
                output.exit_status,
            )
        }
        HandlerEnd::Returned(Err(failure)) => {
            let kind = stopped.unwrap_or(OutcomeKind::Failed);
            (kind, Some(failure.message), None, failure.exit_status)
        }
        HandlerEnd::Panicked(payload) => {
            let kind = stopped.unwrap_or(OutcomeKind::Failed);
            let text = format!("the handler panicked: {}", panic_message(&*payload));
            (kind, Some(text), None, None)
        }
        HandlerEnd::Dropped => {
            let kind = stopped.unwrap_or(OutcomeKind::Lost);
            let text = "the handler did not stop within its grace and was dropped".to_owned();
            (kind, Some(text), None, None)
        }
    };
    let message = match kind {
        OutcomeKind::Lost => Some(lost_message(reason, message, lease)),
        _ => message,
    };
    Outcome {
        kind,
        started_at: Some(log.started_at()),
        ended_at: log.now().max(log.started_at()),
        exit_status,
        message: message.map(|text| limited("message", text, log)),
        output: output.map(|text| limited("output", text, log)),
    }
}

fn kind_of(reason: StopReason) -> OutcomeKind {
    match reason {
        StopReason::Cancelled => OutcomeKind::Cancelled,
        StopReason::TimedOut => OutcomeKind::TimedOut,
        StopReason::Covered => OutcomeKind::Covered,
        StopReason::Drained | StopReason::Fenced => OutcomeKind::Lost,
    }
}

fn lost_message(
    reason: Option<StopReason>,
    message: Option<String>,
    lease: &BrokerLease,
) -> String {
    let why = match reason {
        Some(StopReason::Fenced) => format!("stopped: {}", lease.fence_reason()),
        _ => "the worker had to stop before it ended".to_owned(),
    };
    match message {
        Some(message) => format!("{why}: {message}"),
        None => why,
    }
}

/// Cuts `text` to the limit of outcomes. A log line notes the cut.
fn limited(field: &str, text: String, log: &AttemptLog) -> String {
    let (bytes, limit) = (text.len(), Outcome::MAX_TEXT_BYTES);
    if bytes > limit {
        let note = format!("[the {field} of {bytes} bytes was cut to {limit}]");
        log.write(LogStream::Log, note);
    }
    cut(text, limit)
}

fn panic_message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}
