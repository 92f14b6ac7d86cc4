//! The configuration file: TOML with a section for each role. A key above the sections is for every role that has it.

use std::path::{Display, Path, PathBuf};

use clap::Id;
use cueline_interface::jobfile::read_text;
use cueline_interface::suggest::did_you_mean;
use toml_edit::{Document, Item, Key, TableLike, Value};

use super::schema::{self, Definition, ROLES, Shape};

/// The file that is read if it exists and no other file is named.
const DEFAULT_FILE: &str = "/etc/cueline/cueline.toml";

/// A value of the file with a known key and the right type.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    section: Option<&'static str>,
    key: Id,
    pub(super) texts: Vec<String>,
    /// From 1.
    pub(super) line: usize,
}

impl Entry {
    /// `listen`, or `scheduler.listen` in a section.
    pub(super) fn path(&self) -> String {
        self.section
            .map_or_else(|| self.key.to_string(), |s| format!("{s}.{}", self.key))
    }
}

#[derive(Debug, Default)]
pub(super) struct ConfigFile {
    /// `None` when there is no file.
    pub(super) path: Option<PathBuf>,
    /// The roles that have a section, in their order in the file.
    pub(super) sections: Vec<&'static str>,
    entries: Vec<Entry>,
    /// All errors in the file. Its valid values are in `entries` all the same.
    pub(super) problems: Vec<String>,
    text: String,
}

impl ConfigFile {
    /// Reads `path`, or else the default file if it exists.
    pub(super) fn read(path: Option<&Path>) -> Self {
        let default = || Some(Path::new(DEFAULT_FILE)).filter(|path| path.exists());
        let Some(path) = path.or_else(default) else {
            return Self::default();
        };
        let mut file = Self {
            path: Some(path.to_owned()),
            ..Self::default()
        };
        match read_text(path) {
            Ok(text) => {
                file.text.clone_from(&text);
                file.parse(&text);
            }
            Err(problem) => file.problems.push(problem),
        }
        file
    }

    /// The value of `key` for `role`. The role's own section takes precedence over keys above the sections.
    pub(super) fn find(&self, role: &str, key: &Id) -> Option<&Entry> {
        let of = |section: Option<&str>| {
            let mut entries = self.entries.iter();
            entries.find(|entry| entry.section == section && entry.key == *key)
        };
        of(Some(role)).or_else(|| of(None))
    }

    fn parse(&mut self, text: &str) {
        let document = match Document::parse(text) {
            Ok(document) => document,
            Err(error) => {
                let line = self.line(error.span());
                let message = error.message().split_whitespace().collect::<Vec<_>>();
                self.note(line, &format!("is not TOML: {}", message.join(" ")));
                return;
            }
        };
        for (name, item) in document.iter() {
            let line = self.line_of(&*document, name, item);
            let role = ROLES.into_iter().find(|(role, _)| *role == name);
            match (role, item.as_table_like()) {
                (Some((role, definitions)), Some(table)) => {
                    self.sections.push(role);
                    self.section(role, &definitions(), table);
                }
                (Some(_), None) => self.note(
                    line,
                    &format!(
                        "{name}: {} given; a section [{name}] is expected",
                        given(item)
                    ),
                ),
                (None, _) => match schema::all().find(|(_, d)| d.get_id() == name) {
                    Some((_, definition)) => self.entry(None, &definition, line, item),
                    None => self.note(line, &format!("{name}: unknown key{}", suggestion(name))),
                },
            }
        }
    }

    fn section(&mut self, role: &'static str, definitions: &[Definition], table: &dyn TableLike) {
        for (key, item) in table.iter() {
            let line = self.line_of(table, key, item);
            let Some(definition) = definitions.iter().find(|d| d.get_id() == key) else {
                let problem = unknown_in_section(role, definitions, key);
                self.note(line, &format!("{role}.{key}: {problem}"));
                continue;
            };
            self.entry(Some(role), definition, line, item);
        }
    }

    fn entry(
        &mut self,
        section: Option<&'static str>,
        definition: &Definition,
        line: usize,
        item: &Item,
    ) {
        let shape = Shape::of(definition);
        let texts = texts(shape, item);
        let entry = Entry {
            section,
            key: definition.get_id().clone(),
            texts: texts.clone().unwrap_or_default(),
            line,
        };
        if texts.is_some() {
            self.entries.push(entry);
        } else {
            // The message must not quote the value, because it may be a secret without its quotes.
            let (given, expected) = (given(item), shape.expected());
            self.note(
                line,
                &format!("{}: {given} given; {expected} is expected", entry.path()),
            );
        }
    }

    fn note(&mut self, line: usize, problem: &str) {
        let problem = format!("{}:{line}: {problem}", self.name());
        self.problems.push(problem);
    }

    pub(super) fn name(&self) -> Display<'_> {
        self.path.as_deref().unwrap_or(Path::new("")).display()
    }

    /// The line of a key, or of a table's header.
    fn line_of(&self, table: &dyn TableLike, key: &str, item: &Item) -> usize {
        let header = item.as_table().and_then(toml_edit::Table::span);
        self.line(header.or_else(|| table.key(key).and_then(Key::span)))
    }

    fn line(&self, span: Option<std::ops::Range<usize>>) -> usize {
        let before = span.and_then(|span| self.text.get(..span.start));
        1 + before.map_or(0, |text| text.matches('\n').count())
    }
}

fn suggestion(name: &str) -> String {
    let keys: Vec<Definition> = schema::all().map(|(_, definition)| definition).collect();
    let known = keys.iter().map(|definition| definition.get_id().as_str());
    let known = known.chain(ROLES.map(|(role, _)| role));
    did_you_mean(
        name,
        known,
        "settings and the sections [standalone], [scheduler] and [worker] are listed in docs/configuration.md",
    )
}

fn unknown_in_section(role: &str, definitions: &[Definition], key: &str) -> String {
    let others: Vec<&str> = schema::all()
        .filter(|(_, definition)| definition.get_id() == key)
        .map(|(role, _)| role)
        .collect();
    if !others.is_empty() {
        return format!(
            "a {role} has no such key; it belongs in [{}]",
            others.join("] or [")
        );
    }
    let known: Vec<&str> = definitions.iter().map(|d| d.get_id().as_str()).collect();
    let list = format!("expected one of {}", known.join(", "));
    format!("unknown key{}", did_you_mean(key, known, &list))
}

fn texts(shape: Shape, item: &Item) -> Option<Vec<String>> {
    match (shape, item.as_value()?) {
        (Shape::Text, Value::String(text)) => Some(vec![text.value().clone()]),
        (Shape::Number, Value::Integer(number)) => Some(vec![number.value().to_string()]),
        (Shape::Switch, Value::Boolean(on)) => Some(vec![on.value().to_string()]),
        (Shape::List, Value::Array(items)) => {
            let text = |item: &Value| item.as_str().map(str::to_owned);
            items.iter().map(text).collect()
        }
        _ => None,
    }
}

fn given(item: &Item) -> String {
    match item.as_value() {
        Some(Value::Boolean(on)) => on.value().to_string(),
        Some(Value::Integer(number)) => format!("the number {}", number.value()),
        Some(Value::Float(number)) => format!("the number {}", number.value()),
        Some(Value::Array(_)) => "a list".to_owned(),
        Some(Value::String(_) | Value::Datetime(_)) => "a text".to_owned(),
        Some(Value::InlineTable(_)) | None => "a table".to_owned(),
    }
}
