//! Names of jobs, groups and executors.
//!
//! Names become parts of broker subjects, file names and URLs. This module decides which characters they may contain.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

/// The longest name, in bytes.
pub const MAX_NAME_BYTES: usize = 128;

/// Why a text is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text is empty.
    #[error("a name must not be empty")]
    Empty,
    /// The text is longer than [`MAX_NAME_BYTES`].
    #[error("a name has at most {MAX_NAME_BYTES} bytes, this one has {0}")]
    TooLong(usize),
    /// The text has a character that names do not allow.
    #[error(
        "{0:?} is not allowed in a name: use letters and digits of any language, '-', '_', '.' and ':'"
    )]
    Character(char),
    /// The first character is not a letter, a digit or an underscore.
    #[error("a name starts with a letter, a digit or '_', not with {0:?}")]
    Start(char),
}

/// Letters that fonts show as nothing: the fillers of Hangul. A name with one could not be told from a name without it.
const INVISIBLE: [char; 4] = ['\u{115f}', '\u{1160}', '\u{3164}', '\u{ffa0}'];

fn is_allowed(c: char) -> bool {
    (c.is_alphanumeric() || "-_.:".contains(c)) && !INVISIBLE.contains(&c)
}

fn check(text: &str) -> Result<(), NameError> {
    let first = text.chars().next().ok_or(NameError::Empty)?;
    if text.len() > MAX_NAME_BYTES {
        return Err(NameError::TooLong(text.len()));
    }
    if let Some(bad) = text.chars().find(|c| !is_allowed(*c)) {
        return Err(NameError::Character(bad));
    }
    if !(first.is_alphanumeric() || first == '_') {
        return Err(NameError::Start(first));
    }
    Ok(())
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $type(Arc<str>);

        impl $type {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                check(text)?;
                Ok(Self(text.into()))
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

name! {
    /// A namespace: jobs, groups and tokens belong to one, and nothing crosses it.
    Namespace
}
name! {
    /// A job's name, unique among the jobs of one store.
    JobName
}
name! {
    /// The name of an executor group: the executors that can run the same handlers.
    GroupName
}
name! {
    /// An executor's name, stable across restarts and unique within its group.
    ExecutorName
}

impl Namespace {
    /// The name of the namespace that names without one belong to.
    pub const DEFAULT: &str = "default";
}

impl Default for Namespace {
    fn default() -> Self {
        Self(Self::DEFAULT.into())
    }
}

impl GroupName {
    /// The namespace that the group belongs to.
    pub fn namespace(&self) -> Namespace {
        Namespace::default()
    }
}

impl JobName {
    /// The namespace that the job belongs to.
    pub fn namespace(&self) -> Namespace {
        Namespace::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_with_a_meaning_elsewhere_are_not_allowed() {
        // Paths, shells, patterns, subjects of brokers, SQL, markup, terminals, and changes of direction.
        let bad = "/\\ \t\r\n\0\x1b\x7f\u{9b}*?[]{}()^$|<>#+&;`'\"%~!@=,\u{202e}\u{2066}";
        for bad in bad.chars() {
            let text = format!("a{bad}b");
            assert_eq!(text.parse::<JobName>(), Err(NameError::Character(bad)));
        }
        for bad in [".", "..", "-rf", ":a"] {
            let start = bad.chars().next().expect("a character");
            assert_eq!(bad.parse::<JobName>(), Err(NameError::Start(start)));
        }
    }

    #[test]
    fn what_is_not_seen_is_not_allowed() {
        // Zero-width characters, marks that combine with the letter before, variation selectors, tags, fillers.
        let unseen = [
            "\u{200b}\u{200d}\u{feff}\u{ad}\u{301}\u{fe0f}\u{e0061}\u{2800}\u{a0}",
            "\u{115f}\u{1160}\u{3164}\u{ffa0}",
        ];
        for bad in unseen.concat().chars() {
            let text = format!("a{bad}b");
            assert_eq!(text.parse::<JobName>(), Err(NameError::Character(bad)));
        }
    }

    #[test]
    fn names_that_look_alike_are_different_names() {
        let names = [
            "scope",
            "\u{441}\u{441}ope",
            "s\u{441}ope",
            "\u{ff53}cope",
            "SCOPE",
        ];
        for (i, one) in names.iter().enumerate() {
            let one: JobName = one.parse().expect("a name");
            for other in &names[i + 1..] {
                let other: JobName = other.parse().expect("a name");
                assert_ne!(one, other);
            }
        }
    }
}
