//! The processes of a cluster: schedulers as anybody starts them, and workers with the handler of the benchmarks.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::worker::Answer;

const STOP_WITHIN: Duration = Duration::from_secs(30);
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// A process of the cluster. Dropped, it is killed.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: String,
    child: Child,
    talk: Option<(ChildStdin, Lines<BufReader<ChildStdout>>)>,
}

impl Member {
    /// Starts `cueline ARGS`, configured by nothing but `args`; what it prints goes to a file of its name.
    pub(super) fn start(name: &str, args: &[String], folder: &Path, talks: bool) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let log = std::fs::File::options()
            .append(true)
            .create(true)
            .open(log)?;
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
        if talks {
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
        } else {
            command.stdin(Stdio::null()).stdout(log.try_clone()?);
        }
        let mut child = command
            .stderr(log)
            .spawn()
            .with_context(|| format!("failed to start {name}"))?;
        let talk = child.stdin.take().zip(child.stdout.take());
        let talk = talk.map(|(to, from)| (to, BufReader::new(from).lines()));
        let name = name.to_owned();
        Ok(Self { name, child, talk })
    }

    /// The number of the process.
    pub(super) fn pid(&self) -> Result<u32> {
        let ended = || format!("{} has ended", self.name);
        self.child.id().with_context(ended)
    }

    /// Fails if it has ended, with the end of what it printed.
    pub(super) fn is_there(&mut self, folder: &Path) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let log = folder.join(format!("{}.log", self.name));
            let log = std::fs::read_to_string(log).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(5).collect();
            let last = last.into_iter().rev().collect::<Vec<_>>().join("\n");
            bail!("{} has ended by itself, {status}:\n{last}", self.name);
        }
        Ok(())
    }

    /// Asks a worker.
    pub(super) async fn ask(&mut self, question: &str) -> Result<Answer> {
        let silent = || format!("{} does not answer", self.name);
        let (to, from) = self.talk.as_mut().with_context(silent)?;
        to.write_all(format!("{question}\n").as_bytes()).await?;
        let line = timeout(ANSWER_WITHIN, from.next_line()).await;
        let line = line.with_context(silent)??.with_context(silent)?;
        Ok(serde_json::from_str(&line)?)
    }

    /// SIGTERM, and waits until it has ended.
    pub(super) async fn stop(mut self) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.pid()?)?);
        kill(pid, Signal::SIGTERM)?;
        let late = || format!("{} does not stop", self.name);
        let status = timeout(STOP_WITHIN, self.child.wait()).await;
        let status = status.with_context(late)??;
        if !status.success() {
            bail!("{} ended with {status}", self.name);
        }
        Ok(())
    }
}
