//! Reads job definitions from job files and API bodies.
//!
//! The input is a [`Node`], a value tree with line numbers. Callers convert their own format to it (TOML, YAML, JSON),
//! so this module knows no file format and no network. The output is either valid [`JobSpec`]s or every [`Problem`] at
//! once. A problem names the field, the given value and the accepted values. The decoder accepts the short
//! forms of job files (`block = "serial"`, `handler = { shell = "text" }`) and the serialised form of a [`JobSpec`].

mod alarm;
mod exclusion;
mod fields;
mod handler;
mod job;
mod limit;
mod policy;
mod reader;
mod retention;
mod route;
mod schedule;
mod script;

use std::collections::{HashMap, HashSet};
use std::fmt;

use crate::alarm::{AlarmChannel, AlarmRule, AlarmSilence};
use crate::exclusion::{CalendarSpec, WindowSpec};
use crate::job::JobSpec;
use crate::limit::Rate;
use crate::name::Namespace;
use crate::retention::Retention;
use crate::script::ScriptSpec;
use crate::time::Timestamp;
use reader::Reader;

/// A value and the line it was written on.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The line, from 1; `None` if the source has no useful line numbers.
    pub line: Option<u32>,
    /// The value.
    pub value: Value,
}

/// A value of a job definition, in any format.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// No value; a key with it counts as absent.
    Null,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// Keys and values in the order written. The line of a key is that of its node.
    Map(Vec<(String, Node)>),
}

impl From<serde_json::Value> for Node {
    fn from(json: serde_json::Value) -> Self {
        use serde_json::Value as Json;
        let value = match json {
            Json::Null => Value::Null,
            Json::Bool(b) => Value::Bool(b),
            Json::Number(n) => n
                .as_i64()
                .map_or_else(|| Value::Float(n.as_f64().unwrap_or(f64::NAN)), Value::Int),
            Json::String(s) => Value::Text(s),
            Json::Array(items) => Value::List(items.into_iter().map(Self::from).collect()),
            Json::Object(map) => {
                Value::Map(map.into_iter().map(|(k, v)| (k, Self::from(v))).collect())
            }
        };
        Self { line: None, value }
    }
}

/// One problem of a definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The line, if the source has lines.
    pub line: Option<u32>,
    /// The job's name as given, if it has one.
    pub job: Option<String>,
    /// The path of the field, such as `schedule.cron` or `retry.on[1]`; empty for the whole definition.
    pub field: String,
    /// The given value and the accepted values.
    pub message: String,
}

/// Shows everything except the line, which callers print before it together with the file's name:
/// `job "report": schedule.cron: "61 * * * *": minute 61 is out of range 0–59`.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(job) = &self.job {
            write!(f, "job {job:?}: ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// The most problems that are reported for one input. A further entry then says that there are more.
pub const MAX_PROBLEMS: usize = 1_000;

/// The most jobs in one file or body.
pub const MAX_JOBS: usize = 100_000;

/// The most calendars, and the most scripts, in one file.
pub const MAX_CALENDARS_IN_FILE: usize = 1_000;

/// Reads one job definition. Without the field `namespace` it is in the namespace `default`.
pub fn job(node: &Node) -> Result<JobSpec, Vec<Problem>> {
    let mut reader = Reader::default();
    let spec = read_job(&mut reader, node, "", &Namespace::default());
    reader.finish().and(spec.ok_or_else(Vec::new))
}

/// Reads one calendar. Without the field `namespace` it is in `namespace`.
///
/// # Errors
///
/// All problems.
pub fn calendar(node: &Node, namespace: &Namespace) -> Result<CalendarSpec, Vec<Problem>> {
    let mut reader = Reader::default();
    let spec = exclusion::calendar(&mut reader, node, namespace);
    reader.finish().and(spec.ok_or_else(Vec::new))
}

/// Reads one maintenance window.
///
/// # Errors
///
/// All problems.
pub fn window(node: &Node, namespace: &Namespace) -> Result<WindowSpec, Vec<Problem>> {
    let mut reader = Reader::default();
    let spec = exclusion::window(&mut reader, node, namespace);
    reader.finish().and(spec.ok_or_else(Vec::new))
}

/// Reads one script. Without the field `namespace` it is in `namespace`.
///
/// # Errors
///
/// All problems.
pub fn script(node: &Node, namespace: &Namespace) -> Result<ScriptSpec, Vec<Problem>> {
    let mut reader = Reader::default();
    let spec = script::read(&mut reader, node, namespace);
    reader.finish().and(spec.ok_or_else(Vec::new))
}

/// Reads a retention rule.
///
/// # Errors
///
/// All problems.
pub fn retention(node: &Node) -> Result<Retention, Vec<Problem>> {
    let mut reader = Reader::default();
    let rule = retention::read(&mut reader, node, "");
    reader.finish().and(rule.ok_or_else(Vec::new))
}

/// Reads a rate.
///
/// # Errors
///
/// All problems.
pub fn rate(node: &Node) -> Result<Rate, Vec<Problem>> {
    let mut reader = Reader::default();
    let rate = limit::rate(&mut reader, node, "");
    reader.finish().and(rate.ok_or_else(Vec::new))
}

/// Reads one pause, which begins at `now`. Its owner is left to the caller.
///
/// # Errors
///
/// All problems.
pub fn pause(
    node: &Node,
    namespace: &Namespace,
    now: Timestamp,
) -> Result<WindowSpec, Vec<Problem>> {
    let mut reader = Reader::default();
    let spec = exclusion::pause(&mut reader, node, namespace, now);
    reader.finish().and(spec.ok_or_else(Vec::new))
}

/// Reads one alarm rule. Without the field `namespace` it is in `namespace`.
///
/// # Errors
///
/// All problems.
pub fn alarm_rule(node: &Node, namespace: &Namespace) -> Result<AlarmRule, Vec<Problem>> {
    let mut reader = Reader::default();
    let spec = alarm::rule(&mut reader, node, namespace);
    reader.finish().and(spec.ok_or_else(Vec::new))
}

/// Reads one alarm channel. Without the field `namespace` it is in `namespace`.
///
/// # Errors
///
/// All problems.
pub fn alarm_channel(node: &Node, namespace: &Namespace) -> Result<AlarmChannel, Vec<Problem>> {
    let mut reader = Reader::default();
    let spec = alarm::channel(&mut reader, node, namespace);
    reader.finish().and(spec.ok_or_else(Vec::new))
}

/// Reads one silence, which begins at `now` if it does not say when. Who began it is left to the caller.
///
/// # Errors
///
/// All problems.
pub fn alarm_silence(
    node: &Node,
    namespace: &Namespace,
    now: Timestamp,
) -> Result<AlarmSilence, Vec<Problem>> {
    let mut reader = Reader::default();
    let spec = alarm::silence(&mut reader, node, namespace, now);
    reader.finish().and(spec.ok_or_else(Vec::new))
}

/// What a file of alarms defines.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Alarms {
    /// The channels.
    pub channels: Vec<AlarmChannel>,
    /// The rules.
    pub rules: Vec<AlarmRule>,
}

