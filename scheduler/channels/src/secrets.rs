//! The values of secrets, for one message.

use std::path::Path;

use cueline_model::TextOrSecret;
use cueline_model::secret::SecretRef;
use cueline_outbound::secrets;
use reqwest::Url;

use crate::Refused;

/// Values that are shorter occur by chance.
const MIN_HIDDEN_BYTES: usize = 6;

/// A part of a path or a query is hidden by itself from this length on. Shorter ones are words such as `services`.
const MIN_HIDDEN_PART_BYTES: usize = 16;

/// What is shown in place of a value.
const HIDDEN: &str = "***";

/// Reads values, and hides them in answers.
pub(crate) struct Secrets<'a> {
    dir: Option<&'a Path>,
    /// The texts that no answer may have, the longest first.
    hidden: Vec<String>,
}

impl<'a> Secrets<'a> {
    pub(crate) fn new(dir: Option<&'a Path>) -> Self {
        Self {
            dir,
            hidden: Vec::new(),
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
        self.never_show([value.clone()]);
        Ok(value)
    }

    /// A URL, or the one in the secret. Servers repeat the path, the query or a token of it, so these are hidden too.
    pub(crate) async fn url(&mut self, given: &TextOrSecret) -> Result<String, Refused> {
        match given {
            TextOrSecret::Text(text) => Ok(text.clone()),
            TextOrSecret::Secret(reference) => {
                let value = self.value(reference).await?;
                self.never_show(url_parts(&value));
                Ok(value)
            }
        }
    }

    fn never_show(&mut self, texts: impl IntoIterator<Item = String>) {
        for text in texts {
            if text.len() < MIN_HIDDEN_BYTES {
                continue;
            }
            if text.contains('/') {
                // JSON of some servers escapes slashes.
                self.hidden.push(text.replace('/', "\\/"));
            }
            self.hidden.push(text);
        }
        self.hidden
            .sort_by_key(|text| std::cmp::Reverse(text.len()));
        self.hidden.dedup();
    }

    /// The text without the values that were used.
    pub(crate) fn hide(&self, text: &str) -> String {
        let hidden = self.hidden.iter();
        hidden.fold(text.to_owned(), |text, value| text.replace(value, HIDDEN))
    }

    /// As [`hide`](Self::hide), for a text that breaks off: it may end within a value.
    pub(crate) fn hide_in_beginning(&self, text: &str) -> String {
        let mut hidden = self.hide(text);
        let begun = |value: &String| {
            let ends = value.char_indices().map(|(end, _)| end).rev();
            let mut beginnings = ends.map(|end| &value[..end]);
            beginnings
                .find(|beginning| hidden.ends_with(*beginning))
                .map_or(0, str::len)
        };
        let longest = self.hidden.iter().map(begun).max().unwrap_or_default();
        if longest > 0 {
            hidden.truncate(hidden.len() - longest);
            hidden.push_str(HIDDEN);
        }
        hidden
    }
}

/// The parts of a URL that answers may have: path and query, as they were written and as they are sent, and tokens in them.
fn url_parts(text: &str) -> Vec<String> {
    let mut parts = Vec::new();
    if let Some((_, rest)) = text.split_once("://")
        && let Some(start) = rest.find('/')
    {
        add_path(&mut parts, &rest[start..]);
    }
    if let Ok(url) = text.parse::<Url>() {
        parts.extend(url.password().map(str::to_owned));
        let query = url.query().map(|query| format!("?{query}"));
        add_path(
            &mut parts,
            &format!("{}{}", url.path(), query.unwrap_or_default()),
        );
    }
    parts
}

fn add_path(parts: &mut Vec<String>, text: &str) {
    let text = text.split_once('#').map_or(text, |(text, _)| text);
    let (path, query) = text.split_once('?').unwrap_or((text, ""));
    parts.extend([text, path, query].map(str::to_owned));
    let tokens = text.split(['/', '?', '&', '=']);
    let tokens = tokens.filter(|token| token.len() >= MIN_HIDDEN_PART_BYTES);
    parts.extend(tokens.map(str::to_owned));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_url(url: &str) -> Secrets<'static> {
        let mut secrets = Secrets::new(None);
        secrets.never_show([url.to_owned()]);
        secrets.never_show(url_parts(url));
        secrets
    }

    #[test]
    fn a_url_is_hidden_in_parts() {
        let secrets = of_url(
            "https://u:hunter22@chat.example/robot/send?access_token=0123456789abcdef&x=1#top",
        );
        for (text, shown) in [
            (
                "POST /robot/send?access_token=0123456789abcdef&x=1 failed",
                "POST *** failed",
            ),
            ("http://chat.example/robot/send", "http://chat.example***"),
            (r#"{"path":"\/robot\/send"}"#, r#"{"path":"***"}"#),
            ("token 0123456789abcdef is unknown", "token *** is unknown"),
            ("hunter22 is wrong", "*** is wrong"),
            ("the robot is busy", "the robot is busy"),
        ] {
            assert_eq!(secrets.hide(text), shown);
        }
        assert_eq!(
            of_url("https://chat.example/").hide("GET / failed"),
            "GET / failed"
        );
    }

    #[test]
    fn a_value_at_the_end_of_a_beginning_is_hidden() {
        let secrets = of_url("https://chat.example/services/abcdef");
        for (text, shown) in [
            ("no /services/abcdef", "no ***"),
            ("no /services/abc", "no ***"),
            ("no https://chat.exam", "no ***"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(secrets.hide_in_beginning(text), shown);
        }
    }
}
