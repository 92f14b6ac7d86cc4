//! Starts, watches, asks and stops a process of this program. Its output goes to a file.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// A running process. It is killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) name: String,
    child: Child,
    log: PathBuf,
    /// Present if the process answers questions.
    pipes: Option<(ChildStdin, Lines<BufReader<ChildStdout>>)>,
}

/// The use of a process's standard input and output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Io {
    /// Output goes to the log.
    Log,
    /// Standard input takes questions, and standard output gives answers.
    Questions,
}

impl Process {
    /// Starts `cueline ARGS` in `folder`, configured by nothing but `args`. Its log is `NAME.log` there.
    pub(crate) fn start(name: &str, args: &[&str], folder: &Path, io: Io) -> Result<Self> {
        let log_path = folder.join(format!("{name}.log"));
        let log = std::fs::File::options()
            .append(true)
            .create(true)
            .open(&log_path)?;
        let mut command = Command::new(std::env::current_exe()?);
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("CUELINE_") {
                command.env_remove(variable);
            }
        }
        command
            .args(args)
            .current_dir(folder)
            .env("XDG_STATE_HOME", folder)
            .kill_on_drop(true);
        match io {
            Io::Questions => command.stdin(Stdio::piped()).stdout(Stdio::piped()),
            Io::Log => command.stdin(Stdio::null()).stdout(log.try_clone()?),
        };
        let mut child = command
            .stderr(log)
            .spawn()
            .with_context(|| format!("failed to start {name}"))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        Ok(Self {
            name: name.to_owned(),
            child,
            log: log_path,
            pipes: pipes.map(|(to, from)| (to, BufReader::new(from).lines())),
        })
    }

    pub(crate) fn pid(&self) -> Result<u32> {
        self.child
            .id()
            .with_context(|| format!("{} has ended", self.name))
    }

    /// Fails if the process has ended, with the end of its log.
    pub(crate) fn check_running(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(5).collect();
            let last = last.into_iter().rev().collect::<Vec<_>>().join("\n");
            bail!("{} has ended by itself, {status}:\n{last}", self.name);
        }
        Ok(())
    }

    /// Writes a line, and reads the line that answers it.
    pub(crate) async fn ask(&mut self, question: &str) -> Result<String> {
        let no_answer = || format!("{} does not answer", self.name);
        let (to, from) = self.pipes.as_mut().with_context(no_answer)?;
        to.write_all(format!("{question}\n").as_bytes()).await?;
        let line = timeout(ANSWER_TIMEOUT, from.next_line()).await;
        line.with_context(no_answer)??.with_context(no_answer)
    }

    /// Sends SIGSTOP: the process keeps its connections and memory, and does nothing.
    pub(crate) fn freeze(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// Sends SIGCONT: a frozen process goes on.
    pub(crate) fn unfreeze(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.pid()?)?);
        kill(pid, signal).with_context(|| format!("failed to send {signal} to {}", self.name))
    }

    /// How often the log contains `text`.
    pub(crate) fn count_in_log(&self, text: &str) -> Result<u64> {
        let log = std::fs::read(&self.log)?;
        Ok(String::from_utf8_lossy(&log).matches(text).count() as u64)
    }

    /// Sends SIGTERM and waits for the end. Fails unless the status is 0.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.signal(Signal::SIGTERM)?;
        let status = timeout(STOP_TIMEOUT, self.child.wait()).await;
        let status = status.with_context(|| format!("{} does not stop", self.name))??;
        if !status.success() {
            bail!("{} ended with {status}", self.name);
        }
        Ok(())
    }
}
