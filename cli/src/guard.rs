//! `cueline guard`: a process that workers start. It kills a worker's processes when the worker itself cannot.

use std::path::Path;

use anyhow::Result;
use cueline_handlers::GuardId;
use cueline_handlers::guard::{self, Guard};
use cueline_worker::SystemBootClock;
use tokio::io::BufReader;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

/// Runs until the worker dismisses it, or until the worker and all of its processes have ended.
pub(crate) async fn run(id: String) -> Result<()> {
    cueline_runtime::telemetry::init("warn", false);
    // A service manager may signal all processes of a worker. The guard must end last, so it ignores these signals.
    let mut ignored = Vec::new();
    for kind in [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
    ] {
        ignored.push(signal(kind)?);
    }
    let input = BufReader::new(tokio::io::stdin());
    guard::watch(input, &GuardId::parse(id), &SystemBootClock).await?;
    Ok(())
}

/// Starts the guard of a worker whose processes carry `id`.
pub(crate) fn start(id: &GuardId) -> Guard {
    let id = id.as_str().to_owned();
    Guard::start(move || {
        // The running program, even if its file was replaced.
        let own = Path::new("/proc/self/exe");
        let mut command = Command::new(own);
        command
            .arg0("cueline")
            .args(["guard", &id])
            .env_clear()
            // A directory that is in use could not be unmounted.
            .current_dir("/");
        if let Some(filter) = std::env::var_os("CUELINE_LOG") {
            command.env("CUELINE_LOG", filter);
        }
        command
    })
}
