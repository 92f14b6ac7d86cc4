//! The rows of the table, from `rows.txt`.

use std::fmt;

use serde_json::{Map, Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Job,
    Calendar,
    Script,
    Window,
    Pause,
    Backfill,
    Trigger,
}

impl Kind {
    pub(super) const ALL: [(Self, &'static str, &'static str); 7] = [
        (Self::Job, "job", "JobDefinition"),
        (Self::Calendar, "calendar", "CalendarDefinition"),
        (Self::Script, "script", "ScriptDefinition"),
        (Self::Window, "window", "NewWindow"),
        (Self::Pause, "pause", "NewPause"),
        (Self::Backfill, "backfill", "NewBackfill"),
        (Self::Trigger, "trigger", "TriggerRequest"),
    ];

    /// The list of a job file that has such definitions.
    pub(super) fn table(self) -> Option<&'static str> {
        match self {
            Self::Job => Some("job"),
            Self::Calendar => Some("calendar"),
            Self::Script => Some("script"),
            _ => None,
        }
    }

    /// A definition without a mistake.
    fn good(self) -> Value {
        match self {
            Self::Job => {
                json!({ "name": "a", "schedule": { "every": "1h" }, "handler": { "shell": "true" } })
            }
            Self::Calendar => json!({ "name": "a", "weekdays": ["sat"] }),
            Self::Script => json!({ "name": "a", "language": "bash", "text": "true" }),
            Self::Window => {
                json!({ "start": "2096-01-01T00:00:00Z", "end": "2096-01-02T00:00:00Z" })
            }
            Self::Pause => json!({ "all": true, "reason": "a test" }),
            Self::Backfill => {
                json!({ "from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z" })
            }
            Self::Trigger => json!({}),
        }
    }
}

/// A definition with one mistake.
#[derive(Debug, Clone)]
pub(super) struct Row {
    /// The line of the table, and which of its rows.
    pub(super) id: String,
    pub(super) kind: Kind,
    pub(super) field: String,
    pub(super) body: Map<String, Value>,
    pub(super) says: String,
}

impl Row {
    /// The field as messages name it.
    pub(super) fn reported_field(&self) -> &str {
        if self.field == "-" { "" } else { &self.field }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = Value::Object(self.body.clone());
        write!(
            f,
            "row {}: {:?} {} {body} => {}",
            self.id, self.kind, self.field, self.says
        )
    }
}

/// All rows, and those that follow from them.
pub(super) fn all() -> Vec<Row> {
    let lines = include_str!("rows.txt").lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines
        .flat_map(|(index, line)| variants(&parsed(index + 1, line)))
        .collect()
}

fn parsed(number: usize, line: &str) -> Row {
    let mut parts = line.splitn(3, ' ');
    let mut part = || {
        parts
            .next()
            .unwrap_or_else(|| panic!("line {number}: {line}"))
    };
    let (kind, field, rest) = (part(), part(), part());
    let (change, says) = rest.split_once(" => ").expect("an arrow");
    let (kind, ..) = Kind::ALL
        .into_iter()
        .find(|(_, word, _)| *word == kind)
        .unwrap_or_else(|| panic!("line {number}: {kind:?}"));
    let Value::Object(mut body) = kind.good() else {
        unreachable!("an object")
    };
    let change: Map<String, Value> =
        serde_json::from_str(change).unwrap_or_else(|e| panic!("line {number}: {e}"));
    body.extend(change);
    assert!(says.len() > 2, "line {number}: what does the message say?");
    Row {
        id: number.to_string(),
        kind,
        field: field.to_owned(),
        body,
        says: says.to_owned(),
    }
}

/// The row, and the same mistake where another field has the same keys.
fn variants(row: &Row) -> Vec<Row> {
    let mut rows = vec![row.clone()];
    if let Some(key) = row.field.strip_prefix("schedule.") {
        let mut other = row.clone();
        let schedule = other.body.remove("schedule").expect("a schedule");
        other.body.insert("schedules".to_owned(), json!([schedule]));
        other.field = format!("schedules[0].{key}");
        other.id += "-list";
        rows.push(other);
    }
    let process = ["env", "clear_env", "cwd", "stdin", "run_as"];
    if let Some(key) = row.field.strip_prefix("handler.shell.")
        && process.contains(&key.split('.').next().unwrap_or_default())
    {
        for (kind, own, value) in [
            ("command", "argv", json!(["true"])),
            ("script", "name", json!("a")),
        ] {
            let mut other = row.clone();
            let shell = &mut other.body["handler"]["shell"];
            let mut table = shell.as_object().expect("a table").clone();
            table.remove("script");
            table.insert(own.to_owned(), value);
            other
                .body
                .insert("handler".to_owned(), json!({ kind: table }));
            other.field = format!("handler.{kind}.{key}");
            other.id = format!("{}-{kind}", row.id);
            rows.push(other);
        }
    }
    rows
}
