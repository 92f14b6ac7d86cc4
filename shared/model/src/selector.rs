//! Labels of executors, and selectors that filter executors by their labels.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The most labels of one executor.
pub const MAX_EXECUTOR_LABELS: usize = 32;
/// The longest key or value of an executor's label, in bytes.
pub const MAX_LABEL_BYTES: usize = 63;
/// The most requirements of one selector.
const MAX_REQUIREMENTS: usize = 16;

/// The labels that an executor announces.
pub type ExecutorLabels = BTreeMap<String, String>;

/// Which executors may run a job, by their labels: `zone=a,!spot`. All requirements have to hold. The empty selector
/// selects every executor.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct Selector(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Requirement {
    /// `key=value`
    Is(String, String),
    /// `key!=value`. It holds for an executor without the label, as in Kubernetes.
    IsNot(String, String),
    /// `key`
    Has(String),
    /// `!key`
    HasNot(String),
}

/// Why a text is no selector, or no label.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// A part that is none of the four forms.
    #[error(
        "{0:?} is no requirement: KEY=VALUE, KEY!=VALUE, KEY or !KEY is expected, several separated by commas"
    )]
    Form(String),
    /// A label that is not `KEY=VALUE`.
    #[error("{0:?} is no label: KEY=VALUE is expected, such as zone=a")]
    Label(String),
    /// A key that cannot be one.
    #[error(
        "{0:?} cannot be the key of a label: 1–63 letters, digits, '-', '_', '.', '/' are expected"
    )]
    Key(String),
    /// A value that cannot be one.
    #[error(
        "{0:?} cannot be the value of a label: at most 63 letters, digits, '-', '_', '.', '/' are expected"
    )]
    Value(String),
    /// Too many requirements.
    #[error("{0} requirements given; at most 16 are expected")]
    TooMany(usize),
}

fn has_label_characters(text: &str) -> bool {
    text.len() <= MAX_LABEL_BYTES
        && text
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '/'))
}

fn key(text: &str) -> Result<String, SelectorError> {
    if text.is_empty() || !has_label_characters(text) {
        return Err(SelectorError::Key(text.to_owned()));
    }
    Ok(text.to_owned())
}

fn value(text: &str) -> Result<String, SelectorError> {
    if has_label_characters(text) {
        Ok(text.to_owned())
    } else {
        Err(SelectorError::Value(text.to_owned()))
    }
}

/// Reads an executor's label, `KEY=VALUE`.
///
/// # Errors
///
/// [`SelectorError`] if the text has another form, or the key or the value other characters.
pub fn parse_label(text: &str) -> Result<(String, String), SelectorError> {
    let (k, v) = text
        .split_once('=')
        .ok_or_else(|| SelectorError::Label(text.to_owned()))?;
    check_label(k.trim(), v.trim())
}

/// The label, if its key and its value have the right characters.
///
/// # Errors
///
/// [`SelectorError`] if one of them has others.
pub fn check_label(key: &str, value: &str) -> Result<(String, String), SelectorError> {
    Ok((self::key(key)?, self::value(value)?))
}

impl FromStr for Requirement {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let text = text.trim();
        if let Some((k, v)) = text.split_once("!=") {
            return Ok(Self::IsNot(key(k.trim())?, value(v.trim())?));
        }
        if let Some((k, v)) = text.split_once('=') {
            // kubectl accepts both signs.
            let v = v.strip_prefix('=').unwrap_or(v);
            return Ok(Self::Is(key(k.trim())?, value(v.trim())?));
        }
        if let Some(k) = text.strip_prefix('!') {
            return Ok(Self::HasNot(key(k.trim())?));
        }
        if text.is_empty() || text.contains(char::is_whitespace) {
            return Err(SelectorError::Form(text.to_owned()));
        }
        Ok(Self::Has(key(text)?))
    }
}

impl Requirement {
    fn holds(&self, labels: &ExecutorLabels) -> bool {
        match self {
            Self::Is(key, value) => labels.get(key) == Some(value),
            Self::IsNot(key, value) => labels.get(key) != Some(value),
            Self::Has(key) => labels.contains_key(key),
            Self::HasNot(key) => !labels.contains_key(key),
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Is(key, value) => write!(f, "{key}={value}"),
            Self::IsNot(key, value) => write!(f, "{key}!={value}"),
            Self::Has(key) => f.write_str(key),
            Self::HasNot(key) => write!(f, "!{key}"),
        }
    }
}

