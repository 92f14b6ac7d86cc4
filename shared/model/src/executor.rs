//! Executors: their identity and their heartbeats.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::name::{ExecutorName, GroupName};
use crate::selector::ExecutorLabels;

/// Identity of an executor. It stays the same across restarts of the process.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ExecutorId {
    /// The group whose jobs it runs.
    pub group: GroupName,
    /// Its name, unique within the group.
    pub name: ExecutorName,
}

impl fmt::Display for ExecutorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group, self.name)
    }
}

/// A time in which the schedulers could not have given an executor's attempts to others. The executor begins a new
/// session with a greater number after an absence so long that they may have done so. Triggers name the session that
/// they were written for, and the executor returns those of an earlier one.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Session(pub i64);

/// An executor's share of the runs under the route `weighted`: 1–100, 1 by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Weight(u8);

impl Weight {
    /// The largest weight.
    pub const MAX: u8 = 100;

    /// The weight closest to `n`.
    pub fn clamped(n: i64) -> Self {
        Self(u8::try_from(n.clamp(1, i64::from(Self::MAX))).unwrap_or(1))
    }

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }

    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "the signature that serde asks for"
    )]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self(1)
    }
}

impl<'de> Deserialize<'de> for Weight {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        i64::deserialize(deserializer).map(Self::clamped)
    }
}

/// The state that an executor announces every few seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The sender.
    #[serde(flatten)]
    pub executor: ExecutorId,
    /// Identifies one start of the process.
    pub incarnation: String,
    /// The executor's present session.
    pub session: Session,
    /// The handlers that the executor can run; see [`HandlerSpec::capability`](crate::HandlerSpec::capability).
    pub capabilities: Vec<String>,
    /// The most handlers that the executor runs at once.
    pub capacity: u32,
    /// The labels by which selectors of jobs filter.
    #[serde(default, skip_serializing_if = "ExecutorLabels::is_empty")]
    pub labels: ExecutorLabels,
    /// The share of runs that the route `weighted` gives it, beside the weights of the others.
    #[serde(default, skip_serializing_if = "Weight::is_default")]
    pub weight: Weight,
    /// The number of accepted attempts that have not ended.
    pub held: u64,
    /// The number of held attempts that are running.
    pub running: u64,
    /// Whether the executor has stopped accepting triggers.
    pub draining: bool,
    /// Whether the process has stopped in order. Schedulers do not wait for such an executor.
    pub gone: bool,
    /// Why the executor gets no triggers although it runs. Set by the scheduler that receives the heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}
