//! Scheduler and worker as processes of their own, started as a person starts them, each with the flags of the test.

use std::fs::File;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cueline_test_servers::postgres::Postgres;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::standalone::{free_port, program};
use crate::{Ended, ended, until};

/// No condition takes longer on a busy machine.
pub const WITHIN: Duration = Duration::from_mins(1);

/// What the processes of a cluster have in common, and where a person sits who uses it.
#[derive(Debug)]
pub struct Cluster {
    /// What all of it is in; the processes' working directory.
    pub folder: TempDir,
    /// The store's address.
    pub store: String,
    /// The broker's address.
    pub broker: String,
    port: u16,
}

/// A process and what it has printed.
#[derive(Debug)]
pub struct Process {
    /// Itself.
    pub child: Child,
    log: PathBuf,
}

impl Cluster {
    /// Keys and a token, made as a person makes them; no process yet.
    pub async fn new(store: String, broker: String) -> Result<Self> {
        let cluster = Self {
            folder: tempfile::tempdir()?,
            store,
            broker,
            port: free_port()?,
        };
        for key in ["signing.key", "other.key"] {
            let public = cluster.run(&["key", "new", "--out", key]).await?.good()?;
            std::fs::write(cluster.path(&format!("{key}.public")), public)?;
        }
        cluster
            .run(&["token", "new", "--out", "admin.token"])
            .await?
            .good()?;
        Ok(cluster)
    }

    /// A file in its folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A command of `cueline`, with the surroundings of a person who uses this cluster.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(program());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CUELINE_") {
                command.env_remove(name);
            }
        }
        let token = std::fs::read_to_string(self.path("admin.token")).unwrap_or_default();
        command
            .args(args)
            .current_dir(self.folder.path())
            .env("XDG_STATE_HOME", self.folder.path())
            .env("CUELINE_URL", format!("http://127.0.0.1:{}", self.port))
            .env("CUELINE_TOKEN", token.trim());
        command
    }

    /// Runs a command to its end.
    pub async fn run(&self, args: &[&str]) -> Result<Ended> {
        ended(self.command(args), WITHIN).await
    }

    /// Starts a role under a name, after which its log is called.
    pub fn start(&self, name: &str, args: &[&str]) -> Result<Process> {
        let log = self.path(&format!("{name}.log"));
        let out = File::options().append(true).create(true).open(&log)?;
        let mut command = self.command(args);
        // The token comes from its file here.
        command
            .env_remove("CUELINE_TOKEN")
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .kill_on_drop(true);
        let child = command.spawn().context("failed to start cueline")?;
        Ok(Process { child, log })
    }

    /// Starts the scheduler that commands are sent to, with more flags.
    pub fn scheduler(&self, extra: &[&str]) -> Result<Process> {
        let listen = format!("127.0.0.1:{}", self.port);
        let own = [
            "scheduler",
            "--store",
            &self.store,
            "--broker",
            &self.broker,
            "--listen",
            &listen,
            "--token-file",
            "admin.token",
            "--signing-key",
            "signing.key",
        ];
        self.start("scheduler", &[&own[..], extra].concat())
    }

    /// Starts a worker of the group `default`, with a state directory of its own.
    pub fn worker(&self, name: &str, trust: &str, allow: &str) -> Result<Process> {
        self.worker_with(name, trust, allow, &[])
    }

    /// The same with more flags.
    pub fn worker_with(
        &self,
        name: &str,
        trust: &str,
        allow: &str,
        extra: &[&str],
    ) -> Result<Process> {
        // One that is shared with another test would answer from the journal of other runs.
        let state = self.path(&format!("state-{name}"));
        let own = [
            "worker",
            "--state-dir",
            state.to_str().context("a path of letters")?,
            "--broker",
            &self.broker,
            "--name",
            name,
            "--trust",
            trust,
            "--allow",
            allow,
        ];
        self.start(name, &[&own[..], extra].concat())
    }

    /// The status with which the scheduler answers, if it does.
    pub async fn answer(&self, path: &str) -> Option<u16> {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        cueline_runtime::tls::install_provider();
        Some(reqwest::get(url).await.ok()?.status().as_u16())
    }

    /// Waits until the scheduler is ready.
    pub async fn ready(&self, process: &mut Process) -> Result<()> {
        let look = async || {
            if let Some(status) = process.child.try_wait()? {
                bail!("it ended at its start, {status}: {}", process.said());
            }
            Ok((self.answer("/readyz").await == Some(200)).then_some(()))
        };
        let waited = until("readiness", WITHIN, look).await;
        waited.with_context(|| process.said())
    }

    /// Waits until the worker is heard.
    pub async fn heard(&self, name: &str) -> Result<()> {
        let look = async || {
            let list = self.run(&["executor", "list"]).await?.good()?;
            let alive = list.lines().any(|l| l.contains(name) && l.contains("yes"));
            Ok(alive.then_some(()))
        };
        let heard = until("a sign of life", WITHIN, look).await;
        heard.with_context(|| self.logs())
    }

    /// What all its processes have printed.
    pub fn logs(&self) -> String {
        let files = std::fs::read_dir(self.folder.path()).into_iter().flatten();
        let said: Vec<String> = files
            .filter_map(|file| Some(file.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|e| e == "log"))
            .map(|path| {
                let said = std::fs::read_to_string(&path).unwrap_or_default();
                format!("{}:\n{said}\n", path.display())
            })
            .collect();
        said.concat()
    }

    /// Applies a job file.
    pub async fn apply(&self, jobs: &str) -> Result<()> {
        std::fs::write(self.path("jobs.toml"), jobs)?;
        self.run(&["job", "apply", "-f", "jobs.toml"])
            .await?
            .good()?;
        Ok(())
    }

    /// Triggers a job; the run's id.
    pub async fn trigger(&self, job: &str) -> Result<String> {
        let answer = self.run(&["trigger", job, "-o", "json"]).await?.json()?;
        Ok(answer["runs"][0].to_string())
    }

    /// Where a run is.
    pub async fn state(&self, run: &str) -> Result<String> {
        let run = self
            .run(&["run", "show", run, "-o", "json"])
            .await?
            .json()?;
        let state = run["run"]["state"].as_str().or(run["state"].as_str());
        Ok(state
            .with_context(|| format!("no state: {run}"))?
            .to_owned())
    }

    /// Waits until a run is in this state.
    pub async fn comes_to(&self, run: &str, state: &str) -> Result<()> {
        let look = async || Ok((self.state(run).await? == state).then_some(()));
        until(&format!("run {run} {state}"), WITHIN, look).await
    }
}

impl Process {
    /// All that it has printed.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.child.id().context("it has ended already")?;
        Ok(kill(Pid::from_raw(i32::try_from(pid)?), signal)?)
    }

    /// Waits for its end.
    pub async fn end(&mut self) -> Result<ExitStatus> {
        let ended = tokio::time::timeout(WITHIN, self.child.wait()).await;
        Ok(ended.with_context(|| format!("it goes on: {}", self.said()))??)
    }

    /// SIGTERM; it has to end well.
    pub async fn terminate(&mut self) -> Result<()> {
        self.signal(Signal::SIGTERM)?;
        let status = self.end().await?;
        ensure!(status.code() == Some(0), "{status}: {}", self.said());
        Ok(())
    }
}

/// A new database on the server that the tests of one program share, and its address.
pub fn database() -> Result<(Arc<Postgres>, String)> {
    let server = Postgres::shared()?;
    let url = server.url(&server.create_database()?);
    Ok((server, url))
}
