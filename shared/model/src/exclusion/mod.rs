//! What keeps a job from firing at a fire time of its schedule: calendars and maintenance windows.
//!
//! [`FireRules`] are all of a store, in one version. [`Exclusions`] are those of one job. All decisions are pure.

mod calendar;
mod next;
mod window;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

pub use calendar::{
    Calendar, CalendarSpec, DailyTime, DateRule, DateRuleError, MAX_CALENDAR_ENTRIES, Period,
    TimeOfDay, WeekdayName,
};
pub use next::{Due, MAX_LOOK_AHEAD_MS, NextDue, Passed, next_due, next_free, passed};
pub use window::{FOREVER, MaintenanceWindow, WindowScope, WindowSpec, WindowTime};

use crate::job::JobSpec;
use crate::name::CalendarName;
use crate::time::Timestamp;

/// The most calendars of one job.
pub const MAX_CALENDARS: usize = 16;

/// The calendars and maintenance windows of a store.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FireRules {
    /// Counts the changes of calendars and windows. 0 if there was none yet.
    pub revision: i64,
    /// The calendars by name.
    pub calendars: HashMap<CalendarName, Arc<Calendar>>,
    /// The windows, in the order of their ids.
    pub windows: Vec<Arc<MaintenanceWindow>>,
}

impl FireRules {
    /// What excludes fire times of this job.
    pub fn of(&self, spec: &JobSpec) -> Exclusions {
        if spec.calendars.is_empty() && self.windows.is_empty() {
            return Exclusions::default();
        }
        let calendars = spec.calendar_names();
        let windows = self.windows.iter();
        Exclusions {
            calendars: calendars
                .filter_map(|name| self.calendars.get(&name).cloned())
                .collect(),
            windows: windows
                .filter(|window| window.spec.scope.has(spec))
                .cloned()
                .collect(),
        }
    }

    /// Whether the job is in the scope of a pause that lasts longer than `now`.
    pub fn pauses(&self, spec: &JobSpec, now: Timestamp) -> bool {
        self.windows.iter().any(|window| {
            window.pauses_until().is_some_and(|until| now < until) && window.spec.scope.has(spec)
        })
    }
}

/// The calendars and maintenance windows of one job.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Exclusions {
    /// Its calendars.
    pub calendars: Vec<Arc<Calendar>>,
    /// The windows that it is in the scope of.
    pub windows: Vec<Arc<MaintenanceWindow>>,
}

/// Why a job does not fire at an instant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cause<'a> {
    /// A calendar of the job.
    Calendar(&'a Calendar),
    /// A maintenance window.
    Window(&'a MaintenanceWindow),
}

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Calendar(calendar) => {
                write!(f, "excluded by calendar {:?}", calendar.spec.name.local())
            }
            Self::Window(window) => {
                let MaintenanceWindow { id, spec, .. } = window;
                let what = match spec.time {
                    WindowTime::Pause { .. } => "pause",
                    _ => "maintenance window",
                };
                write!(f, "in {what} {id}")?;
                if !spec.owner.is_empty() {
                    write!(f, " of {}", spec.owner)?;
                }
                if spec.reason.is_empty() {
                    Ok(())
                } else {
                    write!(f, ": {}", spec.reason)
                }
            }
        }
    }
}

impl Exclusions {
    /// These without pauses, which are about the present and not about fire times of the past.
    #[must_use]
    pub fn without_pauses(mut self) -> Self {
        self.windows
            .retain(|window| window.pauses_until().is_none());
        self
    }

    /// Whether nothing excludes any fire time.
    pub fn is_empty(&self) -> bool {
        self.calendars.is_empty() && self.windows.is_empty()
    }

    /// What excludes the instant, with the end of that exclusion. The cause that lasts longest is named.
    pub fn at(&self, at: Timestamp) -> Option<(Cause<'_>, Timestamp)> {
        let calendars = self.calendars.iter().filter_map(|calendar| {
            let until = calendar.excludes_until(at)?;
            Some((Cause::Calendar(calendar), until))
        });
        let windows = self.windows.iter().filter_map(|window| {
            let until = window.covers_until(at)?;
            Some((Cause::Window(window), until))
        });
        calendars
            .chain(windows)
            .reduce(|best, other| if other.1 > best.1 { other } else { best })
    }

    /// Whether the instant is excluded.
    pub fn exclude(&self, at: Timestamp) -> bool {
        let mut calendars = self.calendars.iter();
        let mut windows = self.windows.iter();
        calendars.any(|calendar| calendar.excludes_until(at).is_some())
            || windows.any(|window| window.covers_until(at).is_some())
    }

    /// The pause that lasts longest after `now`.
    pub fn pause(&self, now: Timestamp) -> Option<&MaintenanceWindow> {
        let pauses = self.windows.iter().map(AsRef::as_ref);
        pauses
            .filter(|window| window.pauses_until().is_some_and(|until| now < until))
            .max_by_key(|window| (window.pauses_until(), std::cmp::Reverse(window.id)))
    }

    /// When the last of its pauses ends, whether that is in the future or not. `None` without a pause.
    pub fn paused_until(&self) -> Option<Timestamp> {
        let pauses = self.windows.iter();
        pauses.filter_map(|window| window.pauses_until()).max()
    }

    /// The time zones that the exclusions depend on.
    pub fn zones(&self) -> impl Iterator<Item = &str> {
        let calendars = self.calendars.iter().map(|c| c.spec.timezone.name());
        calendars.chain(self.windows.iter().filter_map(|w| w.spec.time.zone()))
    }
}
