//! A finished command: its status and its output.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::process::Command;

/// How a command ended.
#[derive(Debug)]
pub struct Finished {
    /// `None` if a signal ended it.
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command to its end.
pub async fn finish(mut command: Command, deadline: Duration) -> Result<Finished> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("failed to start a command")?;
    let output = tokio::time::timeout(deadline, child.wait_with_output())
        .await
        .with_context(|| format!("{command:?} has not ended within {deadline:?}"))??;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Finished {
        status: output.status.code(),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    })
}

impl Finished {
    /// Returns the output if the status is 0.
    pub fn success(self) -> Result<String> {
        ensure!(self.status == Some(0), "the command failed: {self:#?}");
        Ok(self.stdout)
    }

    /// Returns the output as JSON if the status is 0.
    pub fn json(self) -> Result<Value> {
        let text = self.success()?;
        serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))
    }
}
