//! Executors: their identity and their heartbeats.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::name::{ExecutorName, GroupName};

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

/// What an executor announces about itself, every few seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Who sends it.
    #[serde(flatten)]
    pub executor: ExecutorId,
    /// Differs after each start of the process.
    pub incarnation: String,
    /// The handlers that it can run; see [`HandlerSpec::capability`](crate::HandlerSpec::capability).
    pub capabilities: Vec<String>,
    /// The most handlers that it runs at once.
    pub capacity: u32,
    /// Attempts that it has accepted and that have not ended.
    pub held: u64,
    /// How many of the held attempts run.
    pub running: u64,
    /// It accepts no more triggers.
    pub draining: bool,
    /// The process has stopped in order; schedulers do not wait for it.
    pub gone: bool,
}
