//! Reports of the scheduler itself about attempts. The store applies them like reports of executors.

use cueline_model::{AttemptEvent, AttemptId, Outcome, OutcomeKind, Timestamp};
use cueline_store::AttemptReport;

/// A report that the scheduler considers the attempt ended.
pub(crate) fn attempt_ended(
    attempt: AttemptId,
    kind: OutcomeKind,
    at: Timestamp,
    message: impl Into<String>,
) -> AttemptReport {
    AttemptReport {
        attempt,
        executor: None,
        event: AttemptEvent::Ended {
            outcome: Outcome::new(kind, at).because(message),
        },
    }
}
