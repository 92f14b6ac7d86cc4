//! Answers about calendars, maintenance windows and pauses.

use std::collections::BTreeMap;

use cueline_model::exclusion::{WindowSpec, WindowTime};
use cueline_model::preview::LeftOut;
use cueline_model::{
    CalendarName, CalendarSpec, GroupName, JobName, MaintenanceWindow, Namespace, Timestamp,
};
use cueline_store::{AppliedCalendar, Change, StoredCalendar};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::openapi;

/// A calendar.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CalendarView {
    /// Its name.
    #[schema(value_type = openapi::GivenName)]
    pub name: CalendarName,
    /// Counts its changes, from 1.
    pub version: i64,
    /// Its definition, which an apply accepts.
    #[schema(value_type = openapi::GivenCalendar)]
    pub definition: CalendarSpec,
    /// The jobs that use it.
    #[schema(value_type = Vec<openapi::GivenName>)]
    pub jobs: Vec<JobName>,
}

impl From<StoredCalendar> for CalendarView {
    fn from(stored: StoredCalendar) -> Self {
        Self {
            name: stored.spec.name.clone(),
            version: stored.revision.version,
            definition: stored.spec,
            jobs: stored.jobs,
        }
    }
}

/// The calendars of a namespace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CalendarList {
    /// The calendars, by name.
    pub calendars: Vec<CalendarView>,
}

/// The change of one calendar.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AppliedCalendarView {
    /// Its name.
    #[schema(value_type = openapi::GivenName)]
    pub name: CalendarName,
    /// Its version afterwards; absent in a dry run that would create it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub version: Option<i64>,
    /// What happened.
    #[schema(value_type = openapi::Change)]
    pub change: Change,
}

impl From<AppliedCalendar> for AppliedCalendarView {
    fn from(applied: AppliedCalendar) -> Self {
        Self {
            name: applied.name,
            version: applied.revision.map(|revision| revision.version),
            change: applied.change,
        }
    }
}

/// The changes of an apply of calendars.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CalendarsApplied {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// The change of each calendar, in the order given.
    pub applied: Vec<AppliedCalendarView>,
}

/// A deleted calendar.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CalendarRef {
    /// Its name.
    #[schema(value_type = openapi::GivenName)]
    pub name: CalendarName,
}

/// A maintenance window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WindowView {
    /// Its number.
    pub id: i64,
    /// What it says.
    #[schema(value_type = openapi::WindowDefinition)]
    pub window: WindowSpec,
    /// When it opens next, or has opened; absent if it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<openapi::Instant>, nullable = false)]
    pub opens: Option<Timestamp>,
    /// When it closes then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<openapi::Instant>, nullable = false)]
    pub closes: Option<Timestamp>,
}

impl WindowView {
    /// A window at `now`.
    pub(crate) fn new(window: &MaintenanceWindow, now: Timestamp) -> Self {
        let next = window.spec.time.next(now);
        Self {
            id: window.id,
            window: window.spec.clone(),
            opens: next.map(|(opens, _)| opens),
            closes: next.map(|(_, closes)| closes),
        }
    }
}

/// The maintenance windows of a namespace, with those of all namespaces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WindowList {
    /// The windows, in the order in which they were added.
    pub windows: Vec<WindowView>,
    /// The time of the answer.
    #[schema(value_type = openapi::Instant)]
    pub now: Timestamp,
}

/// An added or deleted maintenance window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WindowRef {
    /// Its number.
    pub id: i64,
    /// How many jobs are in its scope at present.
    pub jobs: u64,
}

/// Who has paused a job together with others, and until when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PausedBy {
    /// The number of the pause.
    pub id: i64,
    /// Who paused.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
    /// When it ends by itself; absent if it lasts until somebody ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl PausedBy {
    /// `None` if the window is no pause.
    pub(crate) fn new(window: &MaintenanceWindow) -> Option<Self> {
        let WindowTime::Pause { paused_at, until } = window.spec.time else {
            return None;
        };
        Some(Self {
            id: window.id,
            by: window.spec.owner.clone(),
            reason: window.spec.reason.clone(),
            since: paused_at,
            until,
        })
    }
}

/// A pause of the jobs in a scope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PauseView {
    /// Its number.
    pub id: i64,
    /// Who paused.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Since when.
    #[schema(value_type = openapi::Instant)]
    pub since: Timestamp,
    /// When it ends by itself; absent if it lasts until somebody ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<openapi::Instant>, nullable = false)]
    pub until: Option<Timestamp>,
    /// Only jobs of this namespace; absent for all namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<openapi::GivenNamespace>, nullable = false)]
    pub namespace: Option<Namespace>,
    /// Only jobs of this group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<openapi::GivenName>, nullable = false)]
    pub group: Option<GroupName>,
    /// Only jobs with these labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl PauseView {
    /// `None` if the window is no pause.
    pub(crate) fn new(window: &MaintenanceWindow) -> Option<Self> {
        let scope = &window.spec.scope;
        let PausedBy {
            id,
            by,
            reason,
            since,
            until,
        } = PausedBy::new(window)?;
        Some(Self {
            id,
            by,
            reason,
            since,
            until,
            namespace: scope.namespace.clone(),
            group: scope.group.clone(),
            labels: scope.labels.clone(),
        })
    }
}

/// The pauses of a namespace, with those of all namespaces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PauseList {
    /// The pauses, in the order in which they began.
    pub pauses: Vec<PauseView>,
    /// The time of the answer.
    #[schema(value_type = openapi::Instant)]
    pub now: Timestamp,
}

/// A pause that began or ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PauseRef {
    /// Its number.
    pub id: i64,
    /// How many jobs are in its scope at present.
    pub jobs: u64,
}

/// Times that match a schedule and at which the job does not fire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeftOutView {
    /// The first of them.
    #[schema(value_type = openapi::Instant)]
    pub first: Timestamp,
    /// The last of them that was counted.
    #[schema(value_type = openapi::Instant)]
    pub last: Timestamp,
    /// Their number.
    pub count: u64,
    /// Whether there are more of them before the next fire time.
    pub more: bool,
    /// Why.
    pub reason: String,
}

impl From<LeftOut> for LeftOutView {
    fn from(left_out: LeftOut) -> Self {
        let LeftOut {
            first,
            last,
            count,
            more,
            reason,
        } = left_out;
        Self {
            first,
            last,
            count,
            more,
            reason,
        }
    }
}
