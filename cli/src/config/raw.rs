//! Values as they were given, before anybody knows what they mean.

use std::fmt;

use super::settings::Shape;

/// A value as it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Raw {
    /// A text, or a number that is still a text.
    Text(String),
    /// A whole number.
    Number(i64),
    /// True or false.
    Switch(bool),
    /// Texts.
    List(Vec<String>),
}

impl Raw {
    /// A list of what is not empty.
    pub fn list<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let texts = texts.into_iter().map(str::trim).filter(|t| !t.is_empty());
        Self::List(texts.map(str::to_owned).collect())
    }

    /// The value that a variable, or a default, says.
    pub fn from_text(shape: Shape, text: &str) -> Result<Self, String> {
        match shape {
            Shape::Text | Shape::Number => Ok(Self::Text(text.to_owned())),
            Shape::List => Ok(Self::list(text.split(','))),
            Shape::Switch => match text {
                "true" => Ok(Self::Switch(true)),
                "false" => Ok(Self::Switch(false)),
                _ => Err(format!("{text:?} given; {} is expected", shape.expected())),
            },
        }
    }
}

impl fmt::Display for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => write!(f, "{number}"),
            Self::Switch(on) => write!(f, "{on}"),
            Self::List(texts) => f.write_str(&texts.join(",")),
        }
    }
}

/// Where a value comes from; the greater comes first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Nobody has said anything.
    Default,
    /// The file, at this line.
    File {
        /// The file's name.
        file: String,
        /// The line, from 1.
        line: u32,
        /// The key with its section.
        key: String,
    },
    /// This variable.
    Variable(String),
    /// This flag.
    Flag(String),
}

impl Source {
    /// Which of two comes first, whatever the names.
    pub const fn rank(&self) -> u8 {
        match self {
            Self::Default => 0,
            Self::File { .. } => 1,
            Self::Variable(_) => 2,
            Self::Flag(_) => 3,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { file, line, .. } => write!(f, "{file}:{line}"),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(name) => write!(f, "--{name}"),
        }
    }
}
