//! The environment and the directory in which a process starts. Pure: the worker's own environment is an argument.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use cueline_worker::AttemptInfo;
use cueline_worker::model::handler::ProcessSpec;

use crate::account::Account;
use crate::marks::{GUARD_VARIABLE, ProcessMarks, WORKER_VARIABLE};

/// The prefix of Cueline's own variables. They may hold the worker's settings and secrets, so a process gets none of
/// them except the variables of its attempt.
const OWN_PREFIX: &str = "CUELINE_";

/// cron's search path.
const CRON_PATH: &str = "/usr/bin:/bin";

/// The shell that cron names by default.
pub(crate) const CRON_SHELL: &str = "/bin/sh";

/// The environment and the directory of a process.
///
/// It has no `Debug`, which would show the values of secrets.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Environment {
    /// All variables; no others are inherited.
    pub(crate) variables: BTreeMap<OsString, OsString>,
    /// `None` for the worker's directory.
    pub(crate) cwd: Option<PathBuf>,
}

impl Environment {
    /// The search path of programs.
    pub(crate) fn path(&self) -> &OsStr {
        self.variables
            .get(OsStr::new("PATH"))
            .map_or(OsStr::new(CRON_PATH), OsString::as_os_str)
    }
}

/// The environment of a process. It starts with the worker's variables without Cueline's own, or with cron's if the
/// spec clears the environment. The variables of the spec overwrite those, and the variables of the attempt overwrite
/// both. `of_spec` are the variables of the spec with the values of its secrets.
pub(crate) fn environment(
    spec: &ProcessSpec,
    of_spec: &BTreeMap<String, String>,
    of_attempt: &[(&'static str, String)],
    account: Option<&Account>,
    shell: &str,
    inherited: &BTreeMap<OsString, OsString>,
) -> Environment {
    let mut variables = if spec.clear_env {
        BTreeMap::new()
    } else {
        inherited.clone()
    };
    let mut set = |name: &str, value: &OsStr| {
        variables.insert(name.into(), value.into());
    };
    if let Some(account) = account {
        set("HOME", account.home.as_os_str());
        set("LOGNAME", account.name.as_ref());
        set("USER", account.name.as_ref());
    }
    if spec.clear_env {
        set("SHELL", shell.as_ref());
        set("PATH", CRON_PATH.as_ref());
    }
    for (name, value) in of_spec {
        set(name, value.as_ref());
    }
    for (name, value) in of_attempt {
        set(name, value.as_ref());
    }
    let home = || variables.get(OsStr::new("HOME")).map(PathBuf::from);
    let cwd = match &spec.cwd {
        Some(cwd) => Some(PathBuf::from(cwd)),
        None if spec.clear_env => home(),
        None => None,
    };
    Environment { variables, cwd }
}

/// The variables that describe the attempt.
pub(crate) fn attempt_variables(
    info: &AttemptInfo,
    marks: &ProcessMarks,
    proven_ms: Option<i64>,
) -> [(&'static str, String); 12] {
    let shard = &info.shard;
    let guard = marks.guard.as_ref().map(|id| id.mark(proven_ms));
    [
        ("CUELINE_RUN_ID", info.id.run.to_string()),
        ("CUELINE_ATTEMPT", info.id.attempt.to_string()),
        ("CUELINE_JOB", info.job.to_string()),
        ("CUELINE_FIRE_TIME", info.fire_at.to_string()),
        ("CUELINE_FIRE_TIME_MS", info.fire_at.as_millis().to_string()),
        ("CUELINE_PARAMS", info.params.clone().unwrap_or_default()),
        ("CUELINE_SHARD_INDEX", shard.index.to_string()),
        ("CUELINE_SHARD_TOTAL", shard.total.to_string()),
        ("CUELINE_SHARD_ITEM", shard.item.clone().unwrap_or_default()),
        ("CUELINE_EXECUTOR", info.executor.to_string()),
        (WORKER_VARIABLE, marks.worker.clone()),
        (GUARD_VARIABLE, guard.unwrap_or_default()),
    ]
}

/// The search path of a process whose job sets no other.
pub(crate) fn own_path() -> OsString {
    std::env::var_os("PATH").unwrap_or_else(|| CRON_PATH.into())
}

/// The worker's variables that a process may inherit.
pub(crate) fn inheritable() -> BTreeMap<OsString, OsString> {
    std::env::vars_os()
        .filter(|(name, _)| !name.as_encoded_bytes().starts_with(OWN_PREFIX.as_bytes()))
        .collect()
}
