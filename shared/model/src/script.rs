//! Scripts: texts with versions, to which jobs refer by name.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::handler::{HandlerSpec, Interpreter, ProcessSpec, ShellSpec};
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
        Some(HandlerSpec::Shell(ShellSpec {
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
        let handler = HandlerSpec::Script(unloaded);
        assert_eq!(handler.for_worker(), handler);
        assert_eq!(handler.capability(), "shell");
    }

    #[test]
    fn what_is_loaded_is_no_part_of_the_definition() {
        let loaded = HandlerSpec::Script(reference(Interpreter::Node));
        let text = serde_json::to_string(&loaded).expect("is written");
        assert_eq!(text, r#"{"script":{"name":"backup"}}"#);
        let read: HandlerSpec = serde_json::from_str(&text).expect("is read");
        assert_eq!(read, loaded);
    }

    #[test]
    fn a_script_needs_its_runtime_unless_the_job_sets_the_search_path() {
        let mut handler = reference(Interpreter::Node);
        assert_eq!(
            HandlerSpec::Script(handler.clone()).capability(),
            "shell:node"
        );
        let path = "/opt/node/bin".to_owned();
        handler.process.env.insert("PATH".to_owned(), path.into());
        assert_eq!(HandlerSpec::Script(handler).capability(), "shell");
    }
}
