//! Starts a process as the leader of its own group.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use cueline_worker::Failure;
use nix::errno::Errno;
use tokio::process::{Child, Command};

use crate::account::Account;
use crate::environment::Environment;

/// A process to start.
pub(crate) struct Launch {
    /// The program as the job names it.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) environment: Environment,
    pub(crate) account: Option<Account>,
    pub(crate) stdin: Option<String>,
}

pub(super) fn spawn(launch: &Launch) -> Result<Child, Failure> {
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
    command.spawn().map_err(|e| not_started(launch, &e))
}

fn not_started(launch: &Launch, error: &io::Error) -> Failure {
    let name = &launch.name;
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
    Failure::new(format!("program {name:?} could not be started: {why}"))
}
