//! Puts the values of secrets in the place of their references.
//!
//! Only the worker knows values. They are resolved when an attempt starts, and forgotten when it ends.

mod file;
mod program;

use std::collections::BTreeMap;
use std::env::VarError;
use std::path::PathBuf;

use cueline_worker::Failure;
use cueline_worker::model::secret::SecretRef;
use cueline_worker::model::{SecretName, TextOrSecret};

use crate::masks::Masks;

/// The longest value. It is less than half of the longest log line, so that a line is never one unfinished value.
const MAX_VALUE_BYTES: u64 = 32 * 1024;

/// The variable of a secret is this prefix and the name in upper case, with `_` for `.` and `-`.
const VARIABLE_PREFIX: &str = "CUELINE_SECRET_";

/// Where a worker finds the values of secrets: in files of a directory, in its variables `CUELINE_SECRET_…`, and from a
/// program. The first that has the secret gives the value. The default has no directory and no program.
#[derive(Debug, Clone, Default)]
pub struct SecretSources {
    dir: Option<PathBuf>,
    command: Option<PathBuf>,
}

impl SecretSources {
    /// A directory with one file for each secret, under its name. Other users must not be able to read the files.
    #[must_use]
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// A program that gets a secret's name as its argument and writes the value to its standard output. It may take
    /// 10 s. It gets the worker's variables without those of Cueline.
    #[must_use]
    pub fn command(mut self, program: impl Into<PathBuf>) -> Self {
        self.command = Some(program.into());
        self
    }

    /// Resolves the secrets of one attempt.
    pub(crate) fn resolver(&self) -> Resolver<'_> {
        Resolver {
            sources: self,
            values: BTreeMap::new(),
            masks: Masks::default(),
        }
    }

    /// The value of a secret. No message contains a value.
    async fn value(&self, name: &SecretName) -> Result<String, Failure> {
        let unusable =
            |problem| Failure::new(format!("secret {name:?}: {problem}", name = name.as_str()));
        let mut looked = Vec::new();
        if let Some(dir) = &self.dir {
            let path = dir.join(name.as_str());
            let shown = path.display().to_string();
            if let Some(bytes) = file::read(path).await.map_err(unusable)? {
                return text(bytes).map_err(|problem| unusable(format!("{shown} {problem}")));
            }
            looked.push(format!("there is no file {shown}"));
        } else {
            looked.push("secrets_dir is not set".to_owned());
        }
        let variable = variable(name);
        match std::env::var(&variable) {
            Ok(value) if !value.is_empty() => {
                return text(value.into_bytes())
                    .map_err(|problem| unusable(format!("{variable} {problem}")));
            }
            Err(VarError::NotUnicode(_)) => {
                return Err(unusable(format!("{variable} is not UTF-8 text")));
            }
            _ => looked.push(format!("{variable} is not set")),
        }
        if let Some(command) = &self.command {
            let shown = format!("secrets_command {}", command.display());
            match program::ask(command, name).await {
                Ok(bytes) => {
                    return text(bytes)
                        .map_err(|problem| unusable(format!("{shown}: the answer {problem}")));
                }
                Err(problem) => looked.push(format!("{shown} {problem}")),
            }
        } else {
            looked.push("secrets_command is not set".to_owned());
        }
        let looked = looked.join(", ");
        Err(unusable(format!("not found on this worker: {looked}")))
    }
}

/// The worker's variable for a secret.
fn variable(name: &SecretName) -> String {
    let name = name.as_str().to_ascii_uppercase().replace(['.', '-'], "_");
    format!("{VARIABLE_PREFIX}{name}")
}

/// Checks a value, and cuts the line end that editors and programs add.
fn text(bytes: Vec<u8>) -> Result<String, String> {
    if bytes.len() as u64 > MAX_VALUE_BYTES {
        return Err(format!("has more than {} KiB", MAX_VALUE_BYTES / 1024));
    }
    let mut text = String::from_utf8(bytes).map_err(|_| "is not UTF-8 text")?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    if text.is_empty() {
        return Err("is empty".to_owned());
    }
    if text.contains('\0') {
        return Err("has a NUL character".to_owned());
    }
    Ok(text)
}

/// Resolves the secrets of one attempt, each once.
pub(crate) struct Resolver<'a> {
    sources: &'a SecretSources,
    values: BTreeMap<SecretName, String>,
    masks: Masks,
}

impl Resolver<'_> {
    /// The text, or the value of the secret.
    pub(crate) async fn text(&mut self, given: &TextOrSecret) -> Result<String, Failure> {
        let name = match given {
            TextOrSecret::Text(text) => return Ok(text.clone()),
            TextOrSecret::Secret(SecretRef { secret }) => secret,
        };
        if let Some(value) = self.values.get(name) {
            return Ok(value.clone());
        }
        let value = self.sources.value(name).await?;
        self.masks.add(&value);
        self.values.insert(name.clone(), value.clone());
        Ok(value)
    }

    pub(crate) async fn optional(
        &mut self,
        given: Option<&TextOrSecret>,
    ) -> Result<Option<String>, Failure> {
        match given {
            Some(given) => self.text(given).await.map(Some),
            None => Ok(None),
        }
    }

    pub(crate) async fn map(
        &mut self,
        given: &BTreeMap<String, TextOrSecret>,
    ) -> Result<BTreeMap<String, String>, Failure> {
        let mut texts = BTreeMap::new();
        for (name, given) in given {
            texts.insert(name.clone(), self.text(given).await?);
        }
        Ok(texts)
    }

    /// What the attempt must not show.
    pub(crate) fn into_masks(self) -> Masks {
        self.masks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_end_is_cut() {
        for (bytes, value) in [
            (&b"secret"[..], "secret"),
            (b"secret\n", "secret"),
            (b"secret\r\n", "secret"),
            (b"secret\n\n", "secret\n"),
            (b" secret ", " secret "),
            (b"a\nb\n", "a\nb"),
        ] {
            assert_eq!(text(bytes.to_vec()).as_deref(), Ok(value));
        }
    }

    #[test]
    fn unusable_values_are_refused() {
        let long = vec![b'x'; 32 * 1024 + 1];
        for (bytes, problem) in [
            (&b""[..], "is empty"),
            (b"\n", "is empty"),
            (b"a\0b", "has a NUL character"),
            (b"\xff", "is not UTF-8 text"),
            (&long, "has more than 32 KiB"),
        ] {
            assert_eq!(text(bytes.to_vec()), Err(problem.to_owned()));
        }
    }

    #[test]
    fn variables_have_the_prefix() {
        let of = |name: &str| variable(&name.parse().expect("a name"));
        assert_eq!(of("db-password.prod"), "CUELINE_SECRET_DB_PASSWORD_PROD");
    }
}
