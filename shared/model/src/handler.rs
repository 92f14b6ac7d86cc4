//! What a run executes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a job's runs execute. Exactly one of the kinds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandlerSpec {
    /// A handler registered in the worker's own code, by name.
    Native(String),
    /// A script text, run by an interpreter.
    Shell(ShellSpec),
    /// A program and its arguments, run without a shell.
    Command(CommandSpec),
    /// An HTTP request.
    Http(HttpSpec),
}

impl HandlerSpec {
    /// What an executor must announce to be a candidate for this handler: `native:<name>`, `shell`,
    /// `command` or `http`.
    pub fn capability(&self) -> std::borrow::Cow<'static, str> {
        match self {
            Self::Native(name) => format!("native:{name}").into(),
            Self::Shell(_) => "shell".into(),
            Self::Command(_) => "command".into(),
            Self::Http(_) => "http".into(),
        }
    }

    /// Whether a worker runs it only when it was started with that kind allowed, and only from a trigger whose
    /// signature verifies.
    pub fn needs_signature(&self) -> bool {
        !matches!(self, Self::Native(_))
    }
}

/// Interpreters that a script can be written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interpreter {
    /// POSIX shell, `/bin/sh`.
    Sh,
    /// `bash`.
    #[default]
    Bash,
    /// `python3`.
    Python3,
    /// `node`.
    Node,
    /// `php`.
    Php,
    /// `pwsh`.
    Pwsh,
}

impl Interpreter {
    /// All of them, with the word used in job files.
    pub const ALL: [(&'static str, Self); 6] = [
        ("sh", Self::Sh),
        ("bash", Self::Bash),
        ("python3", Self::Python3),
        ("node", Self::Node),
        ("php", Self::Php),
        ("pwsh", Self::Pwsh),
    ];
}

/// A script text and how to run it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ShellSpec {
    /// The script itself.
    pub script: String,
    /// What runs it.
    #[serde(default)]
    pub interpreter: Interpreter,
    /// Path of the program that runs the script as `PROGRAM -c SCRIPT`, in place of `interpreter` (cron's `SHELL`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// Surroundings of the process.
    #[serde(flatten)]
    pub process: ProcessSpec,
}

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CommandSpec {
    /// Program, then arguments; not empty.
    pub argv: Vec<String>,
    /// Surroundings of the process.
    #[serde(flatten)]
    pub process: ProcessSpec,
}

/// The surroundings that a script or command starts in.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProcessSpec {
    /// Variables set for the process. Values are taken as they stand, nothing is expanded.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Start from an empty environment instead of the worker's own (as cron does); `HOME`, `LOGNAME`, `USER`,
    /// `SHELL` and `PATH=/usr/bin:/bin` are then set unless `env` names them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub clear_env: bool,
    /// Working directory; with `clear_env` the user's home directory by default, else the worker's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Text given on standard input; empty input by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// User to run as; the worker's own by default. Another one needs a worker that runs as root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// An HTTP request. A status of 200–299 is success unless `expect` says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpSpec {
    /// Absolute `http` or `https` URL.
    pub url: String,
    /// Request method, upper case.
    #[serde(default = "get")]
    pub method: String,
    /// Request headers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Request body; the run's parameter when absent and the method carries a body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Statuses that count as success; empty means 200–299.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect: Vec<u16>,
}

fn get() -> String {
    "GET".to_owned()
}
