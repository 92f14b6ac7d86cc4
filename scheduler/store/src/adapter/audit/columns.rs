//! The columns of entries, and what is read from them.

use cueline_model::{Actor, ActorKind, GroupName, Namespace, Timestamp};
use serde::Serialize;
use serde_json::{Value, json};

use super::super::convert::{corrupt, parse_name, sha256_hex, to_u64, without_nul};
use super::super::definitions::parse_definition;
use crate::{
    AuditEntry, AuditResult, JobVersion, MAX_AUDIT_VALUE_BYTES, NewAuditEntry, StoreError,
};

/// The longest object, detail, action and address, in bytes. A longer one is cut.
const MAX_TEXT_BYTES: usize = 1_024;

/// An entry as it is stored: every text has a bound, and none has a NUL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditColumns {
    /// The actor as it is displayed.
    pub actor: String,
    /// Where the request came from.
    pub address: Option<String>,
    /// `object.verb`.
    pub action: String,
    /// The part of the action before the dot.
    pub action_object: String,
    /// The namespace.
    pub namespace: Option<String>,
    /// The group.
    pub group_name: Option<String>,
    /// The name or number of the object.
    pub object: String,
    /// `done` or `refused`.
    pub result: &'static str,
    /// Further words.
    pub detail: String,
    /// The object before.
    pub old_value: Option<String>,
    /// The object after.
    pub new_value: Option<String>,
}

impl From<&NewAuditEntry> for AuditColumns {
    fn from(entry: &NewAuditEntry) -> Self {
        let action = bounded(&entry.action);
        let action_object = action.split('.').next().unwrap_or_default().to_owned();
        Self {
            actor: stored_actor(&entry.actor),
            address: entry.actor.address.as_deref().map(bounded),
            action,
            action_object,
            namespace: entry.namespace.as_ref().map(Namespace::to_string),
            group_name: entry.group.as_ref().map(GroupName::to_string),
            object: bounded(&entry.object),
            result: entry.result.as_str(),
            detail: bounded(&entry.detail),
            old_value: entry.before.as_deref().map(value),
            new_value: entry.after.as_deref().map(value),
        }
    }
}

/// The actor as timelines and the audit log keep it.
pub fn stored_actor(actor: &Actor) -> String {
    bounded(&actor.to_string())
}

fn bounded(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_TEXT_BYTES);
    without_nul(&text[..end]).into_owned()
}

/// A value, or its length and its SHA-256 if it is too long.
fn value(text: &str) -> String {
    if text.len() <= MAX_AUDIT_VALUE_BYTES {
        return without_nul(text).into_owned();
    }
    json!({ "bytes": text.len(), "sha256": sha256_hex(text) }).to_string()
}

/// A stored entry: id, time, actor, address, action, namespace, group, object, result, detail, values before and after.
pub type AuditRow = (
    i64,
    i64,
    String,
    Option<String>,
    String,
    Option<String>,
    Option<String>,
    String,
    String,
    String,
    Option<String>,
    Option<String>,
);

/// An entry from its row. An unknown kind of actor is kept as text.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) for an unknown result or an unreadable name.
pub fn audit_entry(row: AuditRow) -> Result<AuditEntry, StoreError> {
    let (id, at, actor, address, action, namespace, group, object, result, detail, before, after) =
        row;
    let (kind, name) = actor.split_once(' ').unwrap_or((actor.as_str(), ""));
    // An entry of a newer program must not keep the others from being listed.
    let (kind, name) = match serde_json::from_value::<ActorKind>(Value::from(kind)) {
        Ok(kind) => (kind, name),
        Err(_) => (ActorKind::Other, actor.as_str()),
    };
    Ok(AuditEntry {
        id,
        at: Timestamp::from_millis(at),
        entry: NewAuditEntry {
            actor: Actor {
                kind,
                name: name.to_owned(),
                address,
            },
            action,
            namespace: namespace.as_deref().map(parse_name).transpose()?,
            group: group.as_deref().map(parse_name).transpose()?,
            object,
            result: known_result(&result)?,
            detail,
            before,
            after,
        },
    })
}

/// A result, by its name.
fn known_result(name: &str) -> Result<AuditResult, StoreError> {
    serde_json::from_value(Value::from(name))
        .map_err(|e| corrupt("failed to read the result of an audit entry", e))
}

/// A stored version of a job: version, time, actor, whether it was enabled, definition.
pub type JobVersionRow = (i64, i64, String, bool, String);

/// A version of a job from its row. The definition has the setting of the schedule at that version.
pub fn job_version(row: JobVersionRow) -> JobVersion {
    let (version, at, by, enabled, definition) = row;
    JobVersion {
        version: to_u64(version),
        at: Timestamp::from_millis(at),
        by,
        definition: parse_definition(&definition, Some(enabled)).ok(),
        enabled,
    }
}
