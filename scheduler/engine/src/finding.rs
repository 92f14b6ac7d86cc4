//! What the scheduler itself finds out about an attempt, reported like what executors report.

use cueline_model::{AttemptEvent, AttemptId, Outcome, OutcomeKind, Timestamp};
use cueline_store::AttemptReport;

/// This attempt has ended, by what the scheduler can tell.
pub(crate) fn ended(
    id: AttemptId,
    kind: OutcomeKind,
    at: Timestamp,
    message: impl Into<String>,
) -> AttemptReport {
    AttemptReport {
        attempt: id,
        executor: None,
        event: AttemptEvent::Ended {
            outcome: Outcome::new(kind, at).because(message),
        },
    }
}
