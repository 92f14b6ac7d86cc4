//! The values of secrets, for one message.

use std::path::Path;

use cueline_model::TextOrSecret;
use cueline_model::secret::SecretRef;
use cueline_outbound::secrets;

use crate::Refused;

/// Values that are shorter occur by chance.
const MIN_HIDDEN_BYTES: usize = 6;

/// Reads values, and hides them in answers.
pub(crate) struct Secrets<'a> {
    dir: Option<&'a Path>,
    used: Vec<String>,
}

impl<'a> Secrets<'a> {
    pub(crate) fn new(dir: Option<&'a Path>) -> Self {
        Self {
            dir,
            used: Vec::new(),
        }
    }

    /// The value of a secret.
    pub(crate) async fn value(&mut self, reference: &SecretRef) -> Result<String, Refused> {
        let name = &reference.secret;
        let unusable = |problem: String| {
            // A file that is missing may come: a deployment may be under way.
            Refused::for_now(format!("secret {:?}: {problem}", name.as_str()))
        };
        let mut found = None;
        if let Some(dir) = self.dir {
            found = secrets::of_directory(dir, name).await.map_err(unusable)?;
        }
        if found.is_none() {
            found = secrets::of_environment(name).map_err(unusable)?;
        }
        let value = found.ok_or_else(|| {
            let dir = match self.dir {
                Some(dir) => format!("there is no file {}", dir.join(name.as_str()).display()),
                None => "secrets_dir is not set".to_owned(),
            };
            let variable = secrets::variable(name);
            unusable(format!(
                "not found on this scheduler: {dir}, {variable} is not set"
            ))
        })?;
        self.used.push(value.clone());
        Ok(value)
    }

    /// A text, or the value of the secret.
    pub(crate) async fn text(&mut self, given: &TextOrSecret) -> Result<String, Refused> {
        match given {
            TextOrSecret::Text(text) => Ok(text.clone()),
            TextOrSecret::Secret(reference) => self.value(reference).await,
        }
    }

    /// The text without the values that were used.
    pub(crate) fn hide(&self, text: &str) -> String {
        let hidden = self
            .used
            .iter()
            .filter(|value| value.len() >= MIN_HIDDEN_BYTES);
        hidden.fold(text.to_owned(), |text, value| text.replace(value, "***"))
    }
}
