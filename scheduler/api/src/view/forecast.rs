//! The load that schedules will cause.

use cueline_model::{GroupName, JobName, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::openapi;

/// The fires of the next 24 hours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Forecast {
    /// The start of the first minute.
    #[schema(value_type = openapi::Instant)]
    pub from: Timestamp,
    /// The end of the last minute.
    #[schema(value_type = openapi::Instant)]
    pub to: Timestamp,
    /// The jobs that were looked at: enabled ones that the caller may read.
    pub jobs: u64,
    /// The jobs whose fires are not counted, because the computation reached its bound.
    pub left_out: u64,
    /// The fires of all jobs.
    pub fires: u64,
    /// The fires in each minute.
    pub minutes: Vec<u64>,
    /// The groups with the most fires, in this order; at most 100.
    pub groups: Vec<GroupForecast>,
    /// The minutes with the most fires, in this order; at most 10.
    pub busiest: Vec<ForecastMinute>,
    /// The seconds in which the most jobs are due, in this order; at most 10.
    pub collisions: Vec<Collision>,
}

/// The fires of one group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupForecast {
    /// The group.
    #[schema(value_type = openapi::GivenName)]
    pub group: GroupName,
    /// Its fires.
    pub fires: u64,
    /// Its fires in each minute.
    pub minutes: Vec<u64>,
}

/// The fires of one minute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForecastMinute {
    /// Its start.
    #[schema(value_type = openapi::Instant)]
    pub at: Timestamp,
    /// Its fires.
    pub fires: u64,
}

/// A second in which several jobs are due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Collision {
    /// Its start.
    #[schema(value_type = openapi::Instant)]
    pub at: Timestamp,
    /// The number of the jobs.
    pub jobs: u64,
    /// The first of them by name; at most 10.
    #[schema(value_type = Vec<openapi::GivenName>)]
    pub names: Vec<JobName>,
}
