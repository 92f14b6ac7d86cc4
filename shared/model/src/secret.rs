//! References to secrets. Only a worker knows their values.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

/// The longest name of a secret, in bytes.
const MAX_SECRET_NAME_BYTES: usize = 128;

/// Why a text is no name of a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the name of a secret has 1 to {MAX_SECRET_NAME_BYTES} letters, digits, '.', '_' and '-', and does not begin with '.'"
)]
pub struct SecretNameError;

/// The name of a secret. Workers also use it as the name of a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct SecretName(String);

impl SecretName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SecretName {
    type Err = SecretNameError;

    fn from_str(text: &str) -> Result<Self, SecretNameError> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let is_valid = (1..=MAX_SECRET_NAME_BYTES).contains(&text.len())
            && text.bytes().all(plain)
            && !text.starts_with('.');
        is_valid
            .then(|| Self(text.to_owned()))
            .ok_or(SecretNameError)
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for SecretName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A text, or a secret whose value the worker puts in its place when an attempt starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TextOrSecret {
    /// The text itself.
    Text(String),
    /// A reference, written `{ secret = "name" }`.
    Secret(SecretRef),
}

/// A reference to a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretRef {
    /// The secret's name.
    pub secret: SecretName,
}

impl TextOrSecret {
    /// The text; `None` for a secret.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Secret(_) => None,
        }
    }
}

impl From<SecretName> for TextOrSecret {
    fn from(secret: SecretName) -> Self {
        Self::Secret(SecretRef { secret })
    }
}

impl From<String> for TextOrSecret {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for TextOrSecret {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_as_file_names() {
        let long = "a".repeat(128);
        for name in ["a", "db-password", "TLS.key_2", "-", long.as_str()] {
            assert_eq!(name.parse::<SecretName>().map(|n| n.0), Ok(name.to_owned()));
        }
        let too_long = "a".repeat(129);
        for name in [
            "",
            ".",
            "..",
            ".a",
            "a/b",
            "a b",
            "ä",
            "a\n",
            "a\0",
            too_long.as_str(),
        ] {
            assert_eq!(name.parse::<SecretName>(), Err(SecretNameError), "{name}");
        }
    }

    #[test]
    fn the_reference_is_kept() {
        let reference = r#"{"secret":"db"}"#;
        let read: TextOrSecret = serde_json::from_str(reference).expect("a reference");
        let name: SecretName = "db".parse().expect("a name");
        assert_eq!(read, TextOrSecret::from(name));
        assert_eq!(serde_json::to_string(&read).expect("written"), reference);
        for wrong in [
            r#"{"secret":"../db"}"#,
            r#"{"secret":"a","x":1}"#,
            "{}",
            "1",
        ] {
            assert!(
                serde_json::from_str::<TextOrSecret>(wrong).is_err(),
                "{wrong}"
            );
        }
    }
}
