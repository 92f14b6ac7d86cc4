//! What a handler's end means.

use std::any::Any;

use cueline_model::{LogStream, Outcome, OutcomeKind};

use super::log::{AttemptLog, cut};
use crate::contact::Contact;
use crate::context::StopReason;
use crate::returned::{Failure, Output};

/// How a handler came to its end.
pub(super) enum End {
    Returned(Result<Output, Failure>),
    Panicked(Box<dyn Any + Send>),
    /// It was told to stop and did not: its future was dropped.
    Dropped,
}

/// The outcome of an attempt that ended like this after it was told to stop, or not.
///
/// A handler that returned success has succeeded, even if it was told to stop meanwhile: what it did is done, and to call that anything else would have
/// it done again. Otherwise the reason why it was told to stop says how it ended.
pub(super) fn outcome_of(
    end: End,
    told: Option<StopReason>,
    log: &AttemptLog,
    contact: &Contact,
) -> Outcome {
    let (kind, message, output, exit_status) = match end {
        End::Returned(Ok(output)) => {
            let (kind, note) = succeeded(told);
            (kind, note, output.text, output.exit_status)
        }
        End::Returned(Err(failure)) => {
            let kind = stopped(told).unwrap_or(OutcomeKind::Failed);
            (kind, Some(failure.message), None, failure.exit_status)
        }
        End::Panicked(payload) => {
            let kind = stopped(told).unwrap_or(OutcomeKind::Failed);
            let text = format!("the handler panicked: {}", panic_text(&*payload));
            (kind, Some(text), None, None)
        }
        End::Dropped => {
            let kind = stopped(told).unwrap_or(OutcomeKind::Lost);
            let text = "the handler did not stop within its grace and was dropped".to_owned();
            (kind, Some(text), None, None)
        }
    };
    let message = match (kind, message) {
        (OutcomeKind::Lost, message) => {
            let why = match told {
                Some(StopReason::Fenced) => format!("stopped: {}", contact.why()),
                _ => "the worker had to stop before it ended".to_owned(),
            };
            let own = message.map(|m| format!(": {m}")).unwrap_or_default();
            Some(format!("{why}{own}"))
        }
        (_, message) => message,
    };
    Outcome {
        kind,
        started_at: Some(log.started_at()),
        ended_at: log.now().max(log.started_at()),
        exit_status,
        message: message.map(|text| bounded("message", text, log)),
        output: output.map(|text| bounded("output", text, log)),
    }
}

fn succeeded(told: Option<StopReason>) -> (OutcomeKind, Option<String>) {
    let note = told.map(|reason| format!("succeeded after it was told to stop ({reason:?})"));
    (OutcomeKind::Succeeded, note)
}

fn stopped(told: Option<StopReason>) -> Option<OutcomeKind> {
    Some(match told? {
        StopReason::Cancelled => OutcomeKind::Cancelled,
        StopReason::TimedOut => OutcomeKind::TimedOut,
        StopReason::Covered => OutcomeKind::Covered,
        StopReason::Drained | StopReason::Fenced => OutcomeKind::Lost,
    })
}

fn bounded(what: &str, text: String, log: &AttemptLog) -> String {
    if text.len() > Outcome::MAX_TEXT_BYTES {
        log.write(
            LogStream::Log,
            format!(
                "[the {what} of {} bytes was cut to {}]",
                text.len(),
                Outcome::MAX_TEXT_BYTES
            ),
        );
    }
    cut(text, Outcome::MAX_TEXT_BYTES)
}

fn panic_text(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}
