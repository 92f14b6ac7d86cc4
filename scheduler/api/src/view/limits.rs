//! Answers about the rate limits of groups.

use cueline_model::{GroupName, Rate};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::openapi;

/// The rate limits of the groups of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LimitsPage {
    /// The groups with a rate limit, by name.
    pub groups: Vec<GroupRateView>,
}

/// The rate limit of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupRateView {
    /// The group.
    #[schema(value_type = openapi::GivenName)]
    pub group: GroupName,
    /// Absent without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::RateRule)]
    pub rate_limit: Option<Rate>,
}

impl GroupRateView {
    /// The rate of this group.
    pub const fn new(group: GroupName, rate_limit: Option<Rate>) -> Self {
        Self { group, rate_limit }
    }
}
