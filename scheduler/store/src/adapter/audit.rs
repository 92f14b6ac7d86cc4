//! Entries of the audit log: one function for each action, and their columns. The texts of these actions are in this file
//! only. Entries about requests that were refused come from outside of the store, with texts of their own.

use cueline_model::{
    Actor, ActorKind, CalendarName, ExecutorId, GroupName, JobName, JobSpec, Namespace, Rate,
    Retention, RunId, RunState, ScriptName, StoreId, Timestamp, WindowSpec, exclusion::WindowTime,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::convert::{corrupt, parse_name, sha256_hex, to_u64, without_nul};
use super::definitions::{parse_definition, serialize_definition};
use super::worker_keys::{EnrolmentWrites, TokenRow};
use crate::{
    AuditEntry, AuditResult, Backfill, BackfillChange, CancelledFlow, JobVersion,
    MAX_AUDIT_VALUE_BYTES, NewAuditEntry, NewBackfill, NewEnrolmentToken, NewWorkerKey, Quotas,
    RetriedFlow, StoreError, TriggerRequest, WorkerKeyState,
};

/// The most entries that one statement writes. With values of [`MAX_AUDIT_VALUE_BYTES`], they take 32 MiB.
pub const MAX_ENTRIES_IN_STATEMENT: usize = 1_000;

/// The longest object, detail, action and address, in bytes. A longer one is cut.
const MAX_TEXT_BYTES: usize = 1_024;

/// An entry without values.
fn entry(actor: &Actor, action: &str, object: impl Into<String>) -> NewAuditEntry {
    NewAuditEntry {
        actor: actor.clone(),
        action: action.to_owned(),
        namespace: None,
        group: None,
        object: object.into(),
        result: AuditResult::Done,
        detail: String::new(),
        before: None,
        after: None,
    }
}

/// An entry about something that belongs to a group.
fn entry_in_group(
    actor: &Actor,
    action: &str,
    group: &GroupName,
    object: impl Into<String>,
) -> NewAuditEntry {
    NewAuditEntry {
        namespace: Some(group.namespace()),
        group: Some(group.clone()),
        ..entry(actor, action, object)
    }
}

/// A new job.
///
/// # Errors
///
/// As [`serialize_definition`].
pub fn job_created(by: &Actor, spec: &JobSpec) -> Result<NewAuditEntry, StoreError> {
    Ok(NewAuditEntry {
        after: Some(serialize_definition(spec)?),
        ..entry_in_group(by, "job.create", &spec.group, spec.name.as_str())
    })
}

/// A job whose definition was replaced. The entry is in the new group.
///
/// # Errors
///
/// As [`serialize_definition`].
pub fn job_updated(
    by: &Actor,
    before: &JobSpec,
    after: &JobSpec,
) -> Result<NewAuditEntry, StoreError> {
    Ok(NewAuditEntry {
        before: Some(serialize_definition(before)?),
        after: Some(serialize_definition(after)?),
        ..entry_in_group(by, "job.update", &after.group, after.name.as_str())
    })
}

/// A job that was paused or resumed.
pub fn job_enabled(by: &Actor, job: &JobName, group: &GroupName, enabled: bool) -> NewAuditEntry {
    let action = if enabled { "job.resume" } else { "job.pause" };
    NewAuditEntry {
        before: Some(json!({ "enabled": !enabled }).to_string()),
        after: Some(json!({ "enabled": enabled }).to_string()),
        ..entry_in_group(by, action, group, job.as_str())
    }
}

/// A deleted job. `definition` is its text, which this program need not understand. Whether the schedule was running is
/// not in the text.
pub fn job_deleted(
    by: &Actor,
    job: &JobName,
    group: &GroupName,
    (definition, enabled): (String, bool),
) -> NewAuditEntry {
    let before = match serde_json::from_str(&definition) {
        Ok(Value::Object(mut fields)) => {
            fields.insert("enabled".to_owned(), enabled.into());
            Value::Object(fields).to_string()
        }
        _ => definition,
    };
    NewAuditEntry {
        before: Some(before),
        ..entry_in_group(by, "job.delete", group, job.as_str())
    }
}

/// A job that was triggered by hand. The caller sets the detail with [`triggered_detail`] once the runs have ids.
pub fn job_triggered(request: &TriggerRequest, group: &GroupName) -> NewAuditEntry {
    let TriggerRequest {
        params,
        idempotency_key,
        run_at,
        ..
    } = request;
    let after = json!({ "params": params, "idempotency_key": idempotency_key, "run_at": run_at });
    NewAuditEntry {
        after: Some(after.to_string()),
        ..entry_in_group(&request.by, "job.trigger", group, request.job.as_str())
    }
}

/// Names the runs of a trigger request. The PostgreSQL store builds the same text in SQL.
pub fn triggered_detail(first: RunId, count: usize) -> String {
    match count {
        1 => format!("run {first}"),
        count => format!("{count} runs, the first is {first}"),
    }
}

/// A run that was cancelled, or whose executor will be asked to stop it. `job` and `group` are those of its job.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) if the group's name is not valid.
pub fn run_cancelled(
    by: &Actor,
    run: RunId,
    (job, group): (&str, &str),
    state: RunState,
) -> Result<NewAuditEntry, StoreError> {
    let after = if state == RunState::Scheduled {
        json!({ "state": RunState::Cancelled })
    } else {
        json!({ "state": state, "cancel_requested": true })
    };
    Ok(NewAuditEntry {
        detail: format!("of job {job}"),
        before: Some(json!({ "state": state }).to_string()),
        after: Some(after.to_string()),
        ..entry_in_group(by, "run.cancel", &parse_name(group)?, run.to_string())
    })
}

/// A cancelled flow run, with the job that it began with and the group of that.
pub fn flow_cancelled(
    by: &Actor,
    flow: &CancelledFlow,
    (job, group): (&JobName, &GroupName),
) -> NewAuditEntry {
    let after = json!({ "cancelled": flow.ended, "cancel_requested": flow.requested });
    NewAuditEntry {
        detail: format!("of job {job}"),
        after: Some(after.to_string()),
        ..entry_in_group(by, "flow.cancel", group, flow.id.to_string())
    }
}

/// A retried flow run, with the job that it began with and the group of that.
pub fn flow_retried(
    by: &Actor,
    flow: &RetriedFlow,
    (job, group): (&JobName, &GroupName),
) -> NewAuditEntry {
    NewAuditEntry {
        detail: format!("of job {job}"),
        after: Some(json!({ "retried": flow.runs }).to_string()),
        ..entry_in_group(by, "flow.retry", group, flow.id.to_string())
    }
}

/// A deleted dead letter: id, queue, topic, reason, time, size of the payload in bytes, namespace.
pub type DeletedLetterRow = (i64, String, String, String, i64, i64, Option<String>);

/// Deleted dead letters. Their payloads are not kept.
pub fn letters_deleted(by: &Actor, rows: Vec<DeletedLetterRow>) -> Vec<NewAuditEntry> {
    rows.into_iter()
        .map(|(id, queue, topic, reason, at, payload_bytes, namespace)| {
            let before = json!({
                "queue": queue, "topic": topic, "reason": reason, "at": at, "payload_bytes": payload_bytes,
            });
            NewAuditEntry {
                namespace: namespace.and_then(|text| text.parse().ok()),
                before: Some(before.to_string()),
                ..entry(by, "dead_letter.delete", id.to_string())
            }
        })
        .collect()
}

/// Dead letters that are about to be published to their queues again.
pub fn letters_replayed(
    by: &Actor,
    letters: impl Iterator<Item = (i64, Option<Namespace>)>,
) -> Vec<NewAuditEntry> {
    letters
        .map(|(id, namespace)| NewAuditEntry {
            namespace,
            ..entry(by, "dead_letter.replay", id.to_string())
        })
        .collect()
}

/// The quotas of a namespace that were set, changed or deleted.
pub fn quotas_changed(
    by: &Actor,
    namespace: &Namespace,
    before: Option<&Quotas>,
    after: Option<&Quotas>,
) -> NewAuditEntry {
    let action = if after.is_some() {
        "quota.set"
    } else {
        "quota.delete"
    };
    let value = |quotas: &Quotas| json!(quotas).to_string();
    NewAuditEntry {
        namespace: Some(namespace.clone()),
        before: before.map(value),
        after: after.map(value),
        ..entry(by, action, namespace.as_str())
    }
}

/// A calendar that was created, changed or deleted, with its texts before and after.
pub fn calendar_changed(
    by: &Actor,
    name: &CalendarName,
    before: Option<String>,
    after: Option<String>,
) -> NewAuditEntry {
    let action = match (&before, &after) {
        (None, _) => "calendar.create",
        (Some(_), Some(_)) => "calendar.update",
        (Some(_), None) => "calendar.delete",
    };
    NewAuditEntry {
        namespace: Some(name.namespace()),
        before,
        after,
        ..entry(by, action, name.as_str())
    }
}

/// An alarm definition that was created, changed or deleted, with its texts before and after. `word` is `alarm_rule`,
/// `alarm_channel` or `alarm_silence`.
pub fn alarm_changed(
    by: &Actor,
    (word, name, namespace): (&str, &str, &Namespace),
    before: Option<String>,
    after: Option<String>,
) -> NewAuditEntry {
    let verb = match (&before, &after) {
        (None, _) => "create",
        (Some(_), Some(_)) => "update",
        (Some(_), None) => "delete",
    };
    NewAuditEntry {
        namespace: Some(namespace.clone()),
        before,
        after,
        ..entry(by, &format!("{word}.{verb}"), name)
    }
}

/// A test message that was asked for.
pub fn channel_tested(by: &Actor, name: &str, namespace: &Namespace) -> NewAuditEntry {
    NewAuditEntry {
        namespace: Some(namespace.clone()),
        ..entry(by, "alarm_channel.test", name)
    }
}

/// A script that was saved or deleted: its newest version before and after, and the number of jobs that got a new version.
pub fn script_changed(
    by: &Actor,
    name: &ScriptName,
    before: Option<Value>,
    after: Option<Value>,
    jobs: usize,
) -> NewAuditEntry {
    let action = match (&before, &after) {
        (None, _) => "script.create",
        (Some(_), Some(_)) => "script.update",
        (Some(_), None) => "script.delete",
    };
    let detail = match jobs {
        0 => String::new(),
        jobs => format!("new versions of jobs: {jobs}"),
    };
    NewAuditEntry {
        namespace: Some(name.namespace()),
        detail,
        before: before.map(|value| value.to_string()),
        after: after.map(|value| value.to_string()),
        ..entry(by, action, name.as_str())
    }
}

/// A version of a script in the audit log.
pub fn script_value(version: i64, language: &str, text: &str, remark: Option<&str>) -> Value {
    let mut value = json!({ "version": version, "language": language, "text": text });
    if let Some(remark) = remark {
        value["remark"] = remark.into();
    }
    value
}

/// A maintenance window or a pause that began or ended, with its text. Without a namespace it is about all.
pub fn window_changed(
    by: &Actor,
    id: i64,
    spec: &WindowSpec,
    before: Option<String>,
    after: Option<String>,
) -> NewAuditEntry {
    let is_pause = matches!(spec.time, WindowTime::Pause { .. });
    let action = match (is_pause, after.is_some()) {
        (false, true) => "window.add",
        (false, false) => "window.delete",
        (true, true) => "pause.start",
        (true, false) => "pause.end",
    };
    NewAuditEntry {
        namespace: spec.scope.namespace.clone(),
        group: spec.scope.group.clone(),
        before,
        after,
        ..entry(by, action, id.to_string())
    }
}

/// Runs of a job that were deleted by hand, in ascending order.
pub fn runs_pruned(by: &Actor, job: &JobName, group: &GroupName, runs: &[i64]) -> NewAuditEntry {
    let range = match (runs.iter().min(), runs.iter().max()) {
        (Some(first), Some(last)) if first != last => {
            format!("{} runs, from run {first} to run {last}", runs.len())
        }
        (Some(only), _) => format!("run {only}"),
        (None, _) => String::new(),
    };
    NewAuditEntry {
        detail: range,
        ..entry_in_group(by, "run.prune", group, job.as_str())
    }
}

/// The retention of a group that was set, changed or deleted.
pub fn retention_changed(
    by: &Actor,
    group: &GroupName,
    before: Option<&Retention>,
    after: Option<&Retention>,
) -> NewAuditEntry {
    let action = if after.is_some() {
        "retention.set"
    } else {
        "retention.delete"
    };
    let value = |rule: &Retention| json!(rule).to_string();
    NewAuditEntry {
        before: before.map(value),
        after: after.map(value),
        ..entry_in_group(by, action, group, group.as_str())
    }
}

/// The rate limit of a group that was set, changed or removed.
pub fn group_rate_changed(
    by: &Actor,
    group: &GroupName,
    before: Option<Rate>,
    after: Option<Rate>,
) -> NewAuditEntry {
    let action = if after.is_some() {
        "limit.set"
    } else {
        "limit.delete"
    };
    let value = |rate: Rate| json!(rate).to_string();
    NewAuditEntry {
        before: before.map(value),
        after: after.map(value),
        ..entry_in_group(by, action, group, group.as_str())
    }
}

/// A backfill that was started, with what it does.
pub fn backfill_started(new: &NewBackfill, id: i64, group: &GroupName) -> NewAuditEntry {
    let value = json!({
        "id": id,
        "from": new.from.to_string(),
        "to": new.to.to_string(),
        "parallel": new.parallel,
        "include_excluded": new.include_excluded,
        "fires": new.total,
    });
    NewAuditEntry {
        after: Some(value.to_string()),
        detail: format!("backfill {id}"),
        ..entry_in_group(&new.by, "backfill.start", group, new.job.as_str())
    }
}

/// A backfill that was paused, resumed or cancelled.
pub fn backfill_changed(by: &Actor, change: BackfillChange, backfill: &Backfill) -> NewAuditEntry {
    let action = format!("backfill.{}", change.as_str());
    NewAuditEntry {
        before: Some(json!({ "state": backfill.state.as_str() }).to_string()),
        after: Some(json!({ "state": change.state().as_str() }).to_string()),
        detail: format!("backfill {}", backfill.id),
        ..entry_in_group(by, &action, &backfill.group, backfill.job.as_str())
    }
}

/// What an operator does to an executor's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueAction {
    /// Its triggers are routed again.
    Drain,
    /// Its runs are cancelled.
    Purge,
    /// Its triggers are published again.
    Replay,
}

/// A queue that is about to be emptied or published again.
pub fn queue_changed(by: &Actor, action: QueueAction, executor: &ExecutorId) -> NewAuditEntry {
    let action = match action {
        QueueAction::Drain => "queue.drain",
        QueueAction::Purge => "queue.purge",
        QueueAction::Replay => "queue.replay",
    };
    entry_in_group(by, action, &executor.group, executor.to_string())
}

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

/// A restored store that has got a new id, which ended this many sessions. The actor is the command.
pub fn store_restored(id: StoreId, sessions: u64) -> NewAuditEntry {
    let by = Actor::new(ActorKind::Node, "cueline migrate");
    NewAuditEntry {
        detail: format!("sessions ended: {sessions}"),
        ..entry(&by, "store.restore", id.to_string())
    }
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

#[cfg(test)]
mod tests;
