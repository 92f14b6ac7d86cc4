//! Clients that connect and say nothing take no descriptors from jobs.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cueline_test_servers::free_port;
use cueline_test_support::try_eventually;
use cueline_tests::{Process, Standalone, program};
use serde_json::json;
use tokio::net::TcpStream;

/// The server's limit of descriptors.
const DESCRIPTORS: usize = 320;

/// As many as the server could have descriptors.
const SILENT: usize = DESCRIPTORS;

const WITHIN: Duration = Duration::from_mins(2);

/// A server whose limit of descriptors is low and cannot be raised.
fn limited(data: &Path, port: u16) -> Result<Process> {
    let listen = format!("127.0.0.1:{port}");
    let start = format!("ulimit -n {DESCRIPTORS}; exec \"$0\" \"$@\"");
    let cueline = program::cueline();
    let args = [
        "-c",
        &start,
        cueline.to_str().context("a path of letters")?,
        "standalone",
        "--listen",
        &listen,
        "--concurrency",
        "4",
        "--data",
        data.to_str().context("a path of letters")?,
    ];
    let folder = data.parent().context("a folder")?;
    let process = Process::new("limited", "/bin/sh".into(), &args, folder);
    Ok(process.env("XDG_STATE_HOME", data.with_extension("state")))
}

/// Waits until at least `least` runs have succeeded, and returns how many. None may have failed.
pub(crate) async fn succeed(server: &Standalone, least: usize) -> Result<usize> {
    try_eventually("runs succeed", WITHIN, async || {
        let runs = match server.all_runs().await {
            Ok(runs) => runs,
            // The server may close a connection that this client has kept. The next look opens another one.
            Err(error) => return anyhow::Ok(Err(error.to_string())),
        };
        let failed: Vec<_> = runs.iter().filter(|r| r["state"] == "failed").collect();
        ensure!(failed.is_empty(), "{failed:?}");
        let succeeded = runs.iter().filter(|r| r["state"] == "succeeded").count();
        let enough = (succeeded >= least).then_some(succeeded);
        Ok(enough.ok_or_else(|| format!("{succeeded} runs")))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_silent_clients_as_descriptors_do_not_stop_jobs() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let port = free_port()?;
    let server = Standalone::launch(limited(&data, port)?, &data, port).await?;
    let job = json!({ "name": "tick", "schedule": { "every": "500ms" }, "handler": { "command": ["true"] } });
    server.apply(&json!([job])).await?;
    succeed(&server, 1).await?;

    let mut silent = Vec::with_capacity(SILENT);
    for _ in 0..SILENT {
        silent.push(TcpStream::connect(("127.0.0.1", port)).await?);
    }
    let before = succeed(&server, 1).await?;
    succeed(&server, before + 5).await?;
    drop(silent);
    server.terminate().await
}
