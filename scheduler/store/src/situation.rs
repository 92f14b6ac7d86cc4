//! What the store knows of a job at one instant, for an explanation.

use std::sync::Arc;

use async_trait::async_trait;
use cueline_model::{FireRules, JobName, RunId, RunState, Timestamp};

use crate::audit::JobVersion;
use crate::backfill::Backfill;
use crate::error::StoreError;
use crate::executor::Executor;
use crate::job::JobSummary;
use crate::limits::LimitUsage;
use crate::namespaces::QuotaLoad;
use crate::run::{Run, RunDetail};

/// The most live runs of a job that are read, the oldest first. Of a longer backlog the number ahead is a lower bound.
pub const MAX_SITUATION_RUNS: usize = 1_000;

/// The most versions that are read to find who paused the job.
pub const MAX_SITUATION_VERSIONS: usize = 100;

/// What an explanation is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject<'a> {
    /// A job: its oldest run that is due and has not started, or its schedule.
    Job(&'a JobName),
    /// A run.
    Run(RunId),
}

/// A job, its runs, and what may hold them back, in one snapshot.
#[derive(Debug, Clone)]
pub struct Situation {
    /// The time of the snapshot.
    pub now: Timestamp,
    /// The job; `None` if it is deleted.
    pub job: Option<JobSummary>,
    /// The run that it is about: the one that was asked for, or the [oldest that waits](waiting_run).
    pub run: Option<RunDetail>,
    /// The live runs of the job with the lowest ids, ascending; at most [`MAX_SITUATION_RUNS`].
    pub live: Vec<Run>,
    /// The executors of its group.
    pub executors: Vec<Executor>,
    /// If it is paused alone, its newest versions, newest first; at most [`MAX_SITUATION_VERSIONS`].
    pub versions: Vec<JobVersion>,
    /// All calendars, windows and pauses.
    pub rules: Arc<FireRules>,
    /// The quotas of its namespace, if it has any.
    pub quotas: Option<QuotaLoad>,
    /// Its backfill, if it has one that has not ended.
    pub backfill: Option<Backfill>,
    /// The limits of its dispatches. Only runs at work have places.
    pub limits: Vec<LimitUsage>,
}

/// The oldest of these live runs that is due and has not started.
pub fn waiting_run(live: &[Run], now: Timestamp) -> Option<&Run> {
    let waits = |run: &&Run| run.state != RunState::Running && run.due_at <= now;
    live.iter().find(waits)
}

/// Explanations.
///
/// # Errors
///
/// As [`Store`](crate::Store).
#[async_trait]
pub trait Situations: Send + Sync + 'static {
    /// Reads all that an explanation needs, in one snapshot, and bounded whatever size the job has.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such job or run.
    async fn situation(&self, subject: Subject<'_>) -> Result<Situation, StoreError>;
}
