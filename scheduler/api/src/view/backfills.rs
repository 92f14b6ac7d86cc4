//! Answers about backfills.

use cueline_model::{GroupName, JobName, Timestamp};
use cueline_store::{Backfill, BackfillDetail, BackfillState};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Counts;
use crate::openapi;

/// A backfill: runs for the fire times of a past window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BackfillView {
    /// Its number.
    pub id: i64,
    /// The job.
    #[schema(value_type = openapi::GivenName)]
    pub job: JobName,
    /// The group of the job.
    #[schema(value_type = openapi::GivenName)]
    pub group: GroupName,
    /// The first instant of the window.
    #[schema(value_type = openapi::Instant)]
    pub from: Timestamp,
    /// The first instant after it.
    #[schema(value_type = openapi::Instant)]
    pub to: Timestamp,
    /// How many fire times may be at work at once.
    pub parallel: u32,
    /// Whether fire times run that calendars and maintenance windows exclude.
    pub include_excluded: bool,
    /// What it does.
    #[schema(value_type = openapi::BackfillState)]
    pub state: BackfillState,
    /// The fire times that were counted at its start.
    pub total: u64,
    /// The fire times whose runs have ended.
    pub done: u64,
    /// The fire times whose runs wait or are at work.
    pub outstanding: u64,
    /// The fire times that were passed because they are excluded.
    pub excluded: u64,
    /// The last fire time that was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<openapi::Instant>, nullable = false)]
    pub cursor: Option<Timestamp>,
    /// When it was started.
    #[schema(value_type = openapi::Instant)]
    pub started_at: Timestamp,
    /// Who started it.
    pub started_by: String,
    /// When somebody paused, resumed or cancelled it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<openapi::Instant>, nullable = false)]
    pub changed_at: Option<Timestamp>,
    /// Who did that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub changed_by: Option<String>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<openapi::Instant>, nullable = false)]
    pub ended_at: Option<Timestamp>,
    /// Why it ended, if nobody has ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub message: Option<String>,
    /// The number of its runs in each state, as far as they are kept. Only of a single backfill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<openapi::RunCounts>, nullable = false)]
    pub runs: Option<Counts>,
}

impl From<Backfill> for BackfillView {
    fn from(backfill: Backfill) -> Self {
        let done = backfill.done();
        Self {
            id: backfill.id,
            job: backfill.job,
            group: backfill.group,
            from: backfill.from,
            to: backfill.to,
            parallel: backfill.parallel,
            include_excluded: backfill.include_excluded,
            state: backfill.state,
            total: backfill.total,
            done,
            outstanding: backfill.outstanding,
            excluded: backfill.excluded,
            cursor: backfill.cursor,
            started_at: backfill.started_at,
            started_by: backfill.started_by,
            changed_at: backfill.changed_at,
            changed_by: backfill.changed_by,
            ended_at: backfill.ended_at,
            message: backfill.message,
            runs: None,
        }
    }
}

impl From<BackfillDetail> for BackfillView {
    fn from(detail: BackfillDetail) -> Self {
        Self {
            runs: Some(detail.runs.into_iter().collect()),
            ..Self::from(detail.backfill)
        }
    }
}

/// Backfills, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BackfillList {
    /// The backfills.
    pub backfills: Vec<BackfillView>,
    /// The time of the answer.
    #[schema(value_type = openapi::Instant)]
    pub now: Timestamp,
}

/// The fire times of a window, and the backfill that runs them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BackfillStarted {
    /// Whether they were only counted.
    pub dry_run: bool,
    /// The fire times that run.
    pub fires: u64,
    /// The fire times that calendars and maintenance windows exclude.
    pub excluded: u64,
    /// The backfill; absent in a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub backfill: Option<BackfillView>,
}
