//! The return values of handlers.

use std::fmt;

/// The result of a successful attempt. `()`, `String` and `&str` convert into it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// Shown with the run and passed to child jobs. At most 64 KiB are kept.
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

/// The result of a failed attempt. Every error with a message converts into it, so that handlers use `?`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Shown with the run. At most 64 KiB are kept.
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
