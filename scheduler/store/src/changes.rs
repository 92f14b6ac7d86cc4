//! Reading changes: new runs, runs that have changed, and jobs that have changed.
//!
//! A reader keeps what it has seen, and asks what is different now. Nothing here costs the writers anything: there is no
//! table of changes.

use cueline_model::{ExecutorName, GroupName, JobId, JobName, RunId, RunKind, RunState, Timestamp};

/// The values of a run that change, and what it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunBrief {
    /// Identity of the run.
    pub id: RunId,
    /// Its job.
    pub job_id: JobId,
    /// The name of the job.
    pub job: JobName,
    /// The present group of the job.
    pub group: GroupName,
    /// What created the run.
    pub kind: RunKind,
    /// Its state.
    pub state: RunState,
    /// Number of the current or last attempt, from 1.
    pub attempt: u32,
    /// The executor of the current or last attempt.
    pub executor: Option<ExecutorName>,
    /// The fire time.
    pub fire_at: Timestamp,
    /// When the run ended.
    pub ended_at: Option<Timestamp>,
}

/// What a reader knows of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownRun {
    /// The run.
    pub id: RunId,
    /// Its state.
    pub state: RunState,
    /// Number of the current or last attempt.
    pub attempt: u32,
}

impl From<&RunBrief> for KnownRun {
    fn from(run: &RunBrief) -> Self {
        Self {
            id: run.id,
            state: run.state,
            attempt: run.attempt,
        }
    }
}

/// The runs that are different from what a reader knew.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangedRuns {
    /// Runs in another state, or at another attempt, sorted by id.
    pub changed: Vec<RunBrief>,
    /// Runs that no longer exist, sorted by id.
    pub deleted: Vec<RunId>,
}

/// Run numbers that were allocated and whose runs were not found yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingNumbers {
    /// The lowest one.
    pub first: i64,
    /// The highest one.
    pub last: i64,
    /// When they were found to be missing, by the database's clock.
    pub since: Timestamp,
}

/// Where a reader of new runs stands. Only the store that made it can continue from it.
///
/// A transaction may commit runs with lower numbers than those of another one that has committed before. So a position
/// alone could pass over runs. The cursor keeps the numbers that were missing below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunCursor {
    /// The highest number that was read.
    pub last: i64,
    /// Lower numbers that may still appear, ascending and apart from each other.
    pub missing: Vec<MissingNumbers>,
}

/// New runs after a cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRuns {
    /// The runs with their present values, sorted by id. Each run is returned once.
    pub runs: Vec<RunBrief>,
    /// Where to continue.
    pub cursor: RunCursor,
    /// Whether the limit was reached, so that there may be more now.
    pub more: bool,
    /// Whether the store has gone back behind the cursor, after a restore or after 10^10 runs. Then there are no runs here,
    /// and the reader has to start again.
    pub restarted: bool,
}

/// The present position, and the runs that are live there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveRuns {
    /// Where new runs begin.
    pub cursor: RunCursor,
    /// The newest live runs, sorted by id, descending.
    pub live: Vec<RunBrief>,
}

/// Numbers over all jobs, of which at least one changes with each change of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobsFingerprint {
    /// The highest id of all jobs, deleted ones included.
    pub highest_id: i64,
    /// The number of jobs that are not deleted.
    pub count: i64,
    /// The sum of their versions.
    pub versions: i64,
    /// The sum of their ids.
    pub ids: i64,
}

/// The values of a job that tell whether it has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobBrief {
    /// Identity of the job.
    pub id: JobId,
    /// Its name.
    pub name: JobName,
    /// The group whose executors run it.
    pub group: GroupName,
    /// The version of its definition.
    pub version: i64,
    /// Whether its schedule is on.
    pub enabled: bool,
}
