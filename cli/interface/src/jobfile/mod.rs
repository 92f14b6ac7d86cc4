//! Parses job files (TOML, YAML or JSON) into job definitions. Each problem has its file and line.

mod json;
mod script_files;
mod toml;
mod yaml;

use std::collections::HashMap;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use cueline_model::Namespace;
use cueline_model::decode::{self, Alarms, Definitions, Node};

pub use script_files::read_script;

/// The largest job file. The server accepts request bodies up to this size.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// The deepest nesting. Definitions need about five levels.
const MAX_DEPTH: usize = 32;

/// All problems of some job files, each with its place: `jobs.toml:14: job "report": …`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFileError {
    /// Never empty.
    pub messages: Vec<String>,
}

impl fmt::Display for JobFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.messages.join("\n"))
    }
}

impl std::error::Error for JobFileError {}

impl From<String> for JobFileError {
    fn from(message: String) -> Self {
        Self {
            messages: vec![message],
        }
    }
}

struct SyntaxError {
    line: u32,
    message: String,
}

/// Reads a file as a tree of values, by the ending of its name.
fn read_node(path: &Path) -> Result<Node, JobFileError> {
    let name = path.display();
    let text = read_text(path)?;
    let parse = match path.extension().and_then(|e| e.to_str()) {
        Some("toml") => toml::parse,
        Some("yaml" | "yml") => yaml::parse,
        Some("json") => json::parse,
        _ => {
            return Err(format!(
                "{name}: its name has no known ending; name job files .toml, .yaml, .yml or .json"
            )
            .into());
        }
    };
    let node = parse(&text).map_err(|e| format!("{name}:{}: {}", e.line, e.message))?;
    Ok(node)
}

/// Reads one job file. What has no field `namespace` is in `namespace`.
pub fn read(path: &Path, namespace: &Namespace) -> Result<Definitions, JobFileError> {
    let mut node = read_node(path)?;
    script_files::include(&mut node, path).map_err(|messages| JobFileError { messages })?;
    decode(&node, namespace).map_err(|problems| placed(path, problems))
}

/// Reads one file of alarms. What has no field `namespace` is in `namespace`.
pub fn read_alarms(path: &Path, namespace: &Namespace) -> Result<Alarms, JobFileError> {
    let node = read_node(path)?;
    if node.value == decode::Value::Null {
        return Ok(Alarms::default());
    }
    decode::alarm_file(&node, namespace).map_err(|problems| placed(path, problems))
}

/// Problems with their file and line.
fn placed(path: &Path, problems: Vec<decode::Problem>) -> JobFileError {
    let name = path.display();
    let place = |problem: decode::Problem| match problem.line {
        Some(line) => format!("{name}:{line}: {problem}"),
        None => format!("{name}: {problem}"),
    };
    JobFileError {
        messages: problems.into_iter().map(place).collect(),
    }
}

/// An empty file has no jobs, which is no error.
fn decode(node: &Node, namespace: &Namespace) -> Result<Definitions, Vec<decode::Problem>> {
    if node.value == decode::Value::Null {
        return Ok(Definitions::default());
    }
    decode::file(node, namespace)
}

/// Reads several job files as one. Reports all problems together, also jobs that two files define.
pub fn read_all(paths: &[PathBuf], namespace: &Namespace) -> Result<Definitions, JobFileError> {
    let mut messages = Vec::new();
    let mut all = Definitions::default();
    let mut seen = Seen::default();
    for path in paths {
        let found = match read(path, namespace) {
            Ok(found) => found,
            Err(error) => {
                messages.extend(error.messages);
                continue;
            }
        };
        for calendar in &found.calendars {
            messages.extend(seen.refusal("calendar", calendar.name.as_str(), path));
        }
        for script in &found.scripts {
            messages.extend(seen.refusal("script", script.name.as_str(), path));
        }
        for spec in &found.jobs {
            messages.extend(seen.refusal("job", spec.name.as_str(), path));
        }
        all.calendars.extend(found.calendars);
        all.scripts.extend(found.scripts);
        all.jobs.extend(found.jobs);
    }
    if messages.is_empty() {
        Ok(all)
    } else {
        Err(JobFileError { messages })
    }
}

/// What is defined where, by kind and name.
#[derive(Default)]
struct Seen<'p>(HashMap<(&'static str, String), &'p Path>);

impl<'p> Seen<'p> {
    /// Why this definition is refused, if another file has one of that name.
    fn refusal(&mut self, what: &'static str, name: &str, path: &'p Path) -> Option<String> {
        let first = self.0.insert((what, name.to_owned()), path)?;
        Some(format!(
            "{}: {what} {name:?}: name: given in {} already; each {what} needs a name of its own",
            path.display(),
            first.display()
        ))
    }
}

/// Reads a file of at most [`MAX_FILE_BYTES`] of UTF-8 text.
pub fn read_text(path: &Path) -> Result<String, String> {
    let name = path.display();
    let failed = |error: std::io::Error| format!("{name}: failed to read: {error}");
    let mut bytes = Vec::new();
    // Checked before opening, because opening a pipe without a writer blocks forever.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(format!("{name}: is not a file"));
    }
    std::fs::File::open(path)
        .map_err(failed)?
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(format!(
            "{name}: is larger than {MAX_FILE_BYTES} bytes; split it into several files"
        ));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.split(|byte| *byte == b'\n').count();
        format!("{name}:{line}: is not UTF-8 text; save it as UTF-8")
    })
}

/// Finds the line of a place in a text.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(at, _)| at).collect())
    }

    /// The line, from 1, of the byte at `offset`.
    fn at(&self, offset: usize) -> u32 {
        let before = self.0.partition_point(|newline| *newline < offset);
        u32::try_from(before).unwrap_or(u32::MAX).saturating_add(1)
    }
}

#[cfg(test)]
mod tests;
