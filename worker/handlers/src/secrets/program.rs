//! Asks a program of the worker's configuration for a secret.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use cueline_outbound::secrets::MAX_VALUE_BYTES;
use cueline_worker::model::SecretName;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::environment::inheritable;
use crate::process::ProcessGroup;

/// How long the program may take.
const LIMIT: Duration = Duration::from_secs(10);

/// What the program writes to its standard output. The error says what is wrong with `program`.
pub(super) async fn ask(program: &Path, name: &SecretName) -> Result<Vec<u8>, String> {
    let mut command = Command::new(program);
    command
        .arg(name.as_str())
        .env_clear()
        .envs(inheritable())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // It may quote the secret.
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true);
    let mut child = command
        .spawn()
        .map_err(|e| format!("could not be started: {e}"))?;
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    // Kills the processes that are left when it is dropped.
    let group = ProcessGroup::led_by(id.ok_or("has no process id")?);
    let answer = timeout(LIMIT, answer(&mut child))
        .await
        .map_err(|_| format!("gave no answer within {LIMIT:?}"))??;
    group.release();
    Ok(answer)
}

async fn answer(child: &mut Child) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("could not be read: {error}");
    let mut bytes = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let mut bounded = stdout.take(MAX_VALUE_BYTES + 1);
        bounded.read_to_end(&mut bytes).await.map_err(failed)?;
        if bytes.len() as u64 > MAX_VALUE_BYTES {
            return Ok(bytes);
        }
    }
    let status = child.wait().await.map_err(failed)?;
    if !status.success() {
        return Err(format!("ended with {status}"));
    }
    Ok(bytes)
}
