//! Limits of dispatches: what a request is limited by, and why it waits.

use std::collections::BTreeMap;
use std::fmt;

use cueline_model::{
    AttemptId, GroupName, JobId, Namespace, Rate, RatePer, RateWindow, RunId, Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::node::NodeId;

/// The rate limit of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRate {
    /// The group.
    pub group: GroupName,
    /// How many attempts of all its jobs are dispatched within an interval.
    pub rate: Rate,
}

/// The most groups with a rate limit.
pub const MAX_GROUP_RATES: usize = 10_000;

/// What shares one limit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LimitKey {
    /// The rate of one job.
    RateOfJob(JobId),
    /// The rate of the jobs of a namespace that name this key.
    RateOfKey(Namespace, String),
    /// The rate of the jobs of a group.
    RateOfGroup(GroupName),
    /// The attempts at work of the jobs of a namespace that name this key.
    Concurrency(Namespace, String),
}

impl LimitKey {
    /// Its name in the store.
    pub fn stored(&self) -> String {
        match self {
            Self::RateOfJob(job) => format!("rate:job:{job}"),
            Self::RateOfKey(namespace, key) => format!("rate:key:{namespace}/{key}"),
            Self::RateOfGroup(group) => format!("rate:group:{group}"),
            Self::Concurrency(namespace, key) => format!("concurrency:{namespace}/{key}"),
        }
    }

    /// Whether the end of a run makes room.
    pub const fn is_freed_by_ends(&self) -> bool {
        matches!(self, Self::Concurrency(..))
    }
}

/// As users name it.
impl fmt::Display for LimitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RateOfJob(_) => f.write_str("the rate limit of the job"),
            Self::RateOfKey(_, key) => write!(f, "the rate limit of key {key}"),
            Self::RateOfGroup(group) => write!(f, "the rate limit of group {}", group.local()),
            Self::Concurrency(_, key) => write!(f, "the concurrency limit of key {key}"),
        }
    }
}

/// The number of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitRule {
    /// Dispatches in any interval.
    Rate(Rate),
    /// Attempts at work.
    Concurrency(u32),
}

/// A limit of a run, with the number that its job states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitUse {
    /// What shares the limit.
    pub key: LimitKey,
    /// The number.
    pub rule: LimitRule,
}

/// A node that waits for a limit asks for it again within this time, in ms.
pub const LIMIT_ASKED_WITHIN_MS: u64 = 2_000;

/// The place of a run among all that wait for one limit: when it was to fire, its priority from high to low, its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LimitPlace(pub i64, pub u8, pub RunId);

/// The limits of an attempt that is about to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DispatchLimits {
    /// All of them. Each has to have a place for it.
    pub uses: Vec<LimitUse>,
    /// Its place among those that wait.
    pub place: LimitPlace,
    /// When it is published, unless that is past. A rate counts it at that instant.
    pub due_at: Timestamp,
}

/// The limits that the definition of a job names, and the rate of its group if that has one.
pub fn limits_of_job(
    job: JobId,
    spec: &cueline_model::JobSpec,
    group: Option<Rate>,
) -> Vec<LimitUse> {
    let namespace = || spec.name.namespace();
    let rate = spec.rate_limit.as_ref().map(|limit| LimitUse {
        key: match &limit.key {
            Some(key) => LimitKey::RateOfKey(namespace(), key.clone()),
            None => LimitKey::RateOfJob(job),
        },
        rule: LimitRule::Rate(limit.rate),
    });
    let concurrency = spec.concurrency.as_ref().map(|limit| LimitUse {
        key: LimitKey::Concurrency(namespace(), limit.key.clone()),
        rule: LimitRule::Concurrency(limit.limit),
    });
    let of_group = group.map(|rate| LimitUse {
        key: LimitKey::RateOfGroup(spec.group.clone()),
        rule: LimitRule::Rate(rate),
    });
    // A run that a rate makes wait keeps no place of the concurrency limit. So rates are asked first.
    rate.into_iter()
        .chain(of_group)
        .chain(concurrency)
        .collect()
}

/// Why an attempt has to wait for a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitWait {
    /// The attempt. It is `scheduled` and still claimed by the node.
    pub attempt: AttemptId,
    /// The limit.
    pub key: LimitKey,
    /// What it waits for.
    pub reason: LimitWaitReason,
}

/// What an attempt waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitWaitReason {
    /// The rate allows the next dispatch at this instant.
    Rate(Timestamp),
    /// As many attempts as the limit allows are at work; one of them is of this run.
    Full(RunId),
    /// This run comes first.
    Behind(RunId),
    /// Another scheduler decides on this limit, and has not ended yet.
    Contested,
}

impl fmt::Display for LimitWaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(at) => write!(f, "the next place is free at {at}"),
            Self::Full(run) => write!(f, "run {run} and others use all places"),
            Self::Behind(run) => write!(f, "run {run} comes first"),
            Self::Contested => f.write_str("another scheduler decides on it"),
        }
    }
}

/// What the store knows of one limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitState {
    /// The dispatches of the last interval, for each interval that a job has named.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub windows: BTreeMap<RatePer, RateWindow>,
    /// The runs whose attempts were dispatched. One that is not at an executor any more does not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<RunId>,
    /// The first waiting run of each node that has asked lately.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<LimitTurn>,
}

/// A run that was refused, and whose node asks again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitTurn {
    /// The node.
    pub node: NodeId,
    /// The place of the run.
    pub place: LimitPlace,
    /// The node has asked again by then. Later, the run has no turn.
    pub until: Timestamp,
}

/// The use of a limit of a job, for an explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitUsage {
    /// The limit.
    pub limit: LimitUse,
    /// What uses it.
    pub state: LimitState,
}
