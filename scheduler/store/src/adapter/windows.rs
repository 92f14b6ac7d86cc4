//! Maintenance windows and pauses: their rows, which of them make room, and what begins with a pause. Pure.

use cueline_model::exclusion::WindowTime;
use cueline_model::{FireRules, Timestamp, WindowSpec};

use super::convert::corrupt;
use crate::{ErrorKind, MAX_WINDOWS, StoreError};

/// What the runs say that a pause ends before they start.
pub fn pause_message(id: i64, spec: &WindowSpec) -> String {
    format!("paused by {}: {}; pause {id}", spec.owner, spec.reason)
}

/// A window whose jobs have not got their new plans yet.
#[derive(Debug)]
pub struct PendingWindow {
    /// Its id.
    pub id: i64,
    /// What it says.
    pub spec: WindowSpec,
    /// When a person ended it.
    pub ended_at: Option<Timestamp>,
    /// When it was added or ended.
    pub changed_at: Timestamp,
    /// The last job that has its new plan.
    pub after: i64,
}

/// A row of a [`PendingWindow`]: id, definition, end, change, last job.
pub type PendingRow = (i64, String, Option<i64>, i64, i64);

impl PendingWindow {
    /// The window of a row.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Broken`] if this program cannot read it.
    pub fn of(
        (id, definition, ended_at, changed_at, after): PendingRow,
    ) -> Result<Self, StoreError> {
        let spec = serde_json::from_str(&definition)
            .map_err(|e| corrupt(format!("failed to read window {id}"), e))?;
        Ok(Self {
            id,
            spec,
            ended_at: ended_at.map(Timestamp::from_millis),
            changed_at: Timestamp::from_millis(changed_at),
            after,
        })
    }

    /// The rules by which the jobs were planned before the change. A new pause is also about fire times that have their runs.
    pub fn rules_before(&self, rules: &FireRules) -> FireRules {
        let mut before = rules.clone();
        if self.ended_at.is_none() {
            before.windows.retain(|window| window.id != self.id);
        }
        before
    }

    /// For a pause that begins: until when runs are due that it ends, and what they say.
    pub fn ends_runs(&self) -> Option<(i64, String)> {
        let WindowTime::Pause { until, .. } = &self.spec.time else {
            return None;
        };
        let until = until.map_or(i64::MAX, Timestamp::as_millis);
        self.ended_at
            .is_none()
            .then(|| (until, pause_message(self.id, &self.spec)))
    }
}

/// The window that a person ends.
///
/// # Errors
///
/// [`ErrorKind::NotFound`] if it does not exist, or was ended.
pub fn present_window(rules: &FireRules, id: i64) -> Result<&WindowSpec, StoreError> {
    let mut windows = rules.windows.iter();
    let window = windows.find(|window| window.id == id && window.ended_at.is_none());
    window.map(|window| &window.spec).ok_or_else(|| {
        let message = format!("there is no maintenance window or pause {id}");
        StoreError::new(ErrorKind::NotFound, message)
    })
}

/// The windows to delete before another one is added: those that are over, if there is no room.
///
/// # Errors
///
/// [`ErrorKind::Conflict`] if there is no room without them.
pub fn room_for_window(rules: &FireRules, now: Timestamp) -> Result<Vec<i64>, StoreError> {
    if rules.windows.len() < MAX_WINDOWS {
        return Ok(Vec::new());
    }
    let over = rules.windows.iter().filter(|w| w.is_over(now));
    let over: Vec<i64> = over.map(|window| window.id).collect();
    if over.is_empty() {
        return Err(StoreError::new(
            ErrorKind::Conflict,
            format!(
                "failed to add the maintenance window: there are {MAX_WINDOWS} that are not over; delete some"
            ),
        ));
    }
    Ok(over)
}
