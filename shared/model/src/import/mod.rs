//! Imports jobs from other schedulers: systemd's timers, Quartz and XXL-JOB.
//!
//! These modules turn plain data into jobs. Callers read files and databases, and store the jobs. Each thing that could
//! become a job gets an [`Entry`]: a job with notes on every difference, or the reason why there is none.
//!
//! What would make a job run where the other scheduler does not (an unreadable calendar, a condition) is imported as
//! paused. Nothing is guessed.

pub mod quartz;
pub mod systemd;
pub mod xxl;

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::decode;
use crate::job::JobSpec;
use crate::name::MAX_NAME_BYTES;

/// The result for one thing of the other scheduler.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Where it is: a file with its line, or the name of a trigger.
    pub place: String,
    /// The job, or the reason why there is none.
    pub job: Result<JobSpec, String>,
    /// The differences between the job and the original.
    pub notes: Vec<Note>,
}

/// A difference between a job and its original.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// The job does it in another way.
    Changed(String),
    /// The job does not have it.
    LeftOut(String),
    /// The job is imported as paused, for this reason.
    Paused(String),
}

impl Note {
    /// The word for the kind of difference.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Changed(_) => "changed",
            Self::LeftOut(_) => "left out",
            Self::Paused(_) => "paused",
        }
    }

    /// The difference.
    pub fn message(&self) -> &str {
        match self {
            Self::Changed(message) | Self::LeftOut(message) | Self::Paused(message) => message,
        }
    }
}

/// A definition in the making, in the form of job files. [`decode`] checks it at the end, as it checks any definition.
#[derive(Default)]
struct Draft {
    fields: Map<String, Value>,
    notes: Vec<Note>,
}

impl Draft {
    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.fields.insert(key.to_owned(), value.into());
    }

    fn changed(&mut self, message: impl Into<String>) {
        self.notes.push(Note::Changed(message.into()));
    }

    fn left_out(&mut self, message: impl Into<String>) {
        self.notes.push(Note::LeftOut(message.into()));
    }

    /// Imports the job as paused.
    fn pause(&mut self, message: impl Into<String>) {
        self.set("enabled", false);
        self.notes.push(Note::Paused(message.into()));
    }

    fn finish(self) -> Result<(JobSpec, Vec<Note>), String> {
        let node = decode::Node::from(Value::Object(self.fields));
        match decode::job(&node) {
            Ok(job) => Ok((job, self.notes)),
            Err(problems) => {
                let texts: Vec<String> = problems
                    .iter()
                    .map(|problem| format!("{}: {}", problem.field, problem.message))
                    .collect();
                Err(texts.join("; "))
            }
        }
    }
}

/// Names in use.
#[derive(Default)]
struct Names(HashSet<String>);

impl Names {
    /// A name from `text`: other characters than letters, digits, `-`, `_`, `.` and `:` become dashes, and a name in use
    /// gets a number.
    fn unique(&mut self, text: &str) -> String {
        let base = clean(text);
        let mut name = base.clone();
        let mut number = 1;
        while !self.0.insert(name.clone()) {
            number += 1;
            name = format!("{base}-{number}");
        }
        name
    }
}

/// The most bytes of a cleaned text; a number and a namespace still fit.
const MAX_CLEAN_BYTES: usize = MAX_NAME_BYTES - 16;

fn clean(text: &str) -> String {
    let mut name = String::new();
    for c in text.chars() {
        if name.len() >= MAX_CLEAN_BYTES {
            break;
        }
        match c {
            c if c.is_ascii_alphanumeric() => name.push(c),
            '_' => name.push(c),
            '.' | ':' if !name.is_empty() => name.push(c),
            _ if !name.is_empty() && !name.ends_with('-') => name.push('-'),
            _ => {}
        }
    }
    let name = name.trim_end_matches('-');
    if name.is_empty() {
        "job".to_owned()
    } else {
        name.to_owned()
    }
}

/// A duration in the form of job files.
fn duration(ms: u64) -> Value {
    Value::String(crate::duration::DurationMs::millis(ms).to_string())
}
