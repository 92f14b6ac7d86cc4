//! Answers about scripts.

use cueline_model::handler::Interpreter;
use cueline_model::{JobName, ScriptName, Timestamp};
use cueline_store::{AppliedScript, Change, ScriptVersion, StoredScript};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::openapi;

/// A script with its newest version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScriptView {
    /// Its number, which is never given again.
    pub id: i64,
    /// Its name.
    #[schema(value_type = openapi::GivenName)]
    pub name: ScriptName,
    /// The newest version.
    pub newest: ScriptVersionView,
    /// The jobs that use it.
    pub jobs: Vec<ScriptUserView>,
}

impl From<StoredScript> for ScriptView {
    fn from(stored: StoredScript) -> Self {
        let user = |(job, version)| ScriptUserView { job, version };
        Self {
            id: stored.revision.id,
            name: stored.name,
            newest: stored.newest.into(),
            jobs: stored.jobs.into_iter().map(user).collect(),
        }
    }
}

/// A job that uses a script.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScriptUserView {
    /// Its name.
    #[schema(value_type = openapi::GivenName)]
    pub job: JobName,
    /// The version that it is pinned to; absent if it follows the newest one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub version: Option<i64>,
}

/// The scripts of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScriptList {
    /// The scripts, by name.
    pub scripts: Vec<ScriptView>,
}

/// A version of a script.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScriptVersionView {
    /// The number of the version, from 1.
    pub version: i64,
    /// When it was saved.
    #[schema(value_type = openapi::Instant)]
    pub at: Timestamp,
    /// Who saved it.
    pub by: String,
    /// Why it was saved.
    pub remark: String,
    /// The program that runs it.
    #[schema(value_type = openapi::Language)]
    pub language: Interpreter,
    /// The length of the text in bytes.
    pub bytes: u64,
    /// The text; absent in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub text: Option<String>,
}

impl From<ScriptVersion> for ScriptVersionView {
    fn from(stored: ScriptVersion) -> Self {
        let ScriptVersion {
            version,
            at,
            by,
            remark,
            language,
            bytes,
            text,
        } = stored;
        Self {
            version,
            at,
            by,
            remark,
            language,
            bytes,
            text,
        }
    }
}

/// The versions of a script that are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScriptVersions {
    /// The name of the script.
    #[schema(value_type = openapi::GivenName)]
    pub name: ScriptName,
    /// The versions, newest first.
    pub versions: Vec<ScriptVersionView>,
    /// The time of the answer.
    #[schema(value_type = openapi::Instant)]
    pub now: Timestamp,
}

/// The change of one script.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AppliedScriptView {
    /// Its name.
    #[schema(value_type = openapi::GivenName)]
    pub name: ScriptName,
    /// Its newest version afterwards; absent in a dry run that would create it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub version: Option<i64>,
    /// What happened.
    #[schema(value_type = openapi::Change)]
    pub change: Change,
}

impl From<AppliedScript> for AppliedScriptView {
    fn from(applied: AppliedScript) -> Self {
        Self {
            name: applied.name,
            version: applied.revision.map(|revision| revision.version),
            change: applied.change,
        }
    }
}

/// The changes of an apply of scripts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScriptsApplied {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// The change of each script, in the order given.
    pub applied: Vec<AppliedScriptView>,
}

/// A deleted script.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScriptRef {
    /// Its name.
    #[schema(value_type = openapi::GivenName)]
    pub name: ScriptName,
}
