//! Scripts: texts with versions, to which jobs refer by name.

use serde::{Deserialize, Serialize};

use crate::handler::Interpreter;
pub use crate::handler::{LoadedScript, ScriptBody, ScriptUse};
use crate::name::ScriptName;

/// The longest text of a script, in bytes.
pub const MAX_SCRIPT_BYTES: usize = 256 * 1024;

/// The longest remark about a version, in bytes.
pub const MAX_REMARK_BYTES: usize = 1_024;

/// A script as written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptSpec {
    /// The name, unique in its namespace. It is written as the namespace and the local name.
    #[serde(flatten, with = "crate::name::written")]
    pub name: ScriptName,
    /// The program that runs it.
    pub language: Interpreter,
    /// The text.
    pub text: String,
    /// Why this version was saved.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub remark: String,
}

impl ScriptSpec {
    /// Whether a version with this language and text says the same. A remark alone makes no version.
    pub fn is_same(&self, language: Interpreter, text: &str) -> bool {
        self.language == language && self.text == text
    }
}
