//! A `cueline standalone` process.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::{Method, StatusCode};
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use crate::ended::{Ended, ended};
use crate::witness::beside_tests;

/// A process, and how to talk to it.
#[derive(Debug)]
pub struct Standalone {
    child: Child,
    data: PathBuf,
    url: String,
    token: String,
    http: reqwest::Client,
}

/// How long a process may take until it answers. On a busy machine that takes its time; a healthy one needs milliseconds.
const READY_WITHIN: Duration = Duration::from_mins(1);

/// How long a command of the CLI may take, one that waits for a run included.
const COMMAND_WITHIN: Duration = Duration::from_mins(1);

/// The `cueline` program.
pub fn program() -> PathBuf {
    beside_tests("cueline")
}

/// A port that was free just now.
pub fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port())
}

/// The command that starts a process on `data`, not started yet. Its output goes to `data`.log, its state to the folder beside.
pub fn command(data: &Path, port: u16, extra: &[&str]) -> Result<Command> {
    let log = File::options()
        .append(true)
        .create(true)
        .open(data.with_extension("log"))?;
    let mut command = bare_command(data, port, extra);
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true);
    Ok(command)
}

/// The same without a place for its output.
pub fn bare_command(data: &Path, port: u16, extra: &[&str]) -> Command {
    let mut command = Command::new(program());
    command
        .args([
            "standalone",
            "--listen",
            &format!("127.0.0.1:{port}"),
            "--data",
        ])
        .arg(data)
        .args(extra)
        .env("XDG_STATE_HOME", data.with_extension("state"))
        .env_remove("CUELINE_URL")
        .env_remove("CUELINE_TOKEN");
    command
}

impl Standalone {
    /// Starts a process on `data` and waits until it is ready.
    pub async fn start(data: &Path, extra: &[&str]) -> Result<Self> {
        let port = free_port()?;
        Self::launch(command(data, port, extra)?, data, port).await
    }

    /// Starts a process by a [`command`] made for `data` and `port`, and waits until it is ready.
    pub async fn launch(mut command: Command, data: &Path, port: u16) -> Result<Self> {
        let mut child = command.spawn().context("failed to start cueline")?;
        let url = format!("http://127.0.0.1:{port}");
        cueline_runtime::tls::install_provider();
        let http = reqwest::Client::builder()
            .timeout(Duration::from_mins(1))
            .build()?;
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            if let Ok(answer) = http.get(format!("{url}/readyz")).send().await
                && answer.status() == StatusCode::OK
            {
                break;
            }
            if let Some(status) = child.try_wait()? {
                bail!("cueline ended at its start, {status}; {}", last_lines(data));
            }
            if Instant::now() > deadline {
                bail!(
                    "cueline was not ready within {READY_WITHIN:?}; {}",
                    last_lines(data)
                );
            }
            sleep(Duration::from_millis(5)).await;
        }
        let token = std::fs::read_to_string(data.join("admin.token"))?;
        Ok(Self {
            child,
            data: data.to_owned(),
            url,
            token,
            http,
        })
    }

    /// Its address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its admin token.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// All that it has printed, its predecessors on the same data included.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.data.with_extension("log")).unwrap_or_default()
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// A command of the CLI, which finds this server as a user's commands do.
    pub fn cli(&self, args: &[&str]) -> Command {
        let mut command = Command::new(program());
        command
            .args(args)
            .env("XDG_STATE_HOME", self.data.with_extension("state"))
            .env_remove("CUELINE_URL")
            .env_remove("CUELINE_TOKEN");
        command
    }

    /// Runs a command of the CLI to its end.
    pub async fn run(&self, args: &[&str]) -> Result<Ended> {
        ended(self.cli(args), COMMAND_WITHIN).await
    }

    /// Runs a command of the CLI that prints JSON.
    pub async fn json(&self, args: &[&str]) -> Result<Value> {
        self.run(&[args, &["-o", "json"]].concat()).await?.json()
    }

    /// Its process id.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Kills it with SIGKILL and waits until it is gone.
    pub async fn kill(mut self) -> Result<()> {
        self.child.start_kill()?;
        self.child.wait().await?;
        Ok(())
    }

    /// Asks it to stop by SIGTERM and waits until it has.
    pub async fn terminate(mut self) -> Result<ExitStatus> {
        let pid = self.child.id().context("it has ended already")?;
        kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGTERM)?;
        let waited = tokio::time::timeout(Duration::from_mins(1), self.child.wait()).await;
        waited
            .with_context(|| format!("no end after SIGTERM; {}", last_lines(&self.data)))?
            .map_err(Into::into)
    }

    /// A call of the API, below `/api/v1`: the status and the body.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Value)> {
        let mut request = self
            .http
            .request(method, format!("{}/api/v1{path}", self.url))
            .bearer_auth(self.token.trim());
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await?;
        let status = answer.status();
        let text = answer.text().await?;
        Ok((
            status,
            serde_json::from_str(&text).unwrap_or(Value::String(text)),
        ))
    }

    /// Reads from the API.
    pub async fn get(&self, path: &str) -> Result<Value> {
        let (status, body) = self.call(Method::GET, path, None).await?;
        if !status.is_success() {
            bail!("GET {path}: {status}: {body}");
        }
        Ok(body)
    }

    /// Posts to the API.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let body = (!body.is_null()).then_some(body);
        let (status, answer) = self.call(Method::POST, path, body).await?;
        if !status.is_success() {
            bail!("POST {path}: {status}: {answer}");
        }
        Ok(answer)
    }

    /// Applies job definitions.
    pub async fn apply(&self, jobs: &Value) -> Result<Value> {
        self.post("/jobs/apply", &serde_json::json!({ "jobs": jobs }))
            .await
    }

    /// All runs, newest first.
    pub async fn all_runs(&self) -> Result<Vec<Value>> {
        crate::client::all_runs(async |path| self.get(path).await).await
    }

    /// Waits until no run is alive.
    pub async fn quiet(&self, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        loop {
            let stats = self.get("/stats").await?;
            let live = &stats["live"];
            if live.as_array().is_some_and(Vec::is_empty)
                || live.as_object().is_some_and(serde_json::Map::is_empty)
            {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "runs are still alive after {within:?}: {live}; {}",
                    last_lines(&self.data)
                );
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The end of a process's output, for messages.
pub fn last_lines(data: &Path) -> String {
    let log = std::fs::read_to_string(data.with_extension("log")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().rev().take(15).collect();
    format!(
        "its last output:\n{}",
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    )
}
