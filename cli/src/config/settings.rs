//! The settings of one role. Flags come before variables, variables before the file, and the file before defaults.

use std::env::VarError;
use std::error::Error as _;
use std::path::{Path, PathBuf};

use clap::{Command, Id};
use cueline_interface::secret_file;

use super::file::ConfigFile;
use super::roles::Role;
use super::schema::{self, Definition, Shape};
use super::values;
use crate::redacted::{HIDDEN, Redacted};

/// The values of the flags that were given, by key.
pub(super) type Flags = Vec<(Id, Vec<String>)>;

/// The layer of a value. A greater one takes precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Layer {
    Default,
    File,
    Variable,
    Flag,
}

/// A setting with its value.
#[derive(Debug)]
pub(crate) struct Setting {
    definition: Definition,
    /// The texts to parse; empty if there is no value.
    texts: Vec<String>,
    /// The value without secrets; `None` if there is none.
    pub(crate) shown: Option<String>,
    pub(crate) layer: Layer,
    /// `cueline.toml:6`, `CUELINE_KEEP`, `--keep` or `default`.
    pub(crate) from: String,
    /// The place that a problem names: `from`, followed by the key if `from` does not contain it.
    place: String,
    refused: bool,
}

impl Setting {
    fn gather(role: &str, definition: Definition, flags: &Flags, file: &ConfigFile) -> Self {
        let (key, variable) = (definition.get_id(), schema::variable(&definition));
        let flag = flags.iter().find(|(flag, _)| flag == key);
        let in_environment = std::env::var(variable).ok().filter(|text| !text.is_empty());
        let (layer, texts, from, place) = if let Some((_, texts)) = flag {
            let name = format!("--{}", definition.get_long().unwrap_or_default());
            (Layer::Flag, texts.clone(), name.clone(), name)
        } else if let Some(text) = in_environment {
            let name = variable.to_owned();
            (Layer::Variable, vec![text], name.clone(), name)
        } else if let Some(entry) = file.find(role, key) {
            let from = format!("{}:{}", file.name(), entry.line);
            let place = format!("{from}: {}", entry.path());
            (Layer::File, entry.texts.clone(), from, place)
        } else {
            let values = definition.get_default_values().iter();
            let texts = values.map(|value| value.to_string_lossy().into_owned());
            let from = "default".to_owned();
            (Layer::Default, texts.collect(), from, key.to_string())
        };
        let texts = match (layer, Shape::of(&definition)) {
            (Layer::Flag | Layer::Variable, Shape::List) => split(&texts),
            _ => texts,
        };
        let mut setting = Self {
            definition,
            texts: Vec::new(),
            shown: None,
            layer,
            from,
            place,
            refused: false,
        };
        setting.set(texts);
        setting
    }

    pub(crate) fn key(&self) -> &str {
        self.definition.get_id().as_str()
    }

    fn set(&mut self, texts: Vec<String>) {
        let text = texts.join(",");
        self.shown = (!texts.is_empty()).then(|| match schema::value_name(&self.definition) {
            "URL" => Redacted::new(text).to_string(),
            "TOKEN" => HIDDEN.to_owned(),
            _ => text,
        });
        self.texts = texts;
    }

    /// The errors of its values. Each value is parsed separately, because clap stops at the first mistake.
    fn problems(&self) -> Vec<String> {
        let alone = Command::new("")
            .no_binary_name(true)
            .arg(self.definition.clone().required(false));
        let parsed = |argument| alone.clone().try_get_matches_from([argument]);
        self.arguments()
            .filter_map(|argument| parsed(argument).err())
            // The source is the error of a parser in `values`.
            .map(|error| {
                error
                    .source()
                    .map_or_else(|| error.to_string(), ToString::to_string)
            })
            .collect()
    }

    fn arguments(&self) -> impl Iterator<Item = String> {
        let flag = self.definition.get_long().unwrap_or_default();
        self.texts
            .iter()
            .map(move |text| format!("--{flag}={text}"))
    }
}

/// The items of a list, which commas separate.
fn split(texts: &[String]) -> Vec<String> {
    let items = texts.iter().flat_map(|text| text.split(',')).map(str::trim);
    items
        .filter(|item| !item.is_empty())
        .map(str::to_owned)
        .collect()
}

/// All settings of one role, with all their errors.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(super) role: &'static str,
    pub(super) list: Vec<Setting>,
    pub(super) problems: Vec<String>,
    pub(super) warnings: Vec<String>,
}