impl Selector {
    /// The selector of executors that have all of these labels.
    ///
    /// # Errors
    ///
    /// [`SelectorError`] for a key or a value with other characters, and for too many of them.
    pub fn of_labels<'a>(
        labels: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, SelectorError> {
        let requirements = labels
            .into_iter()
            .map(|(k, v)| Ok(Requirement::Is(key(k)?, value(v)?)));
        Self::new(requirements.collect::<Result<_, _>>()?)
    }

    fn new(requirements: Vec<Requirement>) -> Result<Self, SelectorError> {
        if requirements.len() > MAX_REQUIREMENTS {
            return Err(SelectorError::TooMany(requirements.len()));
        }
        Ok(Self(requirements))
    }

    /// Whether it selects every executor.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it selects an executor with these labels.
    pub fn selects(&self, labels: &ExecutorLabels) -> bool {
        self.0.iter().all(|requirement| requirement.holds(labels))
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        Self::new(text.split(',').map(str::parse).collect::<Result<_, _>>()?)
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, requirement) in self.0.iter().enumerate() {
            if n > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

impl Serialize for Selector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(text: &str) -> ExecutorLabels {
        text.split_whitespace()
            .map(|label| parse_label(label).expect("a label"))
            .collect()
    }

    #[test]
    fn a_selector_selects_by_all_of_its_requirements() {
        for (selector, executor, is_selected) in [
            ("", "", true),
            ("zone=a", "zone=a", true),
            ("zone==a", "zone=a", true),
            ("zone=a", "zone=b", false),
            ("zone=a", "", false),
            ("zone!=a", "zone=b", true),
            ("zone!=a", "", true),
            ("zone!=a", "zone=a", false),
            ("gpu", "gpu=", true),
            ("gpu", "zone=a", false),
            ("!gpu", "zone=a", true),
            ("!gpu", "gpu=1", false),
            (" zone = a , !gpu ", "zone=a", true),
            ("zone=a,!gpu", "zone=a gpu=1", false),
        ] {
            let parsed: Selector = selector.parse().expect(selector);
            assert_eq!(
                parsed.selects(&labels(executor)),
                is_selected,
                "{selector:?} {executor:?}"
            );
        }
    }

    #[test]
    fn what_is_no_selector_is_refused_with_the_part() {
        for (text, message) in [
            ("zone=a,", "\"\" is no requirement"),
            ("zone a", "\"zone a\" is no requirement"),
            ("=a", "\"\" cannot be the key"),
            ("zone=a b", "\"a b\" cannot be the value"),
            ("zo ne=a", "\"zo ne\" cannot be the key"),
            ("zone>a", "\"zone>a\" cannot be the key"),
            ("zone in (a", "\"zone in (a\" is no requirement"),
        ] {
            let error = text.parse::<Selector>().expect_err(text).to_string();
            assert!(error.starts_with(message), "{text:?}: {error}");
        }
        let many = vec!["a"; 17].join(",");
        assert_eq!(many.parse::<Selector>(), Err(SelectorError::TooMany(17)));
        assert_eq!(
            parse_label("zone").expect_err("no value").to_string(),
            "\"zone\" is no label: KEY=VALUE is expected, such as zone=a"
        );
    }

    proptest! {
        #[test]
        fn a_selector_is_read_as_it_is_written(
            parts in proptest::collection::vec(("[a-z/.]{1,5}", "[a-z0-9_-]{0,5}", 0..4_usize), 0..6)
        ) {
            let text = parts
                .iter()
                .map(|(k, v, form)| match form {
                    0 => format!("{k}={v}"),
                    1 => format!("{k}!={v}"),
                    2 => k.clone(),
                    _ => format!("!{k}"),
                })
                .collect::<Vec<_>>()
                .join(",");
            let selector: Selector = text.parse().expect("a selector");
            prop_assert_eq!(selector.to_string(), text);
        }
    }
}
