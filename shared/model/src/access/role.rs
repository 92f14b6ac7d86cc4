//! Roles and the rights that they include.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::nearest::nearest;

/// What a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Right {
    /// See jobs, runs, logs, executors and queues.
    Read,
    /// Trigger, pause, resume and cancel; drain, purge and replay queues; replay and delete dead letters.
    Operate,
    /// Create, change and delete jobs.
    EditJobs,
    /// Create and change jobs that run a script or a command, and HTTP jobs that name a secret.
    EditScripts,
    /// Enrol workers; list, revoke and allow their keys.
    ManageWorkers,
    /// Create, change and delete alarm channels: schedulers connect to their addresses, with secrets of the schedulers.
    ManageChannels,
    /// Create, change and delete users, tokens and grants.
    ManageAccounts,
    /// Read the audit log.
    ReadAudit,
}

impl Right {
    /// All rights.
    pub const ALL: [Self; 8] = [
        Self::Read,
        Self::Operate,
        Self::EditJobs,
        Self::EditScripts,
        Self::ManageWorkers,
        Self::ManageChannels,
        Self::ManageAccounts,
        Self::ReadAudit,
    ];

    /// What the right lets one do, for messages: `you may not <this>`.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "trigger, pause and cancel",
            Self::EditJobs => "edit jobs",
            Self::EditScripts => "edit jobs that run a script or a command, or send a secret",
            Self::ManageWorkers => "manage workers",
            Self::ManageChannels => "manage alarm channels",
            Self::ManageAccounts => "manage accounts",
            Self::ReadAudit => "read the audit log",
        }
    }
}

/// A set of rights. Each role includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads.
    Viewer,
    /// Triggers, pauses and cancels.
    Operator,
    /// Edits jobs; scripts are a right of their own.
    Author,
    /// Manages workers, alarm channels and accounts, and reads the audit log.
    Admin,
}

impl Role {
    /// All roles, least rights first.
    pub const ALL: [Self; 4] = [Self::Viewer, Self::Operator, Self::Author, Self::Admin];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Author => "author",
            Self::Admin => "admin",
        }
    }

    /// Whether the role includes a right. For [`Right::EditScripts`] the grant has to say so too.
    pub fn includes(self, right: Right) -> bool {
        let least = match right {
            Right::Read => Self::Viewer,
            Right::Operate => Self::Operator,
            Right::EditJobs | Right::EditScripts => Self::Author,
            Right::ManageWorkers
            | Right::ManageChannels
            | Right::ManageAccounts
            | Right::ReadAudit => Self::Admin,
        };
        self >= least
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text is no role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown role {text:?}{}; use viewer, operator, author or admin", .near.map(|role| format!("; did you mean {:?}?", role.as_str())).unwrap_or_default())]
pub struct UnknownRole {
    text: String,
    near: Option<Role>,
}

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(text: &str) -> Result<Self, UnknownRole> {
        let named = |name: &str| Self::ALL.into_iter().find(|role| role.as_str() == name);
        named(text).ok_or_else(|| UnknownRole {
            text: text.chars().take(64).collect(),
            near: nearest(text, Self::ALL.into_iter().map(Self::as_str)).and_then(named),
        })
    }
}
