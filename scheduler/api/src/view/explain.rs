//! The answer to the question why a job or a run does not run now.

use cueline_model::{JobName, RunId, RunState};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::openapi;

/// Why a job or a run does not run now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The job.
    #[schema(value_type = openapi::GivenName)]
    pub job: JobName,
    /// The run that the reason is about; absent if it is about the schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>, nullable = false)]
    pub run: Option<RunId>,
    /// The state of that run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::RunState)]
    pub state: Option<RunState>,
    /// The reason, in one word for programs. Later versions may know further ones.
    pub reason: String,
    /// The reason, in one sentence for people.
    pub sentence: String,
    /// The command that shows more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub look_at: Option<String>,
}
