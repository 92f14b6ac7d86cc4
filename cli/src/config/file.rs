//! The configuration file: TOML with a section for each role. A key above the sections is for every role that has it.

use std::path::{Path, PathBuf};

use cueline_model::decode::{Node, Value};

use super::nearest::did_you_mean;
use super::raw::Raw;
use super::settings::{Role, Setting, Shape};
use crate::jobfile;

/// Read when no other file is named, if it is there.
pub const DEFAULT_FILE: &str = "/etc/cueline/cueline.toml";

/// A key of the file.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The key.
    pub key: &'static str,
    /// Its value.
    pub raw: Raw,
    /// The line, from 1.
    pub line: u32,
}

/// A file whose keys and shapes are right.
#[derive(Debug, Clone, Default)]
pub struct ConfigFile {
    /// Its name; `None` when there is none.
    pub path: Option<PathBuf>,
    /// What stands above the sections.
    pub top: Vec<Entry>,
    /// The sections.
    pub sections: Vec<(Role, Vec<Entry>)>,
}

impl ConfigFile {
    /// Reads `path`, or else the default file if there is one. With everything that is wrong in it; what is right is there all the same.
    pub fn read(path: Option<&Path>) -> (Self, Vec<String>) {
        let path = match path {
            Some(path) => path,
            None if Path::new(DEFAULT_FILE).exists() => Path::new(DEFAULT_FILE),
            None => return (Self::default(), Vec::new()),
        };
        let mut file = Self {
            path: Some(path.to_owned()),
            ..Self::default()
        };
        let mut problems = Vec::new();
        match jobfile::read_text(path).and_then(|text| {
            jobfile::toml_node(&text)
                .map_err(|(line, message)| format!("{}:{line}: {message}", path.display()))
        }) {
            Ok(node) => file.fill(&node, &mut Problems(path, &mut problems)),
            Err(problem) => problems.push(problem),
        }
        (file, problems)
    }

    /// What the file says about `key` for `role`: the role's own section comes first.
    pub fn find(&self, role: Role, key: &str) -> Option<(&Entry, String)> {
        let own = self
            .sections
            .iter()
            .filter(|(section, _)| *section == role)
            .flat_map(|(_, entries)| entries)
            .find(|entry| entry.key == key)
            .map(|entry| (entry, format!("{}.{key}", role.name())));
        own.or_else(|| {
            let top = self.top.iter().find(|entry| entry.key == key)?;
            Some((top, key.to_owned()))
        })
    }

    fn fill(&mut self, node: &Node, problems: &mut Problems<'_>) {
        let Value::Map(entries) = &node.value else {
            return;
        };
        for (key, node) in entries {
            if let Some(role) = Role::ALL.into_iter().find(|role| role.name() == key) {
                let entries = section(role, node, problems);
                self.sections.push((role, entries));
                continue;
            }
            let mut everywhere = Role::ALL.into_iter().flat_map(Role::settings);
            if let Some(setting) = everywhere.find(|setting| setting.key == key) {
                self.top.extend(entry(setting, key, node, problems));
            } else {
                problems.note(node, key, &unknown_at_the_top(key));
            }
        }
    }
}

fn unknown_at_the_top(key: &str) -> String {
    let known = Role::ALL
        .into_iter()
        .flat_map(Role::settings)
        .map(|setting| setting.key)
        .chain(Role::ALL.map(Role::name));
    let otherwise = "settings and the sections [standalone], [scheduler] and [worker] are listed in docs/configuration.md";
    format!("unknown key{}", did_you_mean(key, known, otherwise))
}

/// Notes what is wrong, with file and line.
struct Problems<'a>(&'a Path, &'a mut Vec<String>);

impl Problems<'_> {
    fn note(&mut self, node: &Node, key: &str, problem: &str) {
        let line = node.line.unwrap_or(1);
        self.1
            .push(format!("{}:{line}: {key}: {problem}", self.0.display()));
    }
}

fn section(role: Role, node: &Node, problems: &mut Problems<'_>) -> Vec<Entry> {
    let name = role.name();
    let Value::Map(entries) = &node.value else {
        problems.note(
            node,
            name,
            &format!("{} given; a section [{name}] is expected", given(node)),
        );
        return Vec::new();
    };
    let mut found = Vec::new();
    for (key, node) in entries {
        let path = format!("{name}.{key}");
        if let Some(setting) = role.setting(key) {
            found.extend(entry(setting, &path, node, problems));
            continue;
        }
        let others: Vec<&str> = Role::ALL
            .into_iter()
            .filter(|other| other.setting(key).is_some())
            .map(Role::name)
            .collect();
        let problem = if others.is_empty() {
            let known: Vec<&str> = role.settings().iter().map(|s| s.key).collect();
            let list = format!("expected one of {}", known.join(", "));
            format!(
                "unknown key{}",
                did_you_mean(key, known.iter().copied(), &list)
            )
        } else {
            format!(
                "a {name} has no such key; it belongs into [{}]",
                others.join("] or [")
            )
        };
        problems.note(node, &path, &problem);
    }
    found
}

fn entry(
    setting: &'static Setting,
    path: &str,
    node: &Node,
    problems: &mut Problems<'_>,
) -> Option<Entry> {
    let Some(raw) = raw(setting.shape, &node.value) else {
        let expected = setting.shape.expected();
        // What was given may be a secret that lacks its quotes.
        let problem = format!("{} given; {expected} is expected", given(node));
        problems.note(node, path, &problem);
        return None;
    };
    Some(Entry {
        key: setting.key,
        raw,
        line: node.line.unwrap_or(1),
    })
}

fn raw(shape: Shape, value: &Value) -> Option<Raw> {
    match (shape, value) {
        (Shape::Text, Value::Text(text)) => Some(Raw::Text(text.clone())),
        (Shape::Number, Value::Int(number)) => Some(Raw::Number(*number)),
        (Shape::Switch, Value::Bool(on)) => Some(Raw::Switch(*on)),
        (Shape::List, Value::List(items)) => {
            let texts = items.iter().map(|item| match &item.value {
                Value::Text(text) => Some(text.clone()),
                _ => None,
            });
            texts.collect::<Option<_>>().map(Raw::List)
        }
        _ => None,
    }
}

fn given(node: &Node) -> String {
    match &node.value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(on) => format!("{on}"),
        Value::Int(number) => format!("the number {number}"),
        Value::Float(number) => format!("the number {number}"),
        Value::Text(_) => "a text".to_owned(),
        Value::List(items) if items.is_empty() => "an empty list".to_owned(),
        Value::List(_) => "a list".to_owned(),
        Value::Map(_) => "a table".to_owned(),
    }
}