/// Reads a file of alarms: a map whose keys `channel` and `rule` ([[rule]] in TOML) are lists of definitions.
///
/// # Errors
///
/// All problems.
pub fn alarm_file(root: &Node, namespace: &Namespace) -> Result<Alarms, Vec<Problem>> {
    let mut reader = Reader::default();
    let Some(_) = reader.fields(root, "", &["channel", "rule"], &[]) else {
        return reader.finish().and(Err(Vec::new()));
    };
    let Value::Map(entries) = &root.value else {
        return Ok(Alarms::default());
    };
    let of = |key: &str| -> Vec<&(String, Node)> {
        entries.iter().filter(|(own, _)| own == key).collect()
    };
    let channels = read_lists(&mut reader, &of("channel"), "channel", |r, item| {
        let channel = alarm::channel(r, item, namespace)?;
        Some((channel.name.as_str().to_owned(), channel))
    });
    let rules = read_lists(&mut reader, &of("rule"), "rule", |r, item| {
        let rule = alarm::rule(r, item, namespace)?;
        Some((rule.name.as_str().to_owned(), rule))
    });
    reader.finish().map(|()| Alarms { channels, rules })
}

/// What a job file defines.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Definitions {
    /// The jobs.
    pub jobs: Vec<JobSpec>,
    /// The calendars.
    pub calendars: Vec<CalendarSpec>,
    /// The scripts.
    pub scripts: Vec<ScriptSpec>,
}

/// Reads a job file with its calendars, which the key `calendar` or `calendars` has, and its scripts (`script`, `scripts`).
///
/// # Errors
///
/// All problems.
pub fn file(root: &Node, namespace: &Namespace) -> Result<Definitions, Vec<Problem>> {
    let Value::Map(entries) = &root.value else {
        return jobs(root, namespace).map(|jobs| Definitions {
            jobs,
            ..Definitions::default()
        });
    };
    let mut of_calendars = Vec::new();
    let mut of_scripts = Vec::new();
    let mut others = Vec::new();
    for entry in entries {
        match entry.0.as_str() {
            "calendar" | "calendars" => of_calendars.push(entry),
            "script" | "scripts" => of_scripts.push(entry),
            _ => others.push(entry.clone()),
        }
    }
    let mut reader = Reader::default();
    let calendars = read_lists(&mut reader, &of_calendars, "calendar", |r, item| {
        let calendar = exclusion::calendar(r, item, namespace)?;
        Some((calendar.name.as_str().to_owned(), calendar))
    });
    let scripts = read_lists(&mut reader, &of_scripts, "script", |r, item| {
        let script = script::read(r, item, namespace)?;
        Some((script.name.as_str().to_owned(), script))
    });
    let first = reader.finish();
    let root = Node {
        line: root.line,
        value: Value::Map(others),
    };
    match (first, jobs(&root, namespace)) {
        (Ok(()), Ok(jobs)) => Ok(Definitions {
            jobs,
            calendars,
            scripts,
        }),
        (first, of_jobs) => {
            let mut problems = first.err().unwrap_or_default();
            problems.extend(of_jobs.err().unwrap_or_default());
            Err(problems)
        }
    }
}

