//! A cluster of schedulers and workers, each in a process of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cueline_test_servers::free_port;
use cueline_test_servers::postgres::Postgres;
use cueline_test_support::{eventually, try_eventually};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use crate::client::Client;
use crate::finished::{Finished, finish};
use crate::process::Process;
use crate::program;

/// The time limit for any condition, even on a busy machine.
pub const WITHIN: Duration = Duration::from_mins(2);

/// An executor without a heartbeat for longer than this may be dead.
const ALIVE_MS: u64 = 15_000;

/// The file with the token that enrols all workers.
pub const ENROL_TOKEN: &str = "enrol.token";

/// Everything that the processes of a cluster share: a folder with keys and tokens, and the servers' addresses.
#[derive(Debug)]
pub struct Cluster {
    /// The processes' working directory, with all their files.
    pub folder: TempDir,
    /// The store's address.
    pub store: String,
    /// The broker's address.
    pub broker: String,
    /// The API of the scheduler to which commands are sent.
    pub client: Client,
    port: u16,
}

impl Cluster {
    /// Creates keys and tokens with the commands that users run. Starts no process yet.
    pub async fn new(store: String, broker: String) -> Result<Self> {
        let mut cluster = Self {
            folder: tempfile::tempdir()?,
            store,
            broker,
            client: Client::new(Vec::new(), String::new())?,
            port: free_port()?,
        };
        for key in ["signing.key", "other.key"] {
            let public = cluster
                .run(&["key", "new", "--out", key])
                .await?
                .success()?;
            std::fs::write(cluster.path(&format!("{key}.public")), public)?;
        }
        let enrol_token = ["worker-key", "token", "--offline", "--out", ENROL_TOKEN];
        let admin_token = ["token", "new", "--out", "admin.token"];
        for command in [&admin_token[..], &enrol_token] {
            cluster.run(command).await?.success()?;
        }
        let url = format!("http://127.0.0.1:{}", cluster.port);
        cluster.client = Client::new(vec![url], cluster.token()?)?;
        Ok(cluster)
    }

    /// A file in the cluster's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The admin token.
    pub fn token(&self) -> Result<String> {
        let token = std::fs::read_to_string(self.path("admin.token"))?;
        Ok(token.trim().to_owned())
    }

