//! A process of Cueline that a test can start, stop and start again.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cueline_test_support::wait_until_stopped;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::time::timeout;

use crate::program;

/// A process must end within this time after a request to stop.
const STOP_WITHIN: Duration = Duration::from_mins(1);

/// Lines of the log that a failure message shows.
const LAST_LINES: usize = 15;

/// A process that is killed when this is dropped. Its output is appended to a log file.
#[derive(Debug)]
pub struct Process {
    /// Such as `scheduler-1` or `worker-3`.
    pub name: String,
    program: PathBuf,
    args: Vec<String>,
    envs: Vec<(&'static str, OsString)>,
    folder: PathBuf,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    /// A process that is not started yet. `folder` is its working directory and holds its state and its log `NAME.log`.
    pub fn new(name: &str, program: PathBuf, args: &[impl AsRef<str>], folder: &Path) -> Self {
        Self {
            name: name.to_owned(),
            program,
            args: args.iter().map(|arg| arg.as_ref().to_owned()).collect(),
            envs: vec![("XDG_STATE_HOME", folder.into())],
            folder: folder.to_owned(),
            log: folder.join(format!("{name}.log")),
            child: None,
        }
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.envs.push((name, value.into()));
        self
    }

    /// Starts it by this program with these first arguments. It must execute the rest of its command line under its own
    /// process id.
    #[must_use]
    pub fn launched_by(mut self, program: &str, mut args: Vec<String>) -> Self {
        let own = std::mem::replace(&mut self.program, program.into());
        args.push(own.display().to_string());
        args.append(&mut self.args);
        self.args = args;
        self
    }

    /// Starts the process, which must not be running.
    pub fn start(&mut self) -> Result<()> {
        ensure!(self.child.is_none(), "{} is running already", self.name);
        let log = File::options().append(true).create(true).open(&self.log)?;
        let mut command = program::command(&self.program, &self.args);
        command
            .current_dir(&self.folder)
            .envs(self.envs.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true);
        let child = command.spawn();
        self.child = Some(child.with_context(|| format!("failed to start {}", self.name))?);
        Ok(())
    }

    /// Whether the process was started, and not killed or stopped since.
    pub fn is_started(&self) -> bool {
        self.child.is_some()
    }

    /// Its process id.
    pub fn pid(&self) -> Result<Pid> {
        let pid = self.child.as_ref().and_then(Child::id);
        let pid = pid.with_context(|| format!("{} has ended: {}", self.name, self.last_lines()))?;
        Ok(Pid::from_raw(i32::try_from(pid)?))
    }

    /// Its status, if it has ended by itself.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(match &mut self.child {
            Some(child) => child.try_wait()?,
            None => None,
        })
    }

    /// Fails if it has ended by itself.
    pub fn check_running(&mut self) -> Result<()> {
        if let Some(status) = self.ended()? {
            bail!(
                "{} ended by itself, {status}: {}",
                self.name,
                self.last_lines()
            );
        }
        Ok(())
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(self.pid()?, signal)?)
    }

    /// SIGSTOP for this process only. The processes that it started continue. Waits until all its threads have stopped.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        Ok(wait_until_stopped([self.pid()?.as_raw()])?)
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// SIGSTOP for this process and the process groups that it started, as when a whole machine stops. Returns the
    /// groups.
    pub fn freeze(&self) -> Result<Vec<Pid>> {
        self.pause()?;
        // The stopped process starts no more groups, so this list is complete.
        let groups = self.child_groups()?;
        for group in &groups {
            // A group may have ended in the meantime.
            let _ = killpg(*group, Signal::SIGSTOP);
        }
        Ok(groups)
    }

    /// SIGCONT for it and for these groups.
    pub fn thaw(&self, groups: &[Pid]) -> Result<()> {
        self.resume()?;
        for group in groups {
            let _ = killpg(*group, Signal::SIGCONT);
        }
        Ok(())
    }

    fn child_groups(&self) -> Result<Vec<Pid>> {
        let own = self.pid()?.to_string();
        let mut groups = Vec::new();
        for process in std::fs::read_dir("/proc")?.flatten() {
            let Ok(stat) = std::fs::read_to_string(process.path().join("stat")) else {
                continue;
            };
            // The name, in parentheses, is followed by the state, the parent and the group.
            let mut fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
            if fields.nth(1) == Some(&own)
                && let Some(group) = fields.next().and_then(|g| g.parse().ok())
            {
                groups.push(Pid::from_raw(group));
            }
        }
        Ok(groups)
    }

    /// SIGKILL, and waits until it has ended.
    pub async fn kill(&mut self) -> Result<()> {
        let mut child = self.child.take().context("it has ended already")?;
        child.start_kill()?;
        child.wait().await?;
        Ok(())
    }

    /// Waits until it has ended by itself.
    pub async fn wait(&mut self) -> Result<ExitStatus> {
        self.wait_for(STOP_WITHIN).await
    }

    async fn wait_for(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let child = self.child.as_mut().context("it is not running")?;
        let Ok(status) = timeout(deadline, child.wait()).await else {
            bail!(
                "{} has not ended within {deadline:?}: {}",
                self.name,
                self.last_lines()
            );
        };
        self.child = None;
        Ok(status?)
    }

    /// SIGTERM, and waits until it has ended.
    pub async fn stop(&mut self, deadline: Duration) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        self.wait_for(deadline)
            .await
            .context("G12: no end after SIGTERM")
    }

    /// SIGTERM. It must end with status 0.
    pub async fn terminate(&mut self) -> Result<()> {
        let status = self.stop(STOP_WITHIN).await?;
        ensure!(
            status.code() == Some(0),
            "{} ended with {status} after SIGTERM: {}",
            self.name,
            self.log()
        );
        Ok(())
    }

    /// The output of the process, including earlier starts.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The end of its log, for messages.
    pub fn last_lines(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().rev().take(LAST_LINES).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}
