//! Reports that the scheduler itself makes about attempts. The store applies them like those of executors.

use cueline_model::{AttemptEvent, AttemptId, Outcome, OutcomeKind, Timestamp};
use cueline_store::AttemptReport;

/// Reports that the attempt ended, by the scheduler's own judgement.
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
