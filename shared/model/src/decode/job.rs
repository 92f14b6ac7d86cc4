//! Reads the fields of a job.

use std::collections::BTreeMap;

use super::fields::{MAX_TEXT_BYTES, local, name, optional, required, text_map};
use super::reader::{Fields, Reader, given};
use super::{Node, Value, exclusion, handler, limit, policy, retention, route, schedule};
use crate::handler::HandlerSpec;
use crate::job::{
    After, AfterOn, JobSpec, MAX_LABELS, MAX_LABELS_BYTES, Parents, default_backlog,
    default_dispatch_deadline, default_kill_grace, default_priority,
};
use crate::name::{GroupName, JobName, Namespace};
use crate::schedule::Schedule;

const KEYS: [&str; 31] = [
    "name",
    "namespace",
    "group",
    "description",
    "schedule",
    "schedules",
    "calendars",
    "start_at",
    "end_at",
    "jitter",
    "misfire",
    "route",
    "selector",
    "block",
    "scope",
    "backlog",
    "rate_limit",
    "concurrency",
    "timeout",
    "kill_grace",
    "retry",
    "on_lost",
    "fence",
    "dispatch_deadline",
    "priority",
    "retention",
    "handler",
    "params",
    "after",
    "labels",
    "enabled",
];
/// Keys of later versions.
const LATER: [&str; 1] = ["windows"];

/// The largest backlog that a definition may set.
const MAX_BACKLOG: i64 = 100_000;

/// Reads a job definition. It is in `namespace` if it has no field of that name.
pub(super) fn read(r: &mut Reader, node: &Node, namespace: &Namespace) -> Option<JobSpec> {
    let f = r.fields(node, "", &KEYS, &LATER)?;
    let namespace = optional(r, &f, "namespace", |r, n, p| name(r, n, p, str::parse))
        .unwrap_or_else(|| namespace.clone());
    let name = required(r, &f, node, "name", "the job's name", |r, n, p| {
        local(r, n, p, |text| JobName::in_namespace(&namespace, text))
    });
    let group = optional(r, &f, "group", |r, n, p| {
        local(r, n, p, |text| GroupName::in_namespace(&namespace, text))
    })
    .or_else(|| GroupName::in_namespace(&namespace, "default").ok());
    let after = optional(r, &f, "after", |r, n, p| after(r, n, p, &namespace));
    let schedule = read_schedule(r, &f, node);
    let handler = required(
        r,
        &f,
        node,
        "handler",
        "what the job runs ({ shell = … }, { command = … }, { http = … }, { native = … } or { script = … })",
        |r, n, p| handler::read(r, n, p, &namespace),
    );
    let spec = JobSpec {
        name: name.clone().or_else(|| placeholder(&namespace))?,
        group: group?,
        description: optional(r, &f, "description", text).unwrap_or_default(),
        schedule: schedule.unwrap_or(Schedule::Manual),
        calendars: optional(r, &f, "calendars", |r, n, p| {
            exclusion::calendar_names(r, n, p, &namespace)
        })
        .unwrap_or_default(),
        start_at: optional(r, &f, "start_at", Reader::instant),
        end_at: optional(r, &f, "end_at", Reader::instant),
        jitter: optional(r, &f, "jitter", |r, n, p| r.duration(n, p, 0)).unwrap_or_default(),
        misfire: optional(r, &f, "misfire", policy::misfire).unwrap_or_default(),
        route: optional(r, &f, "route", route::read).unwrap_or_default(),
        selector: optional(r, &f, "selector", route::selector).unwrap_or_default(),
        block: optional(r, &f, "block", policy::block).unwrap_or_default(),
        scope: optional(r, &f, "scope", policy::scope).unwrap_or_default(),
        backlog: optional(r, &f, "backlog", |r, n, p| r.integer(n, p, 0..=MAX_BACKLOG))
            .unwrap_or_else(default_backlog),
        rate_limit: optional(r, &f, "rate_limit", |r, n, p| {
            limit::rate_limit(r, n, p, &namespace)
        })
        .map(Box::new),
        concurrency: optional(r, &f, "concurrency", |r, n, p| {
            limit::concurrency(r, n, p, &namespace)
        })
        .map(Box::new),
        timeout: optional(r, &f, "timeout", |r, n, p| r.duration(n, p, 1)),
        kill_grace: optional(r, &f, "kill_grace", |r, n, p| r.duration(n, p, 0))
            .unwrap_or_else(default_kill_grace),
        retry: optional(r, &f, "retry", policy::retry).unwrap_or_default(),
        on_lost: optional(r, &f, "on_lost", policy::on_lost).unwrap_or_default(),
        fence: optional(r, &f, "fence", policy::fence).unwrap_or_default(),
        dispatch_deadline: optional(r, &f, "dispatch_deadline", |r, n, p| r.duration(n, p, 0))
            .unwrap_or_else(default_dispatch_deadline),
        priority: optional(r, &f, "priority", |r, n, p| r.integer(n, p, 0..=9))
            .unwrap_or_else(default_priority),
        retention: optional(r, &f, "retention", retention::read).unwrap_or_default(),
        handler: handler.unwrap_or(HandlerSpec::Native(String::new())),
        params: optional(r, &f, "params", params),
        after: after.map(Box::new),
        labels: optional(r, &f, "labels", labels).unwrap_or_default(),
        enabled: optional(r, &f, "enabled", Reader::boolean),
    };
    check_window(r, &f, &spec);
    check_parent(r, &f, &spec);
    name.is_some().then_some(spec)
}

