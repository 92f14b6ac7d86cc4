//! What the scheduler itself finds out about an attempt, reported like what executors report.

use cueline_model::{Outcome, OutcomeKind, Timestamp};
use cueline_store::{AttemptId, Report, ReportBody};

/// This attempt has ended, by what the scheduler can tell.
pub(crate) fn ended(
    id: AttemptId,
    kind: OutcomeKind,
    at: Timestamp,
    message: impl Into<String>,
) -> Report {
    Report {
        id,
        executor: None,
        body: ReportBody::Ended(Outcome::new(kind, at).because(message)),
    }
}
