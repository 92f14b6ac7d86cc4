//! Failures of commands: messages and exit status.

use std::io::Write;
use std::process::ExitCode;

use cueline_runtime::terminal::{Style, harmless};

use crate::jobfile::JobFileError;

/// A command's failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The server refused or did not answer, or a run did not succeed: exit status 1.
    Failed {
        /// What failed, and why.
        message: String,
        /// Advice for the user.
        hint: Option<String>,
    },
    /// The input is wrong: exit status 2.
    BadInput {
        /// A mistake each.
        messages: Vec<String>,
        /// The consequence: "nothing was applied".
        summary: Option<String>,
    },
    /// The server does not accept the token: exit status 1.
    Unauthorised {
        /// What the server refused.
        message: String,
        /// Advice for the user.
        hint: String,
    },
    /// The messages were already printed: exit status 1.
    Silent,
    /// The reader of the output is gone (`| head`): exit status 0, without a message.
    PipeClosed,
}

impl Failure {
    /// A failure without advice.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed {
            message: message.into(),
            hint: None,
        }
    }

    /// A failure with advice.
    pub fn with_hint(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Failed {
            message: message.into(),
            hint: Some(hint.into()),
        }
    }

    /// One mistake in the input.
    pub fn bad_input(message: impl Into<String>) -> Self {
        Self::BadInput {
            messages: vec![message.into()],
            summary: None,
        }
    }

    /// Whether the server does not accept the token.
    pub fn is_unauthorised(&self) -> bool {
        matches!(self, Self::Unauthorised { .. })
    }

    /// The messages in one line, without advice.
    pub fn message(&self) -> String {
        match self {
            Self::Failed { message, .. } | Self::Unauthorised { message, .. } => message.clone(),
            Self::BadInput { messages, .. } => messages.join("; "),
            Self::Silent | Self::PipeClosed => String::new(),
        }
    }

    /// Prints the messages on standard error, and returns the exit status.
    pub fn report(self) -> ExitCode {
        match self {
            Self::Failed { message, hint } => {
                say(&format!("error: {message}"));
                if let Some(hint) = hint {
                    say(&format!("hint: {hint}"));
                }
                ExitCode::from(1)
            }
            Self::Unauthorised { message, hint } => {
                say(&format!("error: {message}"));
                say(&format!("hint: {hint}"));
                ExitCode::from(1)
            }
            Self::BadInput { messages, summary } => {
                for message in messages {
                    say(&format!("error: {message}"));
                }
                if let Some(summary) = summary {
                    say(&summary);
                }
                ExitCode::from(2)
            }
            Self::Silent => ExitCode::from(1),
            Self::PipeClosed => ExitCode::SUCCESS,
        }
    }
}

/// Prints a line on standard error, without control characters: it may quote a server or a file. A closed output is no
/// error.
pub fn say(line: &str) {
    let line = harmless(line, Style::Text);
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The input of a server's command is wrong: exit status 2. The text is one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadInput(pub String);

/// An error's context, with a hint for the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Hinted {
    /// What failed.
    pub what: String,
    /// Advice for the user.
    pub hint: String,
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        if let Some(BadInput(message)) = error.downcast_ref() {
            return Self::bad_input(message.clone());
        }
        if let Some(Hinted { hint, .. }) = error.downcast_ref() {
            return Self::with_hint(with_causes(error.as_ref()), hint);
        }
        match error.downcast::<JobFileError>() {
            Ok(error) => Self::BadInput {
                messages: error.messages,
                summary: Some("nothing was applied".to_owned()),
            },
            Err(error) => Self::failed(with_causes(error.as_ref())),
        }
    }
}

/// An error and its causes, without causes that an earlier error already quotes.
pub fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::{Context as _, anyhow};

    use super::with_causes;

    #[test]
    fn a_quoted_cause_is_not_repeated() {
        let error = anyhow!("the disk is full")
            .context("failed to write: the disk is full")
            .context("failed to start");
        assert_eq!(
            with_causes(error.as_ref()),
            "failed to start: failed to write: the disk is full"
        );
        let other = Err::<(), _>(anyhow!("b")).context("a").expect_err("it");
        assert_eq!(with_causes(other.as_ref()), "a: b");
    }
}
