//! Texts and events for the timelines of runs.

use cueline_model::ExecutorId;

use super::convert::without_nul;
use crate::SkippedFires;

/// Why a run ends instead of getting another attempt or publication: its job was paused or deleted.
pub const STOPPED_MEANWHILE: &str = "its job was stopped meanwhile";

/// An event for a run's timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimelineEvent {
    /// The run.
    pub run: i64,
    /// The attempt that it is about.
    pub attempt: u32,
    /// The event, in one word.
    pub event: &'static str,
    /// Details for the user.
    pub detail: String,
    /// The executor of an attempt that another one follows. Late reports about the attempt have to come from it.
    pub executor: Option<ExecutorId>,
}

/// The message of a skipped run: the reason, and the number of fire times that it accounts for.
pub fn skip_message(skipped: &SkippedFires) -> String {
    let reason = without_nul(&skipped.reason);
    if skipped.count > 1 {
        format!(
            "{reason}; stands for {} fire times since {}",
            skipped.count, skipped.since
        )
    } else {
        reason.into_owned()
    }
}
