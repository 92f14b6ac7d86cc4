//! What stores keep beside a job's definition, and lists of jobs that make no sense.

use std::collections::BTreeSet;

use cueline_model::{JobSpec, Schedule, Timestamp};

use super::values::int;
use crate::{ErrorKind, StoreError};

/// What was asked for makes no sense.
pub(super) fn invalid(why: String) -> StoreError {
    StoreError::new(ErrorKind::Invalid, why)
}

/// Refuses a list that names a job twice.
///
/// # Errors
///
/// [`ErrorKind::Invalid`], with the name.
pub fn check_names(specs: &[JobSpec]) -> Result<(), StoreError> {
    let mut seen = BTreeSet::new();
    for spec in specs {
        if !seen.insert(&spec.name) {
            return Err(invalid(format!(
                "failed to apply jobs: {:?} is given twice",
                spec.name.as_str()
            )));
        }
    }
    Ok(())
}

/// The next fire time after `now`, in milliseconds; `None` for a job that is paused or has none.
pub fn next_fire(spec: &JobSpec, now: Timestamp) -> Option<i64> {
    spec.is_enabled()
        .then(|| spec.next_fire(now))
        .flatten()
        .map(Timestamp::as_millis)
}

/// Whether the job counts its delay from the end of a run.
pub fn is_fixed_delay(spec: &JobSpec) -> bool {
    matches!(spec.schedule, Schedule::FixedDelay { .. })
}

/// The longest that an attempt may take, with the time to end it, in milliseconds; `None` without a time-out.
pub fn longest_ms(spec: &JobSpec) -> Option<i64> {
    spec.timeout.map(|timeout| {
        int(timeout
            .as_millis()
            .saturating_add(spec.kill_grace.as_millis()))
    })
}
