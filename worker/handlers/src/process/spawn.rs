//! Starts a process as the leader of its own group.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use cueline_worker::{Context, Failure};
use nix::errno::Errno;
use tokio::process::{Child, Command};

use crate::account::Account;
use crate::environment::Environment;
use crate::masks::Masks;
use crate::shortage::{self, Patience, Shortage};

/// A process to start.
pub(crate) struct Launch {
    /// The program as the job names it.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) environment: Environment,
    pub(crate) account: Option<Account>,
    pub(crate) stdin: Option<String>,
    /// What its output must not show.
    pub(crate) masks: Masks,
}

/// Starts the process. While the machine lacks descriptors, processes or memory, it tries again for a while.
///
/// `stopped` is asked before each try, and names the reason of a stop.
pub(super) async fn spawn(
    launch: &Launch,
    cx: &Context,
    stopped: impl Fn() -> Option<Failure>,
) -> Result<Child, Failure> {
    let mut patience = Patience::new();
    loop {
        if let Some(failure) = stopped() {
            return Err(failure);
        }
        let error = match try_spawn(launch) {
            Ok(child) => return Ok(child),
            Err(error) => error,
        };
        let Some(shortage) = Shortage::of_start(&error) else {
            return Err(not_started(launch, &error));
        };
        if !patience.wait(shortage, cx).await {
            return Err(failure(launch, &shortage::waited(shortage)));
        }
    }
}

fn try_spawn(launch: &Launch) -> io::Result<Child> {
    let mut command = Command::new(&launch.program);
    command
        .arg0(&launch.name)
        .args(&launch.arguments)
        .env_clear()
        .envs(&launch.environment.variables)
        .stdin(match launch.stdin {
            Some(_) => Stdio::piped(),
            None => Stdio::null(),
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    if let Some(cwd) = &launch.environment.cwd {
        command.current_dir(cwd);
    }
    if let Some((uid, gid)) = launch.account.as_ref().and_then(|a| a.switch) {
        // Root's supplementary groups are dropped. Those of the user cannot be set without unsafe code. The process
        // therefore has fewer rights than a login of the user, never more.
        command.uid(uid).gid(gid);
    }
    command.spawn()
}

fn failure(launch: &Launch, why: &str) -> Failure {
    let name = &launch.name;
    Failure::new(format!("program {name:?} could not be started: {why}"))
}

fn not_started(launch: &Launch, error: &io::Error) -> Failure {
    let cwd = launch.environment.cwd.as_deref();
    if let Some(cwd) = cwd.filter(|dir| !dir.is_dir()) {
        return Failure::new(format!(
            "cwd: {} is not a directory on this machine",
            cwd.display()
        ));
    }
    let user = launch.account.as_ref().filter(|a| a.switch.is_some());
    let why = match (error.raw_os_error().map(Errno::from_raw), user) {
        (Some(Errno::ENOENT), _) if Path::new(&launch.program).exists() => {
            "the interpreter in its first line does not exist".to_owned()
        }
        (Some(Errno::ENOENT), _) => "it does not exist".to_owned(),
        (Some(Errno::EPERM), Some(user)) => {
            format!("this worker may not run a process as {:?}", user.name)
        }
        (Some(Errno::EACCES), Some(user)) => format!(
            "{:?} may not run it, or not enter the working directory",
            user.name
        ),
        (Some(Errno::EACCES), None) => {
            "it is not executable, or the working directory is closed to the worker".to_owned()
        }
        (Some(Errno::E2BIG), _) => {
            "arguments and variables are too long (128 KiB each at most; the parameter is one of both)"
                .to_owned()
        }
        _ => error.to_string(),
    };
    failure(launch, &why)
}
