//! What happens in the lanes, as debug events: `CUELINE_LOG=info,cueline_worker::event_loop::lane_events=debug`. They are
//! in the order of the decisions, which the times of other records do not tell.

use crate::identity::AttemptKey;

/// All lanes are empty: the process has just started.
pub(super) fn emptied() {
    tracing::debug!("the lanes are empty");
}

/// The attempt waits in its lane, unless an end without a start follows.
pub(super) fn accepted(key: AttemptKey) {
    tracing::debug!(run_id = %key.run, attempt = key.attempt, "the lane has the attempt");
}

/// The lane starts the attempt. Its handler follows once the start is recorded.
pub(super) fn started(key: AttemptKey) {
    tracing::debug!(run_id = %key.run, attempt = key.attempt, "the lane starts the attempt");
}

/// The attempt has left its lane.
pub(super) fn left(key: AttemptKey) {
    tracing::debug!(run_id = %key.run, attempt = key.attempt, "the attempt has left its lane");
}
