//! Flow runs in answers.

use cueline_model::{After, GroupName, JobName, RunId, RunKind, Timestamp};
use cueline_store::Run;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Counts, Namespaced};
use crate::openapi;

/// How a flow run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FlowState {
    /// A run is live.
    Running,
    /// All jobs that started have succeeded.
    Succeeded,
    /// A job has failed.
    Failed,
    /// A job was cancelled, discarded, covered or skipped, and none has failed.
    Stopped,
}

impl FlowState {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }
}

/// How a job stands in a flow run. All its shards count as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FlowJobState {
    /// It has not started, and the end of another job may start it.
    Waiting,
    /// It has not started, and does not start any more.
    NotStarted,
    /// A shard is live.
    Running,
    /// All shards succeeded.
    Succeeded,
    /// A shard failed, and the others have ended.
    Failed,
    /// A shard was cancelled, discarded, covered or skipped, or its cancellation was requested. No job after it starts.
    Stopped,
}

impl FlowJobState {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::NotStarted => "not_started",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }
}

/// A job in the graph of a flow run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlowJob {
    /// Its name.
    #[schema(value_type = openapi::GivenName)]
    pub job: JobName,
    /// Its group.
    #[schema(value_type = openapi::GivenName)]
    pub group: GroupName,
    /// How it stands.
    pub state: FlowJobState,
    /// Its parents; absent for the job that the flow run began with, if it has none, and for deleted jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::GivenAfter)]
    pub after: Option<After>,
    /// The number of its runs in each state.
    #[schema(value_type = openapi::RunCounts)]
    pub runs: Counts,
    /// Why it has not started, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<String>,
}

/// A flow run with its graph and its runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlowView {
    /// Its number: the first run of the fire that it began with.
    #[schema(value_type = i64)]
    pub id: RunId,
    /// The job that it began with.
    #[schema(value_type = openapi::GivenName)]
    pub job: JobName,
    /// How it stands.
    pub state: FlowState,
    /// The fire time.
    #[schema(value_type = openapi::Instant)]
    pub fire_at: Timestamp,
    /// When its first run was written.
    #[schema(value_type = openapi::Instant)]
    pub created_at: Timestamp,
    /// When its last run ended; `null` while a run is live.
    #[schema(value_type = Option<openapi::Instant>, required)]
    pub ended_at: Option<Timestamp>,
    /// The jobs that it has reached, and those after them, each after its parents.
    pub jobs: Vec<FlowJob>,
    /// Its runs, oldest first; at most 1,000.
    #[schema(value_type = Vec<openapi::Run>)]
    pub runs: Vec<Namespaced<Run>>,
    /// The number of jobs and runs that are left out: those beyond the limits, and those that the caller may not read.
    pub left_out: u64,
    /// The store's clock.
    #[schema(value_type = openapi::Instant)]
    pub now: Timestamp,
}

/// A flow run in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlowRef {
    /// Its number.
    #[schema(value_type = i64)]
    pub id: RunId,
    /// The job that it began with.
    #[schema(value_type = openapi::GivenName)]
    pub job: JobName,
    /// Its group.
    #[schema(value_type = openapi::GivenName)]
    pub group: GroupName,
    /// What began it.
    #[schema(value_type = openapi::RunKind)]
    pub kind: RunKind,
    /// How it stands.
    pub state: FlowState,
    /// The fire time.
    #[schema(value_type = openapi::Instant)]
    pub fire_at: Timestamp,
    /// When its first run was written.
    #[schema(value_type = openapi::Instant)]
    pub created_at: Timestamp,
    /// The number of its runs in each state.
    #[schema(value_type = openapi::RunCounts)]
    pub runs: Counts,
}

/// A page of flow runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlowPage {
    /// The flow runs.
    pub flows: Vec<FlowRef>,
    /// `after` for the next page; absent on the last one. A page may be short, and still have a next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::PageCursor)]
    pub next: Option<String>,
    /// The store's clock.
    #[schema(value_type = openapi::Instant)]
    pub now: Timestamp,
}

/// What the cancellation of a flow run did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlowCancelled {
    /// The flow run.
    #[schema(value_type = i64)]
    pub id: RunId,
    /// Runs that had not been published. They have ended.
    #[schema(value_type = Vec<i64>)]
    pub ended: Vec<RunId>,
    /// Runs that their executors were asked to stop.
    #[schema(value_type = Vec<i64>)]
    pub asked: Vec<RunId>,
}

/// What the retry of a flow run did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlowRetried {
    /// The flow run.
    #[schema(value_type = i64)]
    pub id: RunId,
    /// The runs that get another attempt.
    #[schema(value_type = Vec<i64>)]
    pub runs: Vec<RunId>,
}
