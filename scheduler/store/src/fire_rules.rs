//! Fire rules: calendars, maintenance windows, and the time zones that fire times depend on.

use std::sync::Arc;

use async_trait::async_trait;
use cueline_model::schedule::zones::ZoneDigest;
use cueline_model::{
    Actor, CalendarName, CalendarSpec, FireRules, JobId, JobName, Namespace, WindowSpec,
};

use crate::error::StoreError;
use crate::job::Change;
use crate::precondition::{Precondition, Revision};

/// The most calendars of one namespace.
pub const MAX_CALENDARS_OF_NAMESPACE: usize = 200;

/// The most maintenance windows of a store. Those that are over make room for new ones.
pub const MAX_WINDOWS: usize = 1_000;

/// After how long without progress another process continues with the new plans of a window's jobs.
pub const REPLAN_ABANDONED_MS: u64 = 30_000;

/// The most jobs that one transaction plans again because of a window.
pub const MAX_REPLANNED: usize = 1_000;

/// The answer to [`FireRuleStore::replan_window`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WindowReplan {
    /// The jobs whose plans have changed.
    pub jobs: Vec<JobId>,
    /// Whether no job is left.
    pub is_done: bool,
}

impl WindowReplan {
    /// Nothing is left to do.
    pub const fn done() -> Self {
        Self {
            jobs: Vec::new(),
            is_done: true,
        }
    }
}

/// The change of one calendar by [`FireRuleStore::put_calendars`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedCalendar {
    /// The name.
    pub name: CalendarName,
    /// The calendar afterwards; `None` in a dry run that would create it.
    pub revision: Option<Revision>,
    /// What happened.
    pub change: Change,
}

/// A calendar as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredCalendar {
    /// Its definition.
    pub spec: CalendarSpec,
    /// Its id and version.
    pub revision: Revision,
    /// The jobs that use it, sorted by name.
    pub jobs: Vec<JobName>,
}

/// Calendars, maintenance windows and time zones.
///
/// A change of a calendar changes the plans of all jobs that it is about, in its transaction: their runs that were written
/// ahead of their fire time are deleted, and their next fire times are computed again (G3). Excluded fire times that have
/// passed are accounted for before (G1). The method returns the ids of these jobs. A window may be about all jobs, so its
/// change is followed by calls that change the plans of some jobs each.
///
/// # Errors
///
/// As [`Store`](crate::Store).
#[async_trait]
pub trait FireRuleStore: Send + Sync + 'static {
    /// All calendars and windows.
    async fn fire_rules(&self) -> Result<Arc<FireRules>, StoreError>;

    /// The calendars of a namespace, sorted by name, with the jobs that use them. With `name`, only this one.
    async fn calendars(
        &self,
        namespace: &Namespace,
        name: Option<&CalendarName>,
    ) -> Result<Vec<StoredCalendar>, StoreError>;

    /// Creates and changes calendars, all or none. With `dry_run` nothing changes. `condition` must hold for each.
    ///
    /// # Errors
    ///
    /// [`Conflict`](crate::ErrorKind::Conflict) beyond [`MAX_CALENDARS_OF_NAMESPACE`].
    /// [`Precondition`](crate::ErrorKind::Precondition) if the condition is not met.
    async fn put_calendars(
        &self,
        specs: &[CalendarSpec],
        condition: &Precondition,
        dry_run: bool,
        by: &Actor,
    ) -> Result<(Vec<AppliedCalendar>, Vec<JobId>), StoreError>;

    /// Deletes a calendar.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such calendar, [`Conflict`](crate::ErrorKind::Conflict) with
    /// the jobs that use it. [`Precondition`](crate::ErrorKind::Precondition) if the condition is not met.
    async fn delete_calendar(
        &self,
        name: &CalendarName,
        condition: &Precondition,
        by: &Actor,
    ) -> Result<(), StoreError>;

    /// Adds a maintenance window or begins a pause, and returns its id. The plans of its jobs change only with
    /// [`replan_window`](Self::replan_window).
    ///
    /// # Errors
    ///
    /// [`Conflict`](crate::ErrorKind::Conflict) beyond [`MAX_WINDOWS`].
    async fn add_window(&self, spec: &WindowSpec, by: &Actor) -> Result<i64, StoreError>;

    /// Ends a maintenance window or a pause. It excludes nothing from now on, and the plans of its jobs change with
    /// [`replan_window`](Self::replan_window).
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such window, or if it was ended.
    async fn end_window(&self, id: i64, by: &Actor) -> Result<(), StoreError>;

    /// Changes the plans of at most `limit` further jobs in the scope of a window that was added or ended. Once
    /// [`WindowReplan::is_done`], all jobs have their new plans.
    ///
    /// At the beginning of a pause, runs of these jobs that wait and are due before its end end as with
    /// [`Store::set_job_enabled`](crate::Store::set_job_enabled).
    ///
    /// Without `window`, it continues with one that nobody has continued for [`REPLAN_ABANDONED_MS`], because the process
    /// that added or ended it is gone. A window that is unknown or needs nothing is done.
    async fn replan_window(
        &self,
        window: Option<i64>,
        limit: usize,
    ) -> Result<WindowReplan, StoreError>;

    /// The time zones that next fire times were computed with.
    async fn known_zones(&self) -> Result<Vec<ZoneDigest>, StoreError>;

    /// Notes the rules of time zones. The next fire times of jobs that depend on a zone with other rules than before are
    /// computed again. Returns how many jobs these are.
    async fn note_zones(&self, zones: &[ZoneDigest]) -> Result<u64, StoreError>;
}
