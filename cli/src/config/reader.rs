//! Takes typed values out of flags, variables, file and defaults, in this order, and notes every mistake instead of stopping at the first.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use cueline_model::DurationMs;

use super::file::ConfigFile;
use super::raw::{Raw, Source};
use super::redacted::{HIDDEN, Redacted};
use super::settings::{Preset, Role, Secret, Setting, Shape};

/// The largest file with a secret that is read.
const MAX_SECRET_BYTES: u64 = 64 * 1024;

/// A setting as it holds.
#[derive(Debug, Clone)]
pub struct Effective {
    /// Its key.
    pub setting: &'static Setting,
    /// Its value without secrets; `None` when it has none.
    pub shown: Option<String>,
    /// Where it comes from.
    pub source: Source,
}

/// Reads the settings of one role.
#[derive(Debug)]
pub struct Reader {
    role: Role,
    file: ConfigFile,
    variables: Vec<(&'static str, Raw)>,
    flags: Vec<(&'static str, Raw)>,
    effective: Vec<Effective>,
    problems: Vec<String>,
    warnings: Vec<String>,
}

/// What was read, with where everything comes from.
#[derive(Debug)]
pub struct Outcome<T> {
    /// The configuration, or everything that is wrong.
    pub config: Result<T, Vec<String>>,
    /// All settings, in the order of the table.
    pub effective: Vec<Effective>,
    /// What is right and should not stay so.
    pub warnings: Vec<String>,
}

impl Reader {
    /// Over what was given.
    pub fn new(
        role: Role,
        file: ConfigFile,
        variables: Vec<(&'static str, Raw)>,
        flags: Vec<(&'static str, Raw)>,
        problems: Vec<String>,
    ) -> Self {
        Self {
            role,
            file,
            variables,
            flags,
            effective: Vec::new(),
            problems,
            warnings: Vec::new(),
        }
    }

    /// The configuration that `build` makes of what was read, if nothing is wrong.
    pub fn finish<T>(mut self, build: impl FnOnce() -> Option<T>) -> Outcome<T> {
        let order = |e: &Effective| {
            let same = |s: &Setting| s.key == e.setting.key;
            self.role.settings().iter().position(same)
        };
        self.effective.sort_by_key(order);
        debug_assert_eq!(
            self.effective.len(),
            self.role.settings().len(),
            "each setting of a {} is read",
            self.role.name()
        );
        let config = if self.problems.is_empty() {
            build().ok_or_else(|| vec!["failed to read the configuration".to_owned()])
        } else {
            Err(self.problems)
        };
        Outcome {
            config,
            effective: self.effective,
            warnings: self.warnings,
        }
    }

    /// A text, read by `parse`. `None` when there is none, or when it was refused.
    pub fn read<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let (raw, source) = self.take(key)?;
        let text = raw.to_string();
        let value = parse(&text);
        value
            .map_err(|problem| self.refuse(key, &source, &problem))
            .ok()
    }

    /// The same with what is found out when nothing was given.
    pub fn read_or<T>(
        &mut self,
        key: &'static str,
        otherwise: impl FnOnce() -> Result<String, String>,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        if self.is_given(key) {
            return self.read(key, parse);
        }
        match otherwise() {
            Ok(text) => {
                self.note(key, Some(&Raw::Text(text.clone())), Source::Default);
                self.parsed(key, &text, parse)
            }
            Err(problem) => {
                self.note(key, None, Source::Default);
                self.problems.push(format!("{key}: {problem}"));
                None
            }
        }
    }

    fn parsed<T>(
        &mut self,
        key: &str,
        text: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let value = parse(text);
        value
            .map_err(|problem| self.problems.push(format!("{key}: {problem}")))
            .ok()
    }

    /// A text that is one of a type's.
    pub fn from_str<T>(&mut self, key: &'static str, expected: &str) -> Option<T>
    where
        T: FromStr<Err: Display>,
    {
        self.read(key, |text| {
            text.parse()
                .map_err(|e| format!("{text:?} given: {e}; {expected} is expected"))
        })
    }

    /// A duration.
    pub fn duration(&mut self, key: &'static str) -> Option<DurationMs> {
        self.from_str(key, "a duration such as 500ms, 30s, 5m, 2h or 7d")
    }

    /// A number within bounds.
    pub fn number(&mut self, key: &'static str, range: RangeInclusive<u32>) -> Option<u32> {
        self.read(key, |text| {
            let number = text.parse().ok().filter(|number| range.contains(number));
            number.ok_or_else(|| format!("{text:?} given; a whole number in {range:?} is expected"))
        })
    }

    /// A switch.
    pub fn switch(&mut self, key: &'static str) -> Option<bool> {
        self.read(key, |text| Ok(text == "true"))
    }

    /// A path.
    pub fn path(&mut self, key: &'static str) -> Option<PathBuf> {
        self.read(key, |text| {
            if text.is_empty() {
                Err("\"\" given; a path is expected".to_owned())
            } else {
                Ok(PathBuf::from(text))
            }
        })
    }

    /// A list, each of which `parse` reads.
    pub fn list<T>(
        &mut self,
        key: &'static str,
        mut parse: impl FnMut(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let Some((raw, source)) = self.take(key) else {
            return Some(Vec::new());
        };
        let texts = match raw {
            Raw::List(texts) => texts,
            other => vec![other.to_string()],
        };
        let mut values = Vec::with_capacity(texts.len());
        let before = self.problems.len();
        for text in texts {
            match parse(&text) {
                Ok(value) => values.push(value),
                Err(problem) => self.refuse(key, &source, &problem),
            }
        }
        (self.problems.len() == before).then_some(values)
    }

    /// A secret, from `key` or from the file that `file_key` names: whichever was given more directly.
    pub fn secret<T>(
        &mut self,
        (key, file_key): (&'static str, &'static str),
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let rank = |found: Option<(Raw, Source)>| found.map_or(0, |(_, source)| source.rank());
        let (inline, in_file) = (rank(self.look(key)), rank(self.look(file_key)));
        if inline > 0 && inline == in_file {
            self.take(key);
            if let Some((_, source)) = self.take(file_key) {
                self.refuse(
                    file_key,
                    &source,
                    &format!("{key} is given as well; give one of them"),
                );
            }
            return None;
        }
        if inline >= in_file {
            self.pass_over(file_key);
            return self.read(key, parse);
        }
        self.pass_over(key);
        let (path, source) = self.take(file_key)?;
        let path = PathBuf::from(path.to_string());
        match self.secret_text(&path).and_then(|text| {
            parse(&text).map_err(|problem| format!("{}: {problem}", path.display()))
        }) {
            Ok(value) => Some(value),
            Err(problem) => {
                self.refuse(file_key, &source, &problem);
                None
            }
        }
    }

    /// What is in the file that `key` names, read by `parse`.
    pub fn secret_file<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let (path, source) = self.take(key)?;
        let path = PathBuf::from(path.to_string());
        match self.secret_text(&path).and_then(|text| {
            parse(&text).map_err(|problem| format!("{}: {problem}", path.display()))
        }) {
            Ok(value) => Some(value),
            Err(problem) => {
                self.refuse(key, &source, &problem);
                None
            }
        }
    }

    fn secret_text(&mut self, path: &Path) -> Result<String, String> {
        use std::os::unix::fs::PermissionsExt as _;
        let text = read_small(path)?;
        // Secrets of containers are often readable by all, who are nobody else there: no reason to refuse them.
        if let Ok(metadata) = std::fs::metadata(path)
            && metadata.permissions().mode() & 0o077 != 0
        {
            self.warnings.push(format!(
                "{}: others on this machine can read this secret; run: chmod 600 {}",
                path.display(),
                path.display()
            ));
        }
        Ok(text)
    }

    /// Notes that values do not go together.
    pub fn note_problem(&mut self, problem: String) {
        self.problems.push(problem);
    }

    /// Takes note of settings that mean nothing here and now.
    pub fn pass_over(&mut self, key: &'static str) {
        self.note(key, None, Source::Default);
    }

    /// Notes that something has to be given.
    pub fn require(&mut self, key: &'static str, expected: &str) {
        let Some(setting) = self.role.setting(key) else {
            return;
        };
        let flag = setting
            .flag()
            .map_or_else(String::new, |flag| format!("--{flag} {}, ", setting.value));
        self.problems.push(format!(
            "{key}: missing; give {flag}{} or {key} in the section [{}] of a configuration file: {expected}",
            setting.variable(),
            self.role.name()
        ));
    }

    /// Notes that a value that was given will not do.
    pub fn refuse(&mut self, key: &str, source: &Source, problem: &str) {
        self.problems.push(match source {
            Source::Default => format!("{key}: {problem}"),
            Source::File { key, .. } => format!("{source}: {key}: {problem}"),
            Source::Variable(_) | Source::Flag(_) => format!("{source}: {problem}"),
        });
    }

    /// Whether anybody has said anything about `key`.
    pub fn is_given(&self, key: &str) -> bool {
        self.look(key)
            .is_some_and(|(_, source)| source != Source::Default)
    }

    /// Whether all was well so far.
    pub fn is_good(&self) -> bool {
        self.problems.is_empty()
    }

    /// Notes something that is right and should not stay so.
    pub fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    fn take(&mut self, key: &'static str) -> Option<(Raw, Source)> {
        let found = self.look(key);
        let source = found.as_ref().map(|(_, source)| source.clone());
        self.note(
            key,
            found.as_ref().map(|(raw, _)| raw),
            source.unwrap_or(Source::Default),
        );
        found
    }

    fn look(&self, key: &str) -> Option<(Raw, Source)> {
        let setting = self.role.setting(key)?;
        let named = |list: &[(&'static str, Raw)]| {
            list.iter()
                .find(|(k, _)| *k == key)
                .map(|(_, raw)| raw.clone())
        };
        if let Some(raw) = named(&self.flags) {
            return Some((raw, Source::Flag(setting.flag()?)));
        }
        if let Some(raw) = named(&self.variables) {
            return Some((raw, Source::Variable(setting.variable())));
        }
        if let Some((entry, path)) = self.file.find(self.role, key) {
            let file = self.file.path.as_deref().unwrap_or(Path::new(""));
            let source = Source::File {
                file: file.display().to_string(),
                line: entry.line,
                key: path,
            };
            return Some((entry.raw.clone(), source));
        }
        match setting.preset {
            Preset::Is(text) => {
                let raw = Raw::from_text(setting.shape, text).ok()?;
                Some((raw, Source::Default))
            }
            Preset::Required | Preset::None | Preset::Found(_) => None,
        }
    }

    fn note(&mut self, key: &'static str, raw: Option<&Raw>, source: Source) {
        let Some(setting) = self.role.setting(key) else {
            debug_assert!(false, "{key} is no setting of a {}", self.role.name());
            return;
        };
        let shown = raw.map(|raw| match setting.secret {
            Secret::No if setting.shape == Shape::List && raw.to_string().is_empty() => {
                "none".to_owned()
            }
            Secret::No => raw.to_string(),
            Secret::Password => Redacted::new(raw.to_string()).to_string(),
            Secret::Whole => HIDDEN.to_owned(),
        });
        self.effective.retain(|e| e.setting.key != key);
        self.effective.push(Effective {
            setting,
            shown,
            source,
        });
    }
}

/// Reads a small file of text without the white space around it.
pub fn read_small(path: &Path) -> Result<String, String> {
    use std::io::Read as _;
    let name = path.display();
    let failed = |error: std::io::Error| format!("{name}: failed to read: {error}");
    // Asked first: opening a pipe that nobody writes to would wait for ever.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(format!("{name}: is not a file"));
    }
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(MAX_SECRET_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(failed)?;
    if text.len() as u64 > MAX_SECRET_BYTES {
        return Err(format!("{name}: has more than {MAX_SECRET_BYTES} bytes"));
    }
    let text = text.trim();
    if text.is_empty() {
        return Err(format!("{name}: is empty"));
    }
    Ok(text.to_owned())
}
