//! Which variables and which directory a process starts with. Pure: what the worker itself has is an argument.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use cueline_worker::AttemptInfo;
use cueline_worker::model::handler::ProcessSpec;

use crate::account::Account;

/// Prefix of the variables that are Cueline's own. A worker's settings and secrets may be among them, so a process
/// gets none but those made here.
pub(crate) const OWN_PREFIX: &str = "CUELINE_";

/// Variable by which the next incarnation of a worker finds what this one started.
pub(crate) const MARKER_VARIABLE: &str = "CUELINE_WORKER_STATE";

/// Variable by which a worker's guard finds what it has to end.
pub(crate) const GUARD_VARIABLE: &str = "CUELINE_WORKER_GUARD";

/// What names one start of a worker to its processes and its guard. Unique on the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardId(String);

impl GuardId {
    /// The id of the worker that keeps its state in this directory, in this start of its process.
    pub fn of(state_dir: &str, incarnation: &str) -> Self {
        Self(format!("{incarnation} {state_dir}"))
    }

    /// Takes an id as it was written with [`as_str`](Self::as_str).
    pub fn parse(text: String) -> Self {
        Self(text)
    }

    /// As text, for the guard's command line.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value of the variable for a process that is started by the right of the contact that was proven then. One that depends on none is ended
    /// only when the worker is gone.
    pub(crate) fn value(&self, proven_ms: Option<i64>) -> String {
        match proven_ms {
            Some(proven_ms) => format!("{proven_ms} {}", self.0),
            None => format!("keep {}", self.0),
        }
    }

    /// By what right a process with this value was started, if this worker has started it. What cannot be read is by the oldest: it is rather ended than kept.
    #[cfg(target_os = "linux")]
    pub(crate) fn right_in(&self, value: &[u8]) -> Option<Right> {
        let (right, id) = std::str::from_utf8(value).ok()?.split_once(' ')?;
        if id != self.0 {
            return None;
        }
        Some(match right {
            "keep" => Right::Keep,
            proven_ms => Right::Proven(proven_ms.parse().unwrap_or(i64::MIN)),
        })
    }
}

/// By what right a process was started.
#[cfg(target_os = "linux")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// Contact that was proven at this time on the boot clock.
    Proven(i64),
    /// None is needed, as long as the worker is there.
    Keep,
}

/// cron's search path.
const CRON_PATH: &str = "/usr/bin:/bin";

/// Shell that cron names when nobody else did.
pub(crate) const CRON_SHELL: &str = "/bin/sh";

/// What a process starts with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Environment {
    /// Complete; nothing is inherited besides.
    pub(crate) variables: BTreeMap<OsString, OsString>,
    /// `None` for the worker's own.
    pub(crate) cwd: Option<PathBuf>,
}

impl Environment {
    /// Where programs are looked for.
    pub(crate) fn path(&self) -> &OsStr {
        self.variables
            .get(OsStr::new("PATH"))
            .map_or(OsStr::new(CRON_PATH), OsString::as_os_str)
    }
}

/// The environment of a process: the worker's own variables without Cueline's, or cron's; over them the spec's; over
/// all the attempt's facts.
pub(crate) fn environment(
    spec: &ProcessSpec,
    facts: &AttemptInfo,
    account: Option<&Account>,
    shell: &str,
    marks: &Marks,
    proven_ms: Option<i64>,
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
    for (name, value) in &spec.env {
        set(name, value.as_ref());
    }
    for (name, value) in attempt(facts, marks, proven_ms) {
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

/// What a worker's processes are found by.
#[derive(Debug, Clone)]
pub(crate) struct Marks {
    pub(crate) marker: String,
    pub(crate) guard: Option<GuardId>,
}

/// What every process is told of its attempt.
fn attempt(
    facts: &AttemptInfo,
    marks: &Marks,
    proven_ms: Option<i64>,
) -> [(&'static str, String); 12] {
    let shard = &facts.shard;
    let guard = marks.guard.as_ref().map(|id| id.value(proven_ms));
    [
        ("CUELINE_RUN_ID", facts.id.run.to_string()),
        ("CUELINE_ATTEMPT", facts.id.attempt.to_string()),
        ("CUELINE_JOB", facts.job.to_string()),
        ("CUELINE_FIRE_TIME", facts.fire_at.to_string()),
        (
            "CUELINE_FIRE_TIME_MS",
            facts.fire_at.as_millis().to_string(),
        ),
        ("CUELINE_PARAMS", facts.params.clone().unwrap_or_default()),
        ("CUELINE_SHARD_INDEX", shard.index.to_string()),
        ("CUELINE_SHARD_TOTAL", shard.total.to_string()),
        ("CUELINE_SHARD_ITEM", shard.item.clone().unwrap_or_default()),
        ("CUELINE_EXECUTOR", facts.executor.to_string()),
        (MARKER_VARIABLE, marks.marker.clone()),
        (GUARD_VARIABLE, guard.unwrap_or_default()),
    ]
}

/// The worker's own variables that a process may inherit.
pub(crate) fn inheritable() -> BTreeMap<OsString, OsString> {
    std::env::vars_os()
        .filter(|(name, _)| !name.as_encoded_bytes().starts_with(OWN_PREFIX.as_bytes()))
        .collect()
}
