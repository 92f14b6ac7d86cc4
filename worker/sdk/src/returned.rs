//! What a handler returns.

use std::fmt;

/// What a handler returns when it succeeded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// Handed to jobs that come after, and shown with the run.
    pub text: Option<String>,
    /// Exit status of a process, or an HTTP status.
    pub exit_status: Option<i32>,
}

impl From<()> for Output {
    fn from((): ()) -> Self {
        Self::default()
    }
}

impl From<String> for Output {
    fn from(text: String) -> Self {
        Self {
            text: Some(text),
            exit_status: None,
        }
    }
}

impl From<&str> for Output {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// What a handler returns when it failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Why, for a person to read.
    pub message: String,
    /// Exit status of a process, or an HTTP status.
    pub exit_status: Option<i32>,
}

impl Failure {
    /// A failure without an exit status.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            exit_status: None,
        }
    }
}

impl<E: fmt::Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(error.to_string())
    }
}
