//! Entries of the audit log: one function for each action, and their columns. The texts of these actions are here
//! and in [`keys`] only. Entries about requests that were refused come from outside of the store, with texts of their own.

mod columns;
mod keys;

use cueline_model::{
    Actor, ActorKind, CalendarName, ExecutorId, GroupName, JobName, JobSpec, Namespace, Rate,
    Retention, RunId, RunState, ScriptName, StoreId, WindowSpec, exclusion::WindowTime,
};
use serde_json::{Value, json};

use super::convert::parse_name;
use super::definitions::serialize_definition;
use crate::{
    AuditResult, Backfill, BackfillChange, CancelledFlow, NewAuditEntry, NewBackfill, Quotas,
    RetriedFlow, StoreError, TriggerRequest,
};

pub use columns::{AuditColumns, AuditRow, JobVersionRow, audit_entry, job_version, stored_actor};
pub use keys::{KeyStateRow, key_changed, key_enrolled, token_created, token_deleted};

/// The most entries that one statement writes. With values of [`MAX_AUDIT_VALUE_BYTES`], they take 32 MiB.
pub const MAX_ENTRIES_IN_STATEMENT: usize = 1_000;

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

/// A restored store that has got a new id, which ended this many sessions. The actor is the command.
pub fn store_restored(id: StoreId, sessions: u64) -> NewAuditEntry {
    let by = Actor::new(ActorKind::Node, "cueline migrate");
    NewAuditEntry {
        detail: format!("sessions ended: {sessions}"),
        ..entry(&by, "store.restore", id.to_string())
    }
}

#[cfg(test)]
mod tests;
