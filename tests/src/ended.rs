//! A command that is waited for: what it said and how it ended.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::process::Command;

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status; `None` if a signal ended it.
    pub status: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
}

/// Runs a command to its end.
pub async fn ended(mut command: Command, within: Duration) -> Result<Ended> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("failed to start a command")?;
    let output = tokio::time::timeout(within, child.wait_with_output())
        .await
        .with_context(|| format!("{command:?} has not ended within {within:?}"))??;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Ended {
        status: output.status.code(),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    })
}

impl Ended {
    /// What it printed, if all went well.
    pub fn good(self) -> Result<String> {
        ensure!(self.status == Some(0), "it went wrong: {self:#?}");
        Ok(self.stdout)
    }

    /// The JSON that it printed, if all went well.
    pub fn json(self) -> Result<Value> {
        let text = self.good()?;
        serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))
    }
}
