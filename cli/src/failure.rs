//! How a command fails: what it says and its exit status.

use std::io::Write;
use std::process::ExitCode;

/// Why a command did not do what it was asked to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The server said no, could not be asked, or a run did not succeed: exit status 1.
    Failed {
        /// What happened.
        message: String,
        /// What to do about it.
        hint: Option<String>,
    },
    /// The input is wrong: exit status 2.
    BadInput {
        /// Each thing that is wrong.
        messages: Vec<String>,
        /// What that means as a whole: "nothing was applied".
        summary: Option<String>,
    },
    /// Everything has been said already: exit status 1.
    Silent,
    /// Nobody reads what is printed (`| head`): exit status 0, nothing is said.
    PipeClosed,
}

impl Failure {
    /// It failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed {
            message: message.into(),
            hint: None,
        }
    }

    /// It failed, and this can be done about it.
    pub fn with_hint(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Failed {
            message: message.into(),
            hint: Some(hint.into()),
        }
    }

    /// The input is wrong.
    pub fn bad_input(message: impl Into<String>) -> Self {
        Self::BadInput {
            messages: vec![message.into()],
            summary: None,
        }
    }

    /// Says what happened on standard error and gives the exit status.
    pub fn report(self) -> ExitCode {
        match self {
            Self::Failed { message, hint } => {
                say(&format!("error: {message}"));
                if let Some(hint) = hint {
                    say(&format!("hint: {hint}"));
                }
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

/// Prints a line on standard error. That nobody reads it is no reason to fail.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
