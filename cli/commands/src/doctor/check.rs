//! One finding of the doctor.

use cueline_interface::Failure;
use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Ok,
    Warn,
    Bad,
}

#[derive(Debug, Serialize)]
pub(super) struct Check {
    pub(super) what: &'static str,
    pub(super) level: Level,
    pub(super) text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hint: Option<String>,
}

impl Check {
    pub(super) fn ok(what: &'static str, text: impl Into<String>) -> Self {
        Self {
            what,
            level: Level::Ok,
            text: text.into(),
            hint: None,
        }
    }

    pub(super) fn problem(
        level: Level,
        what: &'static str,
        text: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self {
            what,
            level,
            text: text.into(),
            hint: Some(hint.into()),
        }
    }

    pub(super) fn failed(what: &'static str, failure: Failure) -> Self {
        let (text, hint) = match failure {
            Failure::Failed { message, hint } => (message, hint),
            Failure::Unauthorised { message, hint } => (message, Some(hint)),
            Failure::BadInput { messages, .. } => (messages.join("; "), None),
            Failure::Silent | Failure::PipeClosed => (String::new(), None),
        };
        Self {
            what,
            level: Level::Bad,
            text,
            hint,
        }
    }
}