fn labels(r: &mut Reader, node: &Node, path: &str) -> Option<BTreeMap<String, String>> {
    let labels = text_map(r, node, path, "a label")?;
    let bytes: usize = labels.iter().map(|(k, v)| k.len() + v.len()).sum();
    let message = if labels.len() > MAX_LABELS {
        format!(
            "{} given; at most {MAX_LABELS} labels are accepted",
            labels.len()
        )
    } else if bytes > MAX_LABELS_BYTES {
        format!(
            "names and texts of {bytes} bytes given; at most {MAX_LABELS_BYTES} bytes are accepted"
        )
    } else {
        return Some(labels);
    };
    r.refuse(node.line, path, message);
    None
}

/// Replaces a refused name, so that the other fields are still read.
fn placeholder(namespace: &Namespace) -> Option<JobName> {
    JobName::in_namespace(namespace, "_").ok()
}

fn read_schedule(r: &mut Reader, f: &Fields<'_>, whole: &Node) -> Option<Schedule> {
    if let Some((node, path)) = f.get("schedules") {
        if f.get("schedule").is_some() {
            let message = "given beside schedule; one of the two is expected";
            r.refuse(node.line, &path, message);
            return None;
        }
        return schedule::read_list(r, node, &path);
    }
    if f.get("schedule").is_none() && f.get("after").is_some() {
        return Some(Schedule::Manual);
    }
    required(
        r,
        f,
        whole,
        "schedule",
        "one of { cron = … }, { every = … }, { after = … }, { at = … }, { startup = true }, { manual = true }, or a parent in `after`,",
        schedule::read,
    )
}

fn text(r: &mut Reader, node: &Node, path: &str) -> Option<String> {
    r.text(node, path, MAX_TEXT_BYTES).map(str::to_owned)
}

/// Reads parameters: a text unchanged, any other value as its JSON text.
fn params(r: &mut Reader, node: &Node, path: &str) -> Option<String> {
    if let Value::Text(_) = node.value {
        return text(r, node, path);
    }
    let Some(json) = to_json(node) else {
        r.mismatch(node, path, "a text, or values that JSON can carry,");
        return None;
    };
    let json = json.to_string();
    r.fits(node, path, &json, MAX_TEXT_BYTES).then_some(json)
}

