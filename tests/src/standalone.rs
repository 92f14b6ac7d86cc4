//! A `cueline standalone` process.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use cueline_test_servers::free_port;
use cueline_test_support::try_eventually;
use nix::unistd::Pid;
use reqwest::{Method, StatusCode};
use serde_json::Value;
use tokio::process::Command;

use crate::finished::{Finished, finish};
use crate::process::Process;
use crate::program;

/// A server and its API.
#[derive(Debug)]
pub struct Standalone {
    process: Process,
    data: PathBuf,
    url: String,
    token: String,
    http: reqwest::Client,
}

/// A server starts within milliseconds; a busy machine needs more.
const READY_WITHIN: Duration = Duration::from_mins(2);

/// The time limit for a command, including one that waits for a run.
const COMMAND_WITHIN: Duration = Duration::from_mins(2);

/// Makes the process on `data` without starting it. Its log is `DATA.log`.
pub fn process(data: &Path, port: u16, extra: &[&str]) -> Result<Process> {
    let (folder, name) = (data.parent(), data.file_name());
    let name = name.and_then(|name| name.to_str()).context("a name")?;
    let args = arguments(data, port, extra)?;
    let process = Process::new(name, program::cueline(), &args, folder.context("a folder")?);
    Ok(process.env("XDG_STATE_HOME", data.with_extension("state")))
}

/// The command that starts a server on `data` in the foreground.
pub fn command(data: &Path, port: u16, extra: &[&str]) -> Result<Command> {
    let args = arguments(data, port, extra)?;
    let mut command = program::command(&program::cueline(), &args);
    command.env("XDG_STATE_HOME", data.with_extension("state"));
    Ok(command)
}

fn arguments(data: &Path, port: u16, extra: &[&str]) -> Result<Vec<String>> {
    let listen = format!("127.0.0.1:{port}");
    let data = data.to_str().context("a path of letters")?;
    let own = ["standalone", "--listen", &listen, "--data", data];
    Ok(own.iter().chain(extra).map(ToString::to_string).collect())
}

impl Standalone {
    /// Starts a server on `data` and waits until it is ready.
    pub async fn start(data: &Path, extra: &[&str]) -> Result<Self> {
        let port = free_port()?;
        Self::launch(process(data, port, extra)?, data, port).await
    }

    /// Starts a [`process`] that was made for `data` and `port`, and waits until it is ready.
    pub async fn launch(mut process: Process, data: &Path, port: u16) -> Result<Self> {
        process.start()?;
        cueline_runtime::tls::install_provider();
        let url = format!("http://127.0.0.1:{port}");
        let http = reqwest::Client::builder()
            .timeout(Duration::from_mins(1))
            .build()?;
        let ready = try_eventually("cueline is ready", READY_WITHIN, async || {
            process.check_running()?;
            let answer = http.get(format!("{url}/readyz")).send().await;
            anyhow::Ok(match answer.map(|answer| answer.status()) {
                Ok(StatusCode::OK) => Ok(()),
                Ok(other) => Err(other.to_string()),
                Err(e) => Err(e.to_string()),
            })
        });
        let ready = ready.await;
        ready.with_context(|| process.last_lines())?;
        let token = std::fs::read_to_string(data.join("admin.token"))?;
        Ok(Self {
            process,
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

    /// The output of the server, and of earlier servers on the same data.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// The end of its log, for messages.
    pub fn last_lines(&self) -> String {
        self.process.last_lines()
    }

    /// Fails if it has ended by itself.
    pub fn check_running(&mut self) -> Result<()> {
        self.process.check_running()
    }

    /// A command that finds this server in the way that users' commands do.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = program::command(&program::cueline(), args);
        command.env("XDG_STATE_HOME", self.data.with_extension("state"));
        command
    }

    /// Runs a command to its end.
    pub async fn run(&self, args: &[&str]) -> Result<Finished> {
        finish(self.command(args), COMMAND_WITHIN).await
    }

    /// Runs a command that prints JSON.
    pub async fn json(&self, args: &[&str]) -> Result<Value> {
        self.run(&[args, &["-o", "json"]].concat()).await?.json()
    }

    /// Its process id.
    pub fn pid(&self) -> Result<Pid> {
        self.process.pid()
    }

    /// SIGKILL, and waits until it has ended.
    pub async fn kill(mut self) -> Result<()> {
        self.process.kill().await
    }

    /// SIGTERM, and waits until it has ended.
    pub async fn stop(mut self) -> Result<ExitStatus> {
        self.process.stop(Duration::from_mins(1)).await
    }

    /// SIGTERM. It must end with status 0.
    pub async fn terminate(mut self) -> Result<()> {
        self.process.terminate().await
    }

    /// Sends a request to the API, below `/api/v1`. Returns the status and the body.
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

    /// Waits until every run has ended.
    pub async fn wait_until_all_ended(&self, deadline: Duration) -> Result<()> {
        crate::client::wait_until_all_ended(deadline, async |path| self.get(path).await)
            .await
            .map_err(|e| anyhow!("{e}; {}", self.last_lines()))
    }
}
