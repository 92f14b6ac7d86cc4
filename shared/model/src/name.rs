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

fn check(text: &str) -> Result<(), NameError> {
    let first = text.chars().next().ok_or(NameError::Empty)?;
    if text.len() > MAX_NAME_BYTES {
        return Err(NameError::TooLong(text.len()));
    }
    if let Some(bad) = text
        .chars()
        .find(|c| !(c.is_alphanumeric() || "-_.:".contains(*c)))
    {
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
