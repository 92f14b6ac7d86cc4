//! Puts the values of secrets in the place of their references.
//!
//! Only the worker knows values. They are resolved when an attempt starts, and forgotten when it ends.

mod program;

use std::collections::BTreeMap;
use std::path::PathBuf;

use cueline_outbound::secrets;
use cueline_worker::Failure;
use cueline_worker::model::secret::SecretRef;
use cueline_worker::model::{SecretName, TextOrSecret};

use crate::masks::Masks;

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
            if let Some(value) = secrets::of_directory(dir, name).await.map_err(unusable)? {
                return Ok(value);
            }
            let path = dir.join(name.as_str());
            looked.push(format!("there is no file {}", path.display()));
        } else {
            looked.push("secrets_dir is not set".to_owned());
        }
        if let Some(value) = secrets::of_environment(name).map_err(unusable)? {
            return Ok(value);
        }
        looked.push(format!("{} is not set", secrets::variable(name)));
        if let Some(command) = &self.command {
            let shown = format!("secrets_command {}", command.display());
            match program::ask(command, name).await {
                Ok(bytes) => {
                    return secrets::text(bytes)
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
