//! Backfills: runs for the fire times of a past window, created a few at a time.

use async_trait::async_trait;
use cueline_model::{Actor, GroupName, JobName, Namespace, RunState, Timestamp};
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::precondition::Precondition;

/// The most backfills of a store that are running or paused.
pub const MAX_ACTIVE_BACKFILLS: usize = 50;

/// The most backfills of a store that have ended and are kept.
pub const MAX_ENDED_BACKFILLS: usize = 1_000;

/// The most runs that one call creates for all backfills together, and those of one fire.
pub const MAX_ADVANCED_RUNS: usize = 500;

/// What a backfill does. Stores keep the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum BackfillState {
    /// It creates runs, as those before them end.
    Running = 0,
    /// A person has stopped it for now. Its runs continue.
    Paused = 1,
    /// All of its runs have ended.
    Finished = 2,
    /// A person has ended it, or its job was deleted.
    Cancelled = 3,
}

impl BackfillState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Running, Self::Paused, Self::Finished, Self::Cancelled];

    /// The number in stores.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The state with that number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.code() == code)
    }

    /// Whether nothing follows.
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Finished | Self::Cancelled)
    }

    /// The word for the state.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Finished => "finished",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A backfill to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewBackfill {
    /// The job.
    pub job: JobName,
    /// What must hold for the job: the version whose fire times were counted.
    pub condition: Precondition,
    /// The first instant of the window.
    pub from: Timestamp,
    /// The first instant after it.
    pub to: Timestamp,
    /// How many fires may be at work at once, at least 1.
    pub parallel: u32,
    /// Whether fire times that calendars and maintenance windows exclude run too.
    pub include_excluded: bool,
    /// The fire times that were counted.
    pub total: u64,
    /// Who starts it.
    pub by: Actor,
}

/// A backfill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backfill {
    /// Its identity.
    pub id: i64,
    /// The job.
    pub job: JobName,
    /// The group of the job.
    pub group: GroupName,
    /// The first instant of the window.
    pub from: Timestamp,
    /// The first instant after it.
    pub to: Timestamp,
    /// How many fires may be at work at once.
    pub parallel: u32,
    /// Whether excluded fire times run too.
    pub include_excluded: bool,
    /// What it does.
    pub state: BackfillState,
    /// The fire times that were counted at its start.
    pub total: u64,
    /// The fire times that have their runs.
    pub fires: u64,
    /// Those of them whose runs have not ended.
    pub outstanding: u64,
    /// The fire times that it has passed because they are excluded.
    pub excluded: u64,
    /// The last fire time that it has looked at.
    pub cursor: Option<Timestamp>,
    /// When it was started.
    pub started_at: Timestamp,
    /// Who started it.
    pub started_by: String,
    /// When a person paused, resumed or cancelled it.
    pub changed_at: Option<Timestamp>,
    /// Who did that.
    pub changed_by: Option<String>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Why it ended, if nobody has ended it.
    pub message: Option<String>,
}

impl Backfill {
    /// The fire times whose runs have ended.
    pub const fn done(&self) -> u64 {
        self.fires.saturating_sub(self.outstanding)
    }
}

/// A backfill with its runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackfillDetail {
    /// The backfill.
    pub backfill: Backfill,
    /// The number of its runs in each state, as far as they are kept; states without runs are left out.
    pub runs: Vec<(RunState, u64)>,
}

/// Selects backfills to list, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackfillFilter {
    /// Of jobs in this namespace; `None` for all.
    pub namespace: Option<Namespace>,
    /// Of this job.
    pub job: Option<JobName>,
    /// Only those that are running or paused.
    pub active: bool,
    /// Only ids below this one.
    pub before: Option<i64>,
    /// The most to return.
    pub limit: usize,
}

/// What a person does to a backfill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackfillChange {
    /// It creates no runs for now.
    Pause,
    /// It goes on.
    Resume,
    /// It ends, and its runs are cancelled.
    Cancel,
}

impl BackfillChange {
    /// The state afterwards.
    pub const fn state(self) -> BackfillState {
        match self {
            Self::Pause => BackfillState::Paused,
            Self::Resume => BackfillState::Running,
            Self::Cancel => BackfillState::Cancelled,
        }
    }

    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Cancel => "cancel",
        }
    }
}

/// The answer to [`BackfillStore::advance_backfills`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AdvancedBackfills {
    /// How many runs were created. Any node may claim them.
    pub runs: usize,
    /// Whether a backfill is running.
    pub is_active: bool,
}

/// Backfills.
///
/// # Errors
///
/// As [`Store`](crate::Store).
#[async_trait]
pub trait BackfillStore: Send + Sync + 'static {
    /// Starts a backfill. It keeps the schedule that the job has now.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such job, [`Conflict`](crate::ErrorKind::Conflict) if the job
    /// has a backfill that has not ended, or beyond [`MAX_ACTIVE_BACKFILLS`].
    /// [`Precondition`](crate::ErrorKind::Precondition) if the condition is not met.
    async fn start_backfill(&self, new: &NewBackfill) -> Result<Backfill, StoreError>;

    /// Backfills that match the filter, newest first.
    async fn backfills(&self, filter: &BackfillFilter) -> Result<Vec<Backfill>, StoreError>;

    /// One backfill with the numbers of its runs.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such backfill.
    async fn backfill(&self, id: i64) -> Result<BackfillDetail, StoreError>;

    /// Pauses, resumes or cancels a backfill, and returns it. A change to the present state does nothing.
    ///
    /// A cancellation ends its runs that wait, and requests the cancellation of the others.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such backfill, [`Conflict`](crate::ErrorKind::Conflict) if it
    /// has ended.
    async fn change_backfill(
        &self,
        id: i64,
        change: BackfillChange,
        by: &Actor,
    ) -> Result<Backfill, StoreError>;

    /// Creates runs of the backfills that are running, as many as each may have at work, and remembers how far it got. At
    /// most [`MAX_ADVANCED_RUNS`] runs together. Ends backfills whose runs have all ended.
    ///
    /// A fire time gets its runs once, whatever number of nodes call this, die or stall. The backfill of a paused job waits.
    async fn advance_backfills(&self) -> Result<AdvancedBackfills, StoreError>;
}
