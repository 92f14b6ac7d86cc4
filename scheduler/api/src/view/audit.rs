//! Answers about the audit log and the versions of jobs.

use cueline_model::{GroupName, JobId, JobName, JobSpec, Namespace, Timestamp};
use cueline_store::{AuditEntry, AuditResult, Change, JobVersion};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::openapi;

/// An entry of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditView {
    /// Its number; greater numbers are later.
    pub id: i64,
    /// When.
    #[schema(value_type = openapi::Instant)]
    pub at: Timestamp,
    /// Who: the kind of actor and its name, as in `user alice`.
    pub actor: String,
    /// Where the request came from, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub address: Option<String>,
    /// What was done: `object.verb`.
    pub action: String,
    /// The namespace of the object, if it belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::GivenNamespace)]
    pub namespace: Option<Namespace>,
    /// The group of the object, if it belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::GivenName)]
    pub group: Option<GroupName>,
    /// The name or number of the object.
    pub object: String,
    /// How it ended.
    #[schema(value_type = openapi::AuditResult)]
    pub result: AuditResult,
    /// Further words; absent if there are none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// The object before. A value that is too long has only its `bytes` and its `sha256`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::AuditValue)]
    pub before: Option<Value>,
    /// The object after, in the same form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::AuditValue)]
    pub after: Option<Value>,
}

impl From<AuditEntry> for AuditView {
    fn from(AuditEntry { id, at, entry }: AuditEntry) -> Self {
        Self {
            id,
            at,
            actor: entry.actor.to_string(),
            address: entry.actor.address,
            action: entry.action,
            namespace: entry.namespace,
            group: entry.group,
            object: entry.object,
            result: entry.result,
            detail: entry.detail,
            before: entry.before.map(value),
            after: entry.after.map(value),
        }
    }
}

/// A stored value, which is JSON. Another text stays one.
fn value(text: String) -> Value {
    serde_json::from_str(&text).unwrap_or(Value::String(text))
}

/// A page of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditPage {
    /// The entries.
    pub entries: Vec<AuditView>,
    /// `after` for the next page; absent on the last one. A page may be short, and still have a next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::PageCursor)]
    pub next: Option<String>,
    /// The store's clock.
    #[schema(value_type = openapi::Instant)]
    pub now: Timestamp,
}

/// A version of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobVersionView {
    /// Its number.
    pub version: u64,
    /// When it was made.
    #[schema(value_type = openapi::Instant)]
    pub at: Timestamp,
    /// Who made it.
    pub by: String,
    /// Whether the schedule was running.
    pub enabled: bool,
    /// The definition. Lists do not have it, and neither has a version that the server cannot read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::GivenDefinition)]
    pub definition: Option<JobSpec>,
}

impl From<JobVersion> for JobVersionView {
    fn from(version: JobVersion) -> Self {
        Self {
            version: version.version,
            at: version.at,
            by: version.by,
            enabled: version.enabled,
            definition: version.definition,
        }
    }
}

/// A page of versions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobVersions {
    /// The versions, without their definitions.
    pub versions: Vec<JobVersionView>,
    /// `after` for the next page; absent on the last one. A page may be short, and still have a next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::PageCursor)]
    pub next: Option<String>,
    /// The store's clock.
    #[schema(value_type = openapi::Instant)]
    pub now: Timestamp,
}

/// The result of restoring a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Restored {
    /// The id of the job.
    #[schema(value_type = i64)]
    pub id: JobId,
    /// Its name.
    #[schema(value_type = openapi::GivenName)]
    pub name: JobName,
    /// The version whose definition the job has now.
    pub restored: u64,
    /// What changed: `unchanged` if the job had this definition, `created` if the job was deleted.
    #[schema(value_type = openapi::Change)]
    pub change: Change,
}
