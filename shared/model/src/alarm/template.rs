//! Templates of messages: text with placeholders.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

/// The longest template, in bytes.
pub const MAX_TEMPLATE_BYTES: usize = 8_192;

/// The placeholders. Those from `condition` on are about the first event of a message.
pub(super) const PLACEHOLDERS: [&str; 15] = [
    "rule",
    "namespace",
    "channel",
    "count",
    "jobs",
    "events",
    "condition",
    "at",
    "job",
    "group",
    "run",
    "state",
    "failures",
    "since",
    "message",
];

/// Why a text is no template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// There is no such placeholder.
    #[error("unknown placeholder {{{0}}}; expected one of {list}", list = PLACEHOLDERS.join(", "))]
    Unknown(String),
    /// A `{` without its `}`.
    #[error("a '{{' without its '}}'; write '{{{{' for the character itself")]
    Open,
    /// A `}` without its `{`.
    #[error("a '}}' without its '{{'; write '}}}}' for the character itself")]
    Close,
    /// It is too long.
    #[error("a template has at most {MAX_TEMPLATE_BYTES} bytes, this one has {0}")]
    TooLong(usize),
}

/// A text with placeholders such as `{job}`. `{{` and `}}` are the characters themselves. Placeholders are replaced once:
/// a value with braces stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Template(String);

enum Part<'a> {
    Text(&'a str),
    Placeholder(&'a str),
}

impl Template {
    /// The text as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text with the values of its placeholders.
    pub(super) fn fill(&self, value: impl Fn(&str) -> String) -> String {
        let mut filled = String::with_capacity(self.0.len());
        // The parts of a template are those of a text that was checked.
        for part in parts(&self.0).unwrap_or_default() {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Placeholder(name) => filled.push_str(&value(name)),
            }
        }
        filled
    }
}

fn parts(text: &str) -> Result<Vec<Part<'_>>, TemplateError> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(at);
        parts.push(Part::Text(before));
        if from.starts_with("{{") || from.starts_with("}}") {
            parts.push(Part::Text(&from[..1]));
            rest = &from[2..];
            continue;
        }
        let Some(inside) = from.strip_prefix('{') else {
            return Err(TemplateError::Close);
        };
        let (name, after) = inside.split_once('}').ok_or(TemplateError::Open)?;
        if !PLACEHOLDERS.contains(&name) {
            return Err(TemplateError::Unknown(name.chars().take(40).collect()));
        }
        parts.push(Part::Placeholder(name));
        rest = after;
    }
    parts.push(Part::Text(rest));
    Ok(parts)
}

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        if text.len() > MAX_TEMPLATE_BYTES {
            return Err(TemplateError::TooLong(text.len()));
        }
        parts(text)?;
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_once() {
        let template: Template = "{job} {{x}} {count}".parse().expect("a template");
        let filled = template.fill(|name| match name {
            "job" => "{count}".to_owned(),
            name => format!("<{name}>"),
        });
        assert_eq!(filled, "{count} {x} <count>");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, message) in [
            ("{jbo}", "unknown placeholder {jbo}; expected one of rule, "),
            ("{job", "a '{' without its '}'"),
            ("job}", "a '}' without its '{'"),
            ("{}", "unknown placeholder {}"),
        ] {
            let error = text.parse::<Template>().expect_err("is refused");
            assert!(error.to_string().starts_with(message), "{text}: {error}");
        }
        let long = "x".repeat(MAX_TEMPLATE_BYTES + 1);
        assert!(long.parse::<Template>().is_err());
    }
}
