//! Maintenance windows and pauses: times at which the jobs in a scope do not fire.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::calendar::instant_text;
use crate::duration::DurationMs;
use crate::job::JobSpec;
use crate::name::{GroupName, Namespace};
use crate::schedule::Schedule;
use crate::time::Timestamp;

/// The end of a pause that has none: an instant that no schedule reaches.
pub const FOREVER: Timestamp = Timestamp::from_millis(253_402_041_599_999);

/// A maintenance window or a pause of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaintenanceWindow {
    /// Its identity.
    pub id: i64,
    /// What it says.
    pub spec: WindowSpec,
    /// When a person ended it. It excludes nothing from then on, and is kept until the plans of its jobs have changed.
    pub ended_at: Option<Timestamp>,
}

impl MaintenanceWindow {
    /// If it excludes the instant, until when. It may exclude that one too.
    pub fn covers_until(&self, at: Timestamp) -> Option<Timestamp> {
        let until = self.spec.time.covers_until(at)?;
        let until = self.ended_at.map_or(until, |end| until.min(end));
        (at < until).then_some(until)
    }

    /// Whether it will exclude nothing after `now`.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.ended_at.is_some_and(|end| end <= now) || self.spec.time.is_over(now)
    }

    /// For a pause, when it ends: [`FOREVER`] if nobody has said when.
    pub fn pauses_until(&self) -> Option<Timestamp> {
        let WindowTime::Pause { until, .. } = self.spec.time else {
            return None;
        };
        let until = until.unwrap_or(FOREVER);
        Some(self.ended_at.map_or(until, |end| until.min(end)))
    }
}

/// A maintenance window as written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSpec {
    /// The jobs that do not fire.
    #[serde(flatten)]
    pub scope: WindowScope,
    /// When they do not fire.
    #[serde(flatten)]
    pub time: WindowTime,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Whom to ask.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
}

/// The jobs of a window: those that meet all conditions. Without a condition, all jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowScope {
    /// Only jobs of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
    /// Only jobs of this group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupName>,
    /// Only jobs with these labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl WindowScope {
    /// Whether the job is in the scope.
    pub fn has(&self, spec: &JobSpec) -> bool {
        let mut labels = self.labels.iter();
        let namespace = self.namespace.as_ref();
        namespace.is_none_or(|namespace| spec.name.is_in(namespace))
            && self.group.as_ref().is_none_or(|group| *group == spec.group)
            && labels.all(|(name, value)| spec.labels.get(name) == Some(value))
    }
}

/// When a window is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum WindowTime {
    /// Once.
    Once {
        /// The first instant.
        #[serde(with = "instant_text")]
        start: Timestamp,
        /// The first instant after it.
        #[serde(with = "instant_text")]
        end: Timestamp,
    },
    /// Again and again, for `duration` after each fire time of `starts`.
    Recurring {
        /// The beginnings: a cron schedule.
        starts: Schedule,
        /// How long it is open.
        duration: DurationMs,
    },
    /// From now on, until a person ends it.
    Pause {
        /// When it began. A fire time before it that has no run yet is excluded too: once the pause is there, nothing may
        /// start that was due before.
        #[serde(with = "instant_text")]
        paused_at: Timestamp,
        /// When it ends by itself.
        #[serde(
            default,
            with = "crate::time::rfc3339",
            skip_serializing_if = "Option::is_none"
        )]
        until: Option<Timestamp>,
    },
}

impl WindowTime {
    /// If the window is open at the instant, when it closes. It may open again before.
    pub fn covers_until(&self, at: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Once { start, end } => (*start <= at && at < *end).then_some(*end),
            Self::Recurring { starts, duration } => {
                // The first beginning that may still last. A later one ends later, but one is enough: the caller looks again
                // at the end of this one.
                let begun = starts.next_after(at.minus_ms(duration.as_millis()))?;
                (begun <= at).then(|| begun.plus_ms(duration.as_millis()))
            }
            Self::Pause { until, .. } => {
                let until = until.unwrap_or(FOREVER);
                (at < until).then_some(until)
            }
        }
    }

    /// When the window opens next after `after`, or is open, and until when; `None` if it never is again.
    pub fn next(&self, after: Timestamp) -> Option<(Timestamp, Timestamp)> {
        match self {
            Self::Once { start, end } => (after < *end).then_some((*start, *end)),
            Self::Recurring { starts, duration } => {
                let begins = starts.next_after(after.minus_ms(duration.as_millis()))?;
                Some((begins, begins.plus_ms(duration.as_millis())))
            }
            Self::Pause { paused_at, until } => {
                let until = until.unwrap_or(FOREVER);
                (after < until).then_some((*paused_at, until))
            }
        }
    }

    /// Whether the window will never be open after `now`.
    pub fn is_over(&self, now: Timestamp) -> bool {
        match self {
            Self::Once { end, .. } => *end <= now,
            Self::Recurring { .. } => false,
            Self::Pause { until, .. } => until.is_some_and(|until| until <= now),
        }
    }

    /// The time zone that it depends on.
    pub(super) fn zone(&self) -> Option<&str> {
        match self {
            Self::Once { .. } | Self::Pause { .. } => None,
            Self::Recurring { starts, .. } => starts.zones().next(),
        }
    }
}
