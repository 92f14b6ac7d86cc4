//! The work of a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::secret::TextOrSecret;

/// The work of a job's runs; exactly one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandlerSpec {
    /// A handler in the worker's own code, by its registered name.
    Native(String),
    /// A script text, run by an interpreter.
    Shell(ShellSpec),
    /// A program and its arguments, run without a shell.
    Command(CommandSpec),
    /// An HTTP request.
    Http(HttpSpec),
}

impl HandlerSpec {
    /// The capability that an executor must announce to run this handler: `native:<name>`, `shell`, `command` or
    /// `http`.
    pub fn capability(&self) -> std::borrow::Cow<'static, str> {
        match self {
            Self::Native(name) => format!("native:{name}").into(),
            Self::Shell(_) => "shell".into(),
            Self::Command(_) => "command".into(),
            Self::Http(_) => "http".into(),
        }
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
    /// All interpreters, with their words in job files.
    pub const ALL: [(&'static str, Self); 6] = [
        ("sh", Self::Sh),
        ("bash", Self::Bash),
        ("python3", Self::Python3),
        ("node", Self::Node),
        ("php", Self::Php),
        ("pwsh", Self::Pwsh),
    ];
}

/// A script and how to run it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ShellSpec {
    /// The text of the script.
    pub script: String,
    /// The program that runs the script.
    #[serde(default)]
    pub interpreter: Interpreter,
    /// Path of the program that runs the script as `PROGRAM -c SCRIPT`, in place of `interpreter` (cron's `SHELL`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// The environment of the process.
    #[serde(flatten)]
    pub process: ProcessSpec,
}

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CommandSpec {
    /// The program and then its arguments; not empty.
    pub argv: Vec<String>,
    /// The environment of the process.
    #[serde(flatten)]
    pub process: ProcessSpec,
}

/// The environment in which a script or command starts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProcessSpec {
    /// Environment variables of the process. Values are used literally; nothing is expanded.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, TextOrSecret>,
    /// Starts with an empty environment instead of the worker's own, as cron does. `HOME`, `LOGNAME`, `USER`, `SHELL`
    /// and `PATH=/usr/bin:/bin` are then set unless `env` names them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub clear_env: bool,
    /// The working directory. By default it is the worker's own, or the user's home directory with `clear_env`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The text on standard input; empty by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<TextOrSecret>,
    /// The user who runs the process; the worker's own by default. Another user needs a worker that runs as root and
    /// allows this user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as: Option<String>,
}

/// An HTTP request. A status of 200–299 is success unless `expect` says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpSpec {
    /// Absolute `http` or `https` URL.
    pub url: String,
    /// The request method, in upper case.
    #[serde(default = "get")]
    pub method: String,
    /// Request headers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, TextOrSecret>,
    /// The request body. If it is absent and the method allows a body, the run's parameter is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<TextOrSecret>,
    /// The statuses that count as success. If empty, 200–299 do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect: Vec<u16>,
    /// The most redirects that are followed, up to [`HttpSpec::MAX_REDIRECTS`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub redirects: u8,
}

impl HttpSpec {
    /// The most redirects that a job may ask for.
    pub const MAX_REDIRECTS: u8 = 10;
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &u8) -> bool {
    *number == 0
}

fn get() -> String {
    "GET".to_owned()
}
