//! Alarm rules.

use serde::{Deserialize, Serialize};

use super::event::ConditionKind;
use super::scope::AlarmScope;
use crate::duration::DurationMs;
use crate::job::JobSpec;
use crate::name::RuleName;

/// The most conditions of a rule.
pub const MAX_CONDITIONS: usize = 20;

/// The most channels of a rule.
pub const MAX_RULE_CHANNELS: usize = 10;

/// For how long events are collected if the rule does not say.
pub const DEFAULT_GROUP_INTERVAL: DurationMs = DurationMs::secs(30);

/// The longest time for which events are collected.
pub const MAX_GROUP_INTERVAL: DurationMs = DurationMs::secs(24 * 3_600);

/// What raises alarms, and where they go.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AlarmRule {
    /// Its name.
    #[serde(flatten, with = "crate::name::written")]
    pub name: RuleName,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The jobs that it is about.
    #[serde(flatten)]
    pub scope: AlarmScope,
    /// What raises an alarm.
    pub on: Vec<Condition>,
    /// The channels, by their local names in the namespace of the rule.
    pub channels: Vec<String>,
    /// Events within this time after the first one are in one message.
    #[serde(default = "default_group_interval")]
    pub group_interval: DurationMs,
    /// Whether it raises alarms.
    #[serde(default = "default_enabled")]
    pub enabled: bool,
}

const fn default_group_interval() -> DurationMs {
    DEFAULT_GROUP_INTERVAL
}

const fn default_enabled() -> bool {
    true
}

impl AlarmRule {
    /// Whether the rule is about the job at present.
    pub fn watches(&self, spec: &JobSpec) -> bool {
        self.enabled && self.scope.has(&self.name.namespace(), spec)
    }

    /// Whether it has a condition for which jobs and groups are looked at from time to time.
    pub fn asks_for_levels(&self) -> bool {
        self.enabled && self.on.iter().any(|condition| condition.is_level())
    }
}

/// What raises an alarm. The first seven follow from the end of a run or from a fire; the others hold for a time, and raise
/// one alarm when they begin to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// A run ended in a failure: `failed`, `timed_out`, `lost` or `unroutable`, after its last attempt.
    Failed,
    /// So many runs of a job failed one after the other. It raises one alarm until a run succeeds.
    FailedInARow(u32),
    /// A run ended `timed_out`.
    TimedOut,
    /// A run ended `lost`.
    Lost,
    /// A run ended `unroutable`.
    Unroutable,
    /// The first success after a failure.
    Recovered,
    /// Fire times were skipped because they were found too late.
    Missed,
    /// A run has not started for this long after its due time.
    Late(DurationMs),
    /// More than this many runs of a job are due and have not started.
    Backlog(u32),
    /// The group of a job has had no live executor for this long.
    NoExecutor(DurationMs),
}

impl Condition {
    /// Its kind.
    pub const fn kind(self) -> ConditionKind {
        match self {
            Self::Failed => ConditionKind::Failed,
            Self::FailedInARow(_) => ConditionKind::FailedInARow,
            Self::TimedOut => ConditionKind::TimedOut,
            Self::Lost => ConditionKind::Lost,
            Self::Unroutable => ConditionKind::Unroutable,
            Self::Recovered => ConditionKind::Recovered,
            Self::Missed => ConditionKind::Missed,
            Self::Late(_) => ConditionKind::Late,
            Self::Backlog(_) => ConditionKind::Backlog,
            Self::NoExecutor(_) => ConditionKind::NoExecutor,
        }
    }

    /// Its value, in milliseconds if it is a time; 0 if it has none.
    pub(super) fn value(self) -> u64 {
        match self {
            Self::FailedInARow(count) | Self::Backlog(count) => u64::from(count),
            Self::Late(time) | Self::NoExecutor(time) => time.as_millis(),
            _ => 0,
        }
    }

    /// Whether it holds for a time, and is looked at from time to time.
    pub const fn is_level(self) -> bool {
        matches!(self, Self::Late(_) | Self::Backlog(_) | Self::NoExecutor(_))
    }

    /// Whether it needs the number of failures in a row.
    pub(super) const fn needs_streak(self) -> bool {
        matches!(self, Self::FailedInARow(_) | Self::Recovered)
    }
}