    /// A command as a user of this cluster would run it.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = program::command(&program::cueline(), args);
        command
            .current_dir(self.folder.path())
            .env("XDG_STATE_HOME", self.folder.path())
            .env("CUELINE_URL", format!("http://127.0.0.1:{}", self.port))
            .env("CUELINE_TOKEN", self.token().unwrap_or_default());
        command
    }

    /// Runs a command to its end.
    pub async fn run(&self, args: &[&str]) -> Result<Finished> {
        finish(self.command(args), WITHIN).await
    }

    /// Starts a process with these arguments.
    pub fn start(&self, name: &str, program: PathBuf, args: &[impl AsRef<str>]) -> Result<Process> {
        let mut process = Process::new(name, program, args, self.folder.path());
        process.start()?;
        Ok(process)
    }

    /// Starts the scheduler that receives commands, with more flags.
    pub fn scheduler(&self, extra: &[&str]) -> Result<Process> {
        self.scheduler_at("scheduler", &format!("127.0.0.1:{}", self.port), extra)
    }

    /// Starts another scheduler, which receives no commands.
    pub fn scheduler_beside(&self, extra: &[&str]) -> Result<Process> {
        let named = [&["--name", "scheduler-2"][..], extra].concat();
        self.scheduler_at("scheduler-2", "127.0.0.1:0", &named)
    }

    fn scheduler_at(&self, name: &str, listen: &str, extra: &[&str]) -> Result<Process> {
        let own = [
            "scheduler",
            "--store",
            &self.store,
            "--broker",
            &self.broker,
            "--listen",
            listen,
            "--token-file",
            "admin.token",
            "--signing-key",
            "signing.key",
            "--enrol-token-file",
            ENROL_TOKEN,
        ];
        let args = [&own[..], extra].concat();
        self.start(name, program::cueline(), &args)
    }

    /// Starts a worker of the group `default` that allows shell handlers and trusts the scheduler's key.
    pub fn worker(&self, name: &str) -> Result<Process> {
        self.worker_with(name, "signing.key.public", &[])
    }

    /// The same with other trusted keys and more flags.
    pub fn worker_with(&self, name: &str, trust: &str, extra: &[&str]) -> Result<Process> {
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
            "shell",
            "--enrol-token-file",
            ENROL_TOKEN,
        ];
        self.start(name, program::cueline(), &[&own[..], extra].concat())
    }

    /// The status of the scheduler's answer, if it answers.
    pub async fn status_of(&self, path: &str) -> Option<u16> {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        Some(reqwest::get(url).await.ok()?.status().as_u16())
    }

    /// Waits until the scheduler answers `path` with this status.
    pub async fn wait_for_status(&self, path: &str, expected: u16) -> Result<()> {
        let answered = eventually(
            format!("{path} answers {expected}"),
            WITHIN,
            async || match self.status_of(path).await {
                Some(status) if status == expected => Ok(()),
                other => Err(format!("{other:?}")),
            },
        );
        answered.await.with_context(|| self.logs())
    }

    /// Waits until the scheduler is ready.
    pub async fn wait_until_ready(&self, scheduler: &mut Process) -> Result<()> {
        let ready = try_eventually("the scheduler is ready", WITHIN, async || {
            scheduler.check_running()?;
            let status = self.status_of("/readyz").await;
            let ready = (status == Some(200)).then_some(());
            anyhow::Ok(ready.ok_or(format!("{status:?}")))
        });
        let ready = ready.await;
        ready.with_context(|| scheduler.log())
    }

    /// Waits until the scheduler receives heartbeats of this executor of the group `default`.
    pub async fn wait_for_executor(&self, name: &str) -> Result<()> {
        let heartbeat = eventually(format!("{name} is alive"), WITHIN, async || {
            let list = self.client.get_from(0, "/executors").await;
            let list = list.map_err(|e| format!("{e:#}"))?["executors"].take();
            let alive = |e: &Value| {
                e["group"] == "default"
                    && e["name"] == name
                    && e["silent_ms"].as_u64().is_some_and(|ms| ms <= ALIVE_MS)
                    && e["gone"] == false
                    && e["draining"] == false
            };
            let found = list.as_array().is_some_and(|list| list.iter().any(alive));
            if found { Ok(()) } else { Err(list.to_string()) }
        });
        heartbeat.await.with_context(|| self.logs())
    }

    /// The output of all its processes.
    pub fn logs(&self) -> String {
        let files = std::fs::read_dir(self.folder.path()).into_iter().flatten();
        let logs: Vec<String> = files
            .filter_map(|file| Some(file.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|e| e == "log"))
            .map(|path| {
                let log = std::fs::read_to_string(&path).unwrap_or_default();
                format!("{}:\n{log}\n", path.display())
            })
            .collect();
        logs.concat()
    }

    /// Applies a job file.
    pub async fn apply(&self, jobs: &str) -> Result<()> {
        std::fs::write(self.path("jobs.toml"), jobs)?;
        self.run(&["job", "apply", "-f", "jobs.toml"])
            .await?
            .success()?;
        Ok(())
    }

    /// Triggers a job. Returns the run's id.
    pub async fn trigger(&self, job: &str) -> Result<String> {
        let answer = self.run(&["trigger", job, "-o", "json"]).await?.json()?;
        Ok(answer["runs"][0].to_string())
    }

    /// Waits until a run is in this state.
    pub async fn wait_for_state(&self, run: &str, state: &str) -> Result<()> {
        // A scheduler on a busy machine may answer too late.
        eventually(format!("run {run} is {state}"), WITHIN, async || {
            let shown = self.client.get_from(0, &format!("/runs/{run}")).await;
            let shown = shown.map_err(|e| format!("{e:#}"))?;
            let reached = (shown["state"] == state).then_some(());
            reached.ok_or_else(|| shown["state"].to_string())
        })
        .await?;
        Ok(())
    }
}

/// A new database on the server that the tests of this program share, and its address.
pub fn database() -> Result<(Arc<Postgres>, String)> {
    let server = Postgres::shared()?;
    let url = server.url(&server.create_database()?);
    Ok((server, url))
}
