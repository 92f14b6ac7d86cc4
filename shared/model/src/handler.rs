//! The work of a run.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::secret::TextOrSecret;

/// The work of a job's runs; exactly one kind. Large kinds are boxed, because a scheduler holds many jobs with small ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandlerSpec {
    /// A handler in the worker's own code, by its registered name.
    Native(String),
    /// A script text, run by an interpreter.
    Shell(Box<ShellSpec>),
    /// A program and its arguments, run without a shell.
    Command(Box<CommandSpec>),
    /// An HTTP request.
    Http(Box<HttpSpec>),
    /// A script of the namespace, by its name.
    Script(Box<ScriptUse>),
}

impl HandlerSpec {
    /// The kind: `native`, `shell`, `command`, `http` or `script`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Native(_) => "native",
            Self::Shell(_) => "shell",
            Self::Command(_) => "command",
            Self::Http(_) => "http",
            Self::Script(_) => "script",
        }
    }

    /// The capability that an executor must announce to run this handler: `native:<name>`, `shell:<interpreter>`,
    /// `command` or `http`. It is `shell` alone for a script whose interpreter the worker finds in another way than by its
    /// own `PATH`, and for a reference whose text is not loaded.
    pub fn capability(&self) -> Cow<'static, str> {
        match self {
            Self::Native(name) => format!("native:{name}").into(),
            Self::Shell(shell) if shell.shell.is_some() => "shell".into(),
            Self::Shell(shell) => runtime(shell.interpreter, &shell.process).into(),
            Self::Command(_) => "command".into(),
            Self::Http(_) => "http".into(),
            Self::Script(script) => match &script.loaded.0 {
                Some(body) => runtime(body.language, &script.process).into(),
                None => "shell".into(),
            },
        }
    }

    /// What a trigger carries: a worker knows no scripts by name, so it gets the text.
    #[must_use]
    pub fn for_worker(&self) -> Self {
        match self {
            Self::Script(script) => script.as_shell().unwrap_or_else(|| self.clone()),
            other => other.clone(),
        }
    }
}

impl From<ShellSpec> for HandlerSpec {
    fn from(spec: ShellSpec) -> Self {
        Self::Shell(Box::new(spec))
    }
}

impl From<CommandSpec> for HandlerSpec {
    fn from(spec: CommandSpec) -> Self {
        Self::Command(Box::new(spec))
    }
}

impl From<HttpSpec> for HandlerSpec {
    fn from(spec: HttpSpec) -> Self {
        Self::Http(Box::new(spec))
    }
}

impl From<ScriptUse> for HandlerSpec {
    fn from(spec: ScriptUse) -> Self {
        Self::Script(Box::new(spec))
    }
}

/// The capability for a script. With a search path of its own, the job may find an interpreter that the worker does not
/// announce.
fn runtime(interpreter: Interpreter, process: &ProcessSpec) -> &'static str {
    if process.env.contains_key("PATH") {
        "shell"
    } else {
        interpreter.capability()
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

    /// Its word in job files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sh => "sh",
            Self::Bash => "bash",
            Self::Python3 => "python3",
            Self::Node => "node",
            Self::Php => "php",
            Self::Pwsh => "pwsh",
        }
    }

    /// What a worker announces that can run scripts for it.
    pub const fn capability(self) -> &'static str {
        match self {
            Self::Sh => "shell:sh",
            Self::Bash => "shell:bash",
            Self::Python3 => "shell:python3",
            Self::Node => "shell:node",
            Self::Php => "shell:php",
            Self::Pwsh => "shell:pwsh",
        }
    }
}

impl fmt::Display for Interpreter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
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

/// A version of a script that a worker can run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptBody {
    /// The number of the version.
    pub version: i64,
    /// The program that runs it.
    pub language: Interpreter,
    /// The text.
    pub text: Arc<str>,
}

/// A job's reference to a script.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptUse {
    /// The local name of the script, which is in the namespace of the job.
    pub name: String,
    /// The version that runs; by default the newest one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    /// The environment of the process.
    #[serde(flatten)]
    pub process: ProcessSpec,
    /// What the store has loaded for it. It is no part of the definition.
    #[serde(skip)]
    pub loaded: LoadedScript,
}

impl ScriptUse {
    /// What a worker gets: the text of the version, as if it were in the job. `None` if the text is not loaded.
    pub fn as_shell(&self) -> Option<HandlerSpec> {
        let body = self.loaded.0.as_ref()?;
        Some(HandlerSpec::from(ShellSpec {
            script: (*body.text).to_owned(),
            interpreter: body.language,
            shell: None,
            process: self.process.clone(),
        }))
    }
}

/// The body of the script that a job uses. It follows from the reference and the scripts of the store, so two definitions
/// that differ only here are equal.
#[derive(Debug, Clone, Default)]
pub struct LoadedScript(pub Option<Arc<ScriptBody>>);

impl PartialEq for LoadedScript {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for LoadedScript {}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(language: Interpreter) -> ScriptUse {
        ScriptUse {
            name: "backup".to_owned(),
            version: None,
            process: ProcessSpec::default(),
            loaded: LoadedScript(Some(Arc::new(ScriptBody {
                version: 7,
                language,
                text: "print(1)".into(),
            }))),
        }
    }

    #[test]
    fn a_worker_gets_the_text_of_the_version() {
        let Some(HandlerSpec::Shell(shell)) = reference(Interpreter::Python3).as_shell() else {
            panic!("a script text is expected");
        };
        assert_eq!(
            (shell.script.as_str(), shell.interpreter, shell.shell),
            ("print(1)", Interpreter::Python3, None)
        );
    }

    #[test]
    fn a_script_without_its_text_is_not_run_as_an_empty_one() {
        let mut unloaded = reference(Interpreter::Bash);
        unloaded.loaded = LoadedScript::default();
        assert_eq!(unloaded.as_shell(), None);
        let handler = HandlerSpec::from(unloaded);
        assert_eq!(handler.for_worker(), handler);
        assert_eq!(handler.capability(), "shell");
    }

    #[test]
    fn what_is_loaded_is_no_part_of_the_definition() {
        let loaded = HandlerSpec::from(reference(Interpreter::Node));
        let text = serde_json::to_string(&loaded).expect("is written");
        assert_eq!(text, r#"{"script":{"name":"backup"}}"#);
        let read: HandlerSpec = serde_json::from_str(&text).expect("is read");
        assert_eq!(read, loaded);
    }

    #[test]
    fn a_script_needs_its_runtime_unless_the_job_sets_the_search_path() {
        let mut handler = reference(Interpreter::Node);
        assert_eq!(
            HandlerSpec::from(handler.clone()).capability(),
            "shell:node"
        );
        let path = "/opt/node/bin".to_owned();
        handler.process.env.insert("PATH".to_owned(), path.into());
        assert_eq!(HandlerSpec::from(handler).capability(), "shell");
    }
}
