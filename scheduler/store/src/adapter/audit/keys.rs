//! Entries about enrolment tokens and the keys of workers.

use cueline_model::{Actor, ActorKind, ExecutorId, GroupName, Namespace};
use serde_json::json;

use super::super::convert::parse_name;
use super::super::worker_keys::{EnrolmentWrites, TokenRow};
use super::{entry, entry_in_group};
use crate::{NewAuditEntry, NewEnrolmentToken, NewWorkerKey, StoreError, WorkerKeyState};

/// An entry about a token, which is for a group, for a namespace, or for all namespaces.
fn entry_of_token(
    by: &Actor,
    action: &str,
    id: &str,
    (namespace, group): (Option<&Namespace>, Option<&GroupName>),
) -> NewAuditEntry {
    match group {
        Some(group) => entry_in_group(by, action, group, id),
        None => NewAuditEntry {
            namespace: namespace.cloned(),
            ..entry(by, action, id)
        },
    }
}

/// A new enrolment token. Its verifier is a secret and is not kept.
pub fn token_created(token: &NewEnrolmentToken) -> NewAuditEntry {
    let after = json!({
        "namespace": token.namespace, "group": token.group, "executor": token.executor, "uses": token.uses,
        "valid_ms": token.valid_ms,
    });
    NewAuditEntry {
        after: Some(after.to_string()),
        ..entry_of_token(
            &token.by,
            "enrolment_token.create",
            &token.id,
            (token.namespace.as_ref(), token.group.as_ref()),
        )
    }
}

/// A deleted enrolment token.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) for an unreadable name.
pub fn token_deleted(by: &Actor, row: TokenRow) -> Result<NewAuditEntry, StoreError> {
    let (id, group, executor, uses_left, expires_at, _, _, namespace) = row;
    let group: Option<GroupName> = group.as_deref().map(parse_name).transpose()?;
    let namespace: Option<Namespace> = namespace.as_deref().map(parse_name).transpose()?;
    let before = json!({
        "namespace": namespace, "group": group, "executor": executor, "uses_left": uses_left,
        "expires_at": expires_at,
    });
    Ok(NewAuditEntry {
        before: Some(before.to_string()),
        ..entry_of_token(
            by,
            "enrolment_token.delete",
            &id,
            (namespace.as_ref(), group.as_ref()),
        )
    })
}

const fn state_text(allowed: bool) -> &'static str {
    if allowed { "allowed" } else { "revoked" }
}

fn key_object(executor: &ExecutorId, key_id: &str) -> String {
    format!("{executor}/{key_id}")
}

/// A worker's key before a change: whether it was allowed, and what changed it last.
pub type KeyStateRow = (bool, String);

/// A worker's key that was revoked or allowed.
pub fn key_changed(
    by: &Actor,
    executor: &ExecutorId,
    key_id: &str,
    (was_allowed, changed_by): &KeyStateRow,
    state: WorkerKeyState,
) -> NewAuditEntry {
    let allowed = state == WorkerKeyState::Allowed;
    let action = if allowed {
        "worker_key.allow"
    } else {
        "worker_key.revoke"
    };
    let before = json!({ "state": state_text(*was_allowed), "changed_by": changed_by });
    let after = json!({ "state": state_text(allowed), "changed_by": by.to_string() });
    let object = key_object(executor, key_id);
    NewAuditEntry {
        before: Some(before.to_string()),
        after: Some(after.to_string()),
        ..entry_in_group(by, action, &executor.group, object)
    }
}

/// A worker's new key. The actor is the worker.
pub fn key_enrolled(key: &NewWorkerKey, writes: &EnrolmentWrites) -> NewAuditEntry {
    let by = Actor::new(ActorKind::Worker, key.executor.to_string());
    let object = key_object(&key.executor, &key.key_id);
    let after = json!({
        "state": state_text(true), "enrolled_by": writes.enrolled_by, "revoked": writes.revoked,
    });
    NewAuditEntry {
        after: Some(after.to_string()),
        ..entry_in_group(&by, "worker_key.enrol", &key.executor.group, object)
    }
}