/// Reads lists of named definitions that are no jobs. `what` is the word for one of them.
fn read_lists<T>(
    reader: &mut Reader,
    lists: &[&(String, Node)],
    what: &str,
    read: impl Fn(&mut Reader, &Node) -> Option<(String, T)>,
) -> Vec<T> {
    let mut found = Vec::new();
    let mut names = HashSet::new();
    for (key, list) in lists {
        let Value::List(items) = &list.value else {
            let message = format!(
                "{} given; a list of {what}s is expected ([[{key}]] in TOML)",
                reader::given(list)
            );
            reader.refuse(list.line, key, message);
            continue;
        };
        for (index, item) in items.iter().enumerate().take(MAX_CALENDARS_IN_FILE + 1) {
            if index == MAX_CALENDARS_IN_FILE {
                let message = format!(
                    "{} {what}s given; a file has at most {MAX_CALENDARS_IN_FILE}",
                    items.len()
                );
                reader.refuse(list.line, key, message);
                break;
            }
            reader.enter(None, &format!("{key}[{index}]"));
            if let Some((name, one)) = read(reader, item) {
                if !names.insert(name.clone()) {
                    let message = format!(
                        "{name:?} is given twice in this file; each {what} needs a name of its own"
                    );
                    reader.refuse(item.line, "name", message);
                }
                found.push(one);
            }
            reader.leave();
        }
    }
    found
}

/// Reads a job file: a map whose key `job` (TOML's `[[job]]`) or `jobs` is a list of definitions. Definitions without the
/// field `namespace` are in `namespace`.
pub fn jobs(root: &Node, namespace: &Namespace) -> Result<Vec<JobSpec>, Vec<Problem>> {
    let mut reader = Reader::default();
    let mut specs = Vec::new();
    let mut seen: HashMap<String, Option<u32>> = HashMap::new();
    if let Some(fields) = reader.fields(root, "", &["job", "jobs"], &[]) {
        for key in ["job", "jobs"] {
            let Some((list, path)) = fields.get(key) else {
                continue;
            };
            let Value::List(items) = &list.value else {
                let given = reader::given(list);
                reader.refuse(
                    list.line,
                    &path,
                    format!("{given} given; a list of jobs is expected ([[{key}]] in TOML)"),
                );
                continue;
            };
            if items.len() > MAX_JOBS {
                let n = items.len();
                reader.refuse(
                    list.line,
                    &path,
                    format!("{n} jobs given; a file has at most {MAX_JOBS}"),
                );
                continue;
            }
            for (index, item) in items.iter().enumerate() {
                if reader.is_full() {
                    break;
                }
                if let Some(spec) =
                    read_job(&mut reader, item, &format!("{key}[{index}]"), namespace)
                {
                    reader.enter(Some(spec.name.to_string()), "");
                    refuse_repeated(&mut reader, &mut seen, &spec, item);
                    reader.leave();
                    specs.push(spec);
                }
            }
        }
    }
    reader.finish().map(|()| specs)
}

fn refuse_repeated(
    reader: &mut Reader,
    seen: &mut HashMap<String, Option<u32>>,
    spec: &JobSpec,
    item: &Node,
) {
    if let Some(first) = seen.insert(spec.name.to_string(), item.line) {
        let place = first.map_or_else(String::new, |line| format!(" (first on line {line})"));
        reader.refuse(
            item.line,
            "name",
            format!(
                "{:?} is given twice in this file{place}; each job needs a name of its own",
                spec.name.as_str()
            ),
        );
    }
}

/// Reads one definition into `reader`. `place` identifies the job if it has no name.
fn read_job(
    reader: &mut Reader,
    node: &Node,
    place: &str,
    namespace: &Namespace,
) -> Option<JobSpec> {
    let name = match &node.value {
        Value::Map(entries) => {
            entries
                .iter()
                .find_map(|(key, value)| match (key.as_str(), &value.value) {
                    ("name", Value::Text(text)) if !text.is_empty() => Some(reader::shorten(text)),
                    _ => None,
                })
        }
        _ => None,
    };
    let place = if name.is_some() { "" } else { place };
    reader.enter(name, place);
    let spec = job::read(reader, node, namespace);
    reader.leave();
    spec
}

#[cfg(test)]
mod tests;
