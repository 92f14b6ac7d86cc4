//! Flow runs: results of reading, cancelling and retrying them.

use std::sync::Arc;

use async_trait::async_trait;
use cueline_model::{Actor, GroupName, Job, JobName, Namespace, RunId, RunState};

use crate::StoreError;
use crate::run::Run;

/// The most runs of a flow run that are read, cancelled or retried at once. A flow run with more is refused.
pub const MAX_FLOW_RUNS: usize = 10_000;

/// The most runs of a flow run that are read with all their columns.
pub const MAX_SHOWN_RUNS: usize = 1_000;

/// The most jobs of a flow that are read. Jobs with runs come first, and the others in the order of their distance.
pub const MAX_FLOW_JOBS: usize = 1_000;

/// A flow run: a fire without a parent, and all fires of children that follow from it.
#[derive(Debug, Clone)]
pub struct FlowRun {
    /// The first run of the fire that it began with.
    pub id: RunId,
    /// All its runs, sorted by id.
    pub parts: Vec<FlowPart>,
    /// The first [`MAX_SHOWN_RUNS`] of them with all their columns.
    pub runs: Vec<Run>,
    /// The jobs of its runs, and the jobs after them by their present definitions, sorted by id. Deleted jobs and those
    /// beyond [`MAX_FLOW_JOBS`] are left out.
    pub jobs: Vec<Arc<Job>>,
}

/// A run as a part of its flow run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowPart {
    /// The run.
    pub run: RunId,
    /// Its job.
    pub job: JobName,
    /// The group of the job.
    pub group: GroupName,
    /// Its state.
    pub state: RunState,
    /// Whether its cancellation was requested.
    pub cancel_requested: bool,
}

/// How many runs of a flow run are in each state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowCounts {
    /// The flow run.
    pub id: RunId,
    /// The number of runs by state.
    pub states: Vec<(RunState, u64)>,
}

/// What the cancellation of a flow run did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelledFlow {
    /// The flow run.
    pub id: RunId,
    /// Runs that had not been published. They have ended.
    pub ended: Vec<RunId>,
    /// Runs whose executors have to stop them.
    pub requested: Vec<RunId>,
}

/// What the retry of a flow run did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetriedFlow {
    /// The flow run.
    pub id: RunId,
    /// The runs that get another attempt.
    pub runs: Vec<RunId>,
}

/// Flow runs as one thing: read, counted, cancelled, retried. Any run of a flow run names it.
///
/// # Errors
///
/// As [`Store`](crate::Store). [`NotFound`](crate::ErrorKind::NotFound) if there is no such run, and
/// [`Conflict`](crate::ErrorKind::Conflict) for a flow run with more than [`MAX_FLOW_RUNS`] runs.
#[async_trait]
pub trait FlowStore: Send + Sync + 'static {
    /// The flow run that this run is a part of.
    async fn flow_run(&self, run: RunId) -> Result<FlowRun, StoreError>;

    /// The number of runs in each state, of those of the given flow runs that have runs.
    async fn flow_counts(&self, flows: &[RunId]) -> Result<Vec<FlowCounts>, StoreError>;

    /// The first `limit` jobs by name that others run after; `None` for all namespaces.
    async fn parent_jobs(
        &self,
        namespace: Option<&Namespace>,
        limit: usize,
    ) -> Result<Vec<JobName>, StoreError>;

    /// Cancels all live runs of the flow run. Nothing follows them, also not those that succeed meanwhile.
    async fn cancel_flow(&self, run: RunId, by: &Actor) -> Result<CancelledFlow, StoreError>;

    /// Gives another attempt to each run that ended without success, unless it is of a job after another one that gets one.
    /// A success counts as none if its cancellation was requested. The retries of the job begin anew.
    ///
    /// # Errors
    ///
    /// [`Conflict`](crate::ErrorKind::Conflict) if there is no such run, or if their jobs are paused or deleted.
    async fn retry_flow(&self, run: RunId, by: &Actor) -> Result<RetriedFlow, StoreError>;
}
