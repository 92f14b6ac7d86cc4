//! Answers about retention: rules, what applies to a job, and what a prune has deleted.

use cueline_model::retention::{Kept, RetentionSource};
use cueline_model::{DurationMs, GroupName, JobName, Retention, RetentionOfJob, RunId};
use cueline_store::{GroupRetention, Pruned, PrunedOfJob};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::openapi;

/// What the server keeps, and the rules of the groups of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RetentionPage {
    /// Ended runs without a rule are deleted after this time.
    #[schema(value_type = openapi::Duration)]
    pub age: DurationMs,
    /// Entries of the audit log are deleted after this time.
    #[schema(value_type = openapi::Duration)]
    pub audit: DurationMs,
    /// Dead letters are deleted after this time.
    #[schema(value_type = openapi::Duration)]
    pub dead_letters: DurationMs,
    /// The groups with a rule, by name.
    pub groups: Vec<GroupRetentionView>,
}

/// The rule of a group. What is absent, the server decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupRetentionView {
    /// The group.
    #[schema(value_type = openapi::GivenName)]
    pub group: GroupName,
    /// Runs are deleted this long after their end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::Duration)]
    pub age: Option<DurationMs>,
    /// The number of the newest runs of each job that are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub runs: Option<u32>,
    /// Logs are deleted this long after the end of their run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::Duration)]
    pub logs: Option<DurationMs>,
    /// Outputs are deleted this long after the end of their run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::Duration)]
    pub outputs: Option<DurationMs>,
}

impl GroupRetentionView {
    /// The rule of this group.
    pub fn new(group: GroupName, rule: &Retention) -> Self {
        Self {
            group,
            age: rule.age,
            runs: rule.runs,
            logs: rule.logs,
            outputs: rule.outputs,
        }
    }
}

impl From<GroupRetention> for GroupRetentionView {
    fn from(stored: GroupRetention) -> Self {
        Self::new(stored.group, &stored.rule)
    }
}

/// What says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeptBy {
    /// The definition of the job.
    Job,
    /// The rule of its group.
    Group,
    /// The settings of the server.
    Server,
}

impl KeptBy {
    /// For people.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Job => "set by the job",
            Self::Group => "set for its group",
            Self::Server => "set for the server",
        }
    }
}

impl From<RetentionSource> for KeptBy {
    fn from(source: RetentionSource) -> Self {
        match source {
            RetentionSource::Job => Self::Job,
            RetentionSource::Group => Self::Group,
            RetentionSource::Server => Self::Server,
        }
    }
}

/// For how long something is kept after the end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeptFor {
    /// The time.
    #[schema(value_type = openapi::Duration)]
    pub time: DurationMs,
    /// What says so.
    pub by: KeptBy,
}

impl From<Kept<DurationMs>> for KeptFor {
    fn from(kept: Kept<DurationMs>) -> Self {
        Self {
            time: kept.value,
            by: kept.from.into(),
        }
    }
}

/// How many of the newest runs are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeptRuns {
    /// The number.
    pub number: u32,
    /// What says so.
    pub by: KeptBy,
}

/// What is kept of the runs of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobRetention {
    /// The job.
    #[schema(value_type = openapi::GivenName)]
    pub job: JobName,
    /// Ended runs.
    pub age: KeptFor,
    /// The newest runs; absent for any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub runs: Option<KeptRuns>,
    /// Logs of ended runs.
    pub logs: KeptFor,
    /// Outputs of ended runs.
    pub outputs: KeptFor,
}

impl JobRetention {
    /// What applies to the job.
    pub fn new(job: JobName, of: &RetentionOfJob) -> Self {
        Self {
            job,
            age: of.age.into(),
            runs: of.runs.map(|runs| KeptRuns {
                number: runs.value,
                by: runs.from.into(),
            }),
            logs: of.logs.into(),
            outputs: of.outputs.into(),
        }
    }
}

/// What a prune has deleted. Runs that are not counted here do not exist, or are not the caller's to delete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PrunedRuns {
    /// The number of deleted runs.
    pub deleted: u64,
    /// These by job.
    pub jobs: Vec<PrunedRunsOfJob>,
    /// Runs that stay because they, or other shards of their fire, have not ended.
    #[schema(value_type = Vec<openapi::RunNumber>)]
    pub live: Vec<RunId>,
}

impl From<Pruned> for PrunedRuns {
    fn from(pruned: Pruned) -> Self {
        Self {
            deleted: pruned.count(),
            jobs: pruned.deleted.into_iter().map(Into::into).collect(),
            live: pruned.live,
        }
    }
}

/// Deleted runs of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PrunedRunsOfJob {
    /// The job.
    #[schema(value_type = openapi::GivenName)]
    pub job: JobName,
    /// Their number.
    pub runs: u64,
}

impl From<PrunedOfJob> for PrunedRunsOfJob {
    fn from(of: PrunedOfJob) -> Self {
        Self {
            job: of.job,
            runs: of.runs,
        }
    }
}
