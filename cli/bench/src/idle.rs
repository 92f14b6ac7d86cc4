//! Measures a standalone process without jobs: the time until its first answer, and its cost.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::report::{Report, cpu_seconds, mapped_mb, resident_mb};
use crate::scratch_dir::ScratchDir;

const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts a process five times and waits for its first answer each time. Watches the last process for `watch`.
pub(crate) async fn run(data: Option<&Path>, watch: Duration) -> Result<Report> {
    let scratch = ScratchDir::new(data, "idle")?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let address = format!("127.0.0.1:{port}");
    let mut starts_ms = Vec::new();
    let mut report = Report::new(
        "idle",
        format!(
            "a standalone process without jobs, watched for {} s",
            watch.as_secs()
        ),
    );
    for round in 0..5 {
        let begin = Instant::now();
        let mut child = start(&scratch, &address).await?;
        starts_ms.push(begin.elapsed().as_secs_f64() * 1_000.0);
        if round == 4 {
            add_cost(&child, watch, &mut report).await?;
        }
        child.kill().await?;
    }
    starts_ms.sort_by(f64::total_cmp);
    report.add("first start to answer, min", starts_ms[0], "ms");
    report.add("median of 5", starts_ms[2], "ms");
    report.add("max", starts_ms[4], "ms");
    Ok(report)
}

/// Starts a process, and returns when it answers.
async fn start(scratch: &ScratchDir, address: &str) -> Result<Child> {
    let begin = Instant::now();
    let mut child = Command::new(std::env::current_exe()?)
        .args(["standalone", "--listen", address, "--data"])
        .arg(scratch.path())
        .env("XDG_STATE_HOME", scratch.path())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("failed to start a standalone process")?;
    while !answers(address).await {
        if let Some(status) = child.try_wait()? {
            bail!("the standalone process ended at once, {status}");
        }
        if begin.elapsed() > READY_TIMEOUT {
            bail!(
                "the standalone process did not answer within {} s",
                READY_TIMEOUT.as_secs()
            );
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(child)
}

/// Watches a process for `watch`, and adds its cost.
async fn add_cost(child: &Child, watch: Duration, report: &mut Report) -> Result<()> {
    let pid = child.id().context("the process has ended")?.to_string();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = cpu_seconds(&pid).context("no CPU time to be read")?;
    tokio::time::sleep(watch).await;
    let after = cpu_seconds(&pid).context("no CPU time to be read")?;
    let percent = (after - before) / watch.as_secs_f64() * 100.0;
    report.add("CPU while idle", percent, "% of a core");
    let memory = resident_mb(&pid).context("no memory to be read")?;
    report.add("memory while idle", memory, "MB");
    let mapped = mapped_mb(&pid).context("no memory to be read")?;
    report.add("of it mapped from files", mapped, "MB");
    Ok(())
}

/// Whether the server answers /readyz with 200.
async fn answers(address: &str) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream
            .write_all(b"GET /readyz HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
            .await?;
        let mut answer = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut answer).await?;
        std::io::Result::Ok(answer.starts_with(b"HTTP/1.1 200"))
    };
    ask.await.unwrap_or(false)
}