impl Settings {
    pub(super) fn gather<T: Role>(flags: &Flags, mut file: ConfigFile) -> Self {
        let mut problems = std::mem::take(&mut file.problems);
        let definitions = schema::definitions::<T>().into_iter();
        let definitions = definitions.inspect(|definition| {
            let variable = schema::variable(definition);
            if let Err(VarError::NotUnicode(_)) = std::env::var(variable) {
                problems.push(format!("{variable}: is not UTF-8 text"));
            }
        });
        Self {
            role: T::NAME,
            warnings: Vec::new(),
            list: definitions
                .map(|definition| Setting::gather(T::NAME, definition, flags, &file))
                .collect(),
            problems,
        }
    }

    /// # Panics
    ///
    /// If the role has no such setting.
    fn at(&self, key: &str) -> &Setting {
        let found = self.list.iter().find(|setting| setting.key() == key);
        found.expect("the role has this setting")
    }

    fn at_mut(&mut self, key: &str) -> &mut Setting {
        let found = self.list.iter_mut().find(|setting| setting.key() == key);
        found.expect("the role has this setting")
    }

    /// Whether it has a value that is not the default.
    pub(super) fn is_given(&self, key: &str) -> bool {
        self.at(key).layer != Layer::Default
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.texts(key).first().map(String::as_str)
    }

    /// The entries of a list.
    pub(super) fn texts(&self, key: &str) -> &[String] {
        &self.at(key).texts
    }

    /// Sets a value if none is given.
    pub(super) fn set_default(&mut self, key: &str, text: Result<String, String>) {
        match text {
            _ if self.text(key).is_some() => {}
            Ok(text) => self.at_mut(key).set(vec![text]),
            Err(problem) => self.refuse(key, &problem),
        }
    }

    /// Sets the text that `config check` shows if no value is given.
    pub(super) fn show_default(&mut self, key: &str, text: String) {
        self.at_mut(key).shown.get_or_insert(text);
    }

    /// Reports a value that is not acceptable.
    pub(super) fn refuse(&mut self, key: &str, problem: &str) {
        let setting = self.at_mut(key);
        setting.refused = true;
        let problem = format!("{}: {problem}", setting.place);
        self.problems.push(problem);
    }

    /// Reports a required value that is missing.
    pub(super) fn require(&mut self, key: &str, expected: &str) {
        let definition = &self.at(key).definition;
        self.problems.push(format!(
            "{key}: missing; give --{} {}, {} or {key} in the section [{}] of a configuration file: {expected}",
            definition.get_long().unwrap_or_default(),
            schema::value_name(definition),
            schema::variable(definition),
            self.role
        ));
    }

    /// Takes the value of `key` from the file that `KEY_file` names, unless `key` was given in a layer above.
    pub(super) fn read_secret_file(&mut self, key: &str) {
        let file_key = format!("{key}_file");
        let (inline, file) = (self.at(key).layer, self.at(&file_key));
        let (layer, place) = (file.layer, file.place.clone());
        let Some(path) = self.text(&file_key).map(str::to_owned) else {
            return;
        };
        if inline == layer {
            self.refuse(
                &file_key,
                &format!("{key} is given as well; give one of them"),
            );
        } else if inline < layer {
            let text = secret_file::read(Path::new(&path));
            let setting = self.at_mut(key);
            setting.texts = text.iter().cloned().collect();
            setting.shown = None;
            setting.place = format!("{place}: {path}");
            if let Err(problem) = text {
                self.refuse(&file_key, &problem);
                self.at_mut(key).refused = true;
            }
        }
    }

    /// Warns if other users can read the file that `key` names.
    pub(super) fn check_permissions(&mut self, key: &str) {
        if let Some(path) = self.text(key).map(PathBuf::from) {
            self.warn_permissions(&path);
        }
    }

    /// Warns if other users can read this file.
    pub(super) fn warn_permissions(&mut self, path: &Path) {
        self.warnings.extend(secret_file::permission_warning(path));
    }

    /// Parses all values into the role's struct, or reports each one that cannot be parsed.
    pub(super) fn parse<T: Role>(&mut self) -> Option<T> {
        for index in 0..self.list.len() {
            let setting = &self.list[index];
            let (key, problems) = (setting.key().to_owned(), setting.problems());
            if setting.definition.is_required_set() && setting.texts.is_empty() && !setting.refused
            {
                self.require(values::setting_to_give(&key), &values::expected(&key));
            }
            for problem in problems {
                self.refuse(&key, &problem);
            }
        }
        if !self.problems.is_empty() {
            return None;
        }
        let definitions = self.list.iter().map(|setting| setting.definition.clone());
        let command = Command::new(T::NAME).no_binary_name(true).args(definitions);
        let parsed = command
            .try_get_matches_from(self.list.iter().flat_map(Setting::arguments))
            .and_then(|matches| T::from_arg_matches(&matches));
        parsed
            .map_err(|error| self.problems.push(error.to_string()))
            .ok()
    }
}
