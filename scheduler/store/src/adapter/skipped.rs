//! What the run of a skipped fire time says.

use super::values::clean;
use crate::SkippedFires;

/// Why a run ends that would have gone on, had its job not been paused or deleted while it was out.
pub const STOPPED_MEANWHILE: &str = "its job was stopped meanwhile";

/// Why it was skipped, and for how many fire times it stands.
pub fn why(skipped: &SkippedFires) -> String {
    let reason = clean(&skipped.reason);
    if skipped.count > 1 {
        format!(
            "{reason}; stands for {} fire times since {}",
            skipped.count, skipped.since
        )
    } else {
        reason.into_owned()
    }
}