/// Converts a node to JSON. `None` if it has a number that JSON does not support.
fn to_json(node: &Node) -> Option<serde_json::Value> {
    Some(match &node.value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(b) => (*b).into(),
        Value::Int(n) => (*n).into(),
        Value::Float(n) => serde_json::Number::from_f64(*n)?.into(),
        Value::Text(text) => text.as_str().into(),
        Value::List(items) => {
            serde_json::Value::Array(items.iter().map(to_json).collect::<Option<_>>()?)
        }
        Value::Map(entries) => serde_json::Value::Object(
            entries
                .iter()
                .map(|(key, value)| Some((key.clone(), to_json(value)?)))
                .collect::<Option<_>>()?,
        ),
    })
}

fn after(r: &mut Reader, node: &Node, path: &str, namespace: &Namespace) -> Option<After> {
    if let Value::Text(_) = &node.value {
        return Some(After {
            parents: Parents::All(vec![parent(r, node, path, namespace)?]),
            on: AfterOn::Success,
            pass_output: false,
        });
    }
    let f = r.fields(node, path, &["all", "any", "on", "pass_output"], &[])?;
    let all = optional(r, &f, "all", |r, n, p| parents(r, n, p, namespace));
    let any = optional(r, &f, "any", |r, n, p| parents(r, n, p, namespace));
    let on = optional(r, &f, "on", |r, n, p| {
        r.word(
            n,
            p,
            "end",
            &[
                ("success", AfterOn::Success),
                ("failure", AfterOn::Failure),
                ("always", AfterOn::Always),
            ],
            &[],
        )
    });
    let pass_output = optional(r, &f, "pass_output", Reader::boolean);
    let names_both = f.get("all").is_some() && f.get("any").is_some();
    let names_none = f.get("all").is_none() && f.get("any").is_none();
    if names_both || names_none {
        let problem = if names_both {
            "`all` and `any` are given"
        } else {
            "neither `all` nor `any` is given"
        };
        r.refuse(
            node.line,
            path,
            format!("{problem}; one of them is expected, with a list of the parents' names"),
        );
        return None;
    }
    Some(After {
        parents: all.map(Parents::All).or(any.map(Parents::Any))?,
        on: on.unwrap_or_default(),
        pass_output: pass_output.unwrap_or_default(),
    })
}

fn parent(r: &mut Reader, node: &Node, path: &str, namespace: &Namespace) -> Option<JobName> {
    local(r, node, path, |text| JobName::in_namespace(namespace, text))
}

fn parents(r: &mut Reader, node: &Node, path: &str, namespace: &Namespace) -> Option<Vec<JobName>> {
    let Value::List(items) = &node.value else {
        r.mismatch(node, path, "a list of the parents' names");
        return None;
    };
    if !(1..=After::MAX_PARENTS).contains(&items.len()) {
        let message = format!(
            "{} given; 1 to {} parents are expected",
            given(node),
            After::MAX_PARENTS
        );
        r.refuse(node.line, path, message);
        return None;
    }
    let mut names: Vec<JobName> = Vec::with_capacity(items.len());
    let mut is_complete = true;
    for (index, item) in items.iter().enumerate() {
        let path = format!("{path}[{index}]");
        match parent(r, item, &path, namespace) {
            Some(name) if names.contains(&name) => {
                let message = format!(
                    "{:?} is given twice; each parent once is expected",
                    name.local()
                );
                r.refuse(item.line, &path, message);
                is_complete = false;
            }
            Some(name) => names.push(name),
            None => is_complete = false,
        }
    }
    is_complete.then_some(names)
}

fn check_window(r: &mut Reader, f: &Fields<'_>, spec: &JobSpec) {
    if let (Some(start), Some(end)) = (spec.start_at, spec.end_at)
        && start >= end
        && let Some((node, path)) = f.get("end_at")
    {
        r.refuse(
            node.line,
            &path,
            format!("{end} is not after start_at ({start}); a later instant is expected"),
        );
    }
}

fn check_parent(r: &mut Reader, f: &Fields<'_>, spec: &JobSpec) {
    if let Some(after) = &spec.after
        && after.names().contains(&spec.name)
        && let Some((node, path)) = f.get("after")
    {
        r.refuse(
            node.line,
            &path,
            format!(
                "{:?} is this job itself; another job is expected as its parent",
                spec.name.local()
            ),
        );
    }
}
