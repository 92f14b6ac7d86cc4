//! On a full disk the server logs the cause and keeps running. When there is room again it continues by itself. No run
//! is lost or doubled.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cueline_broker::{Driver as _, Outgoing, QueueId, Settlement};
use cueline_broker_embedded::{EmbeddedDriver, EmbeddedOptions};
use cueline_model::{ExecutorId, Heartbeat, Session};
use cueline_store::Store as _;
use cueline_store_sqlite::{SqliteOptions, SqliteStore};
use cueline_test_support::try_eventually;
use cueline_tests::execution_log::{Entry, Event};
use cueline_tests::{ExecutionLog, Standalone, Tmpfs, program};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

const DISK_KIB: u32 = 48 * 1_024;

/// A file that the test deletes to make room. It is about as large as the write-ahead logs may grow. SQLite copies them
/// into the database files only at 16 MiB or, once the disk was full, before the next write.
const BALLAST: usize = 40 * 1_024 * 1_024;

/// Jobs that print much, and jobs that print nothing.
const LOUD: usize = 3;
const PLAIN: usize = 3;
const EVERY_MS: i64 = 200;

const WITHIN: Duration = Duration::from_mins(2);

/// The jobs. The loud ones print nothing once the file `hush` exists.
fn jobs(log: &ExecutionLog, hush: &Path) -> Value {
    let (program, file) = (program::test_command(), log.path().display());
    let record = format!("{} {file} 5", program.display());
    let loud = format!(
        "{record} || exit 1; [ -e {} ] || head -c 200000 /dev/zero | tr '\\0' x | fold -w 1000",
        hush.display()
    );
    let job = |name: String, command: &str| {
        json!({
            "name": name,
            "schedule": { "every": format!("{EVERY_MS}ms") },
            "misfire": { "policy": "catch_up", "grace": "1h", "catch_up_limit": 10_000 },
            "block": "serial",
            "handler": { "shell": command },
        })
    };
    let loud = (0..LOUD).map(|i| job(format!("loud-{i}"), &loud));
    let plain = (0..PLAIN).map(|i| job(format!("plain-{i}"), &record));
    Value::Array(loud.chain(plain).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_continue_when_a_full_disk_has_room_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let Some(_disk) = Tmpfs::mount(&data, DISK_KIB)? else {
        return Ok(());
    };
    let ballast = data.join("ballast");
    std::fs::write(&ballast, vec![0x2a; BALLAST])?;
    // Both are on another disk.
    let log = ExecutionLog::in_folder(folder.path());
    let hush = folder.path().join("hush");

    let mut server = Standalone::start(&data, &[]).await?;
    server.apply(&jobs(&log, &hush)).await?;
    try_eventually(
        "the log often says that the disk is full",
        WITHIN,
        async || {
            server.check_running()?;
            let lines = disk_full_lines(&server);
            anyhow::Ok((lines >= 30).then_some(()).ok_or(lines))
        },
    )
    .await
    .with_context(|| format!("{}\n{}", sizes(&data), server.last_lines()))?;
    check_answers(&mut server).await?;

    std::fs::write(&hush, "")?;
    let before = log.entries()?.len();
    std::fs::remove_file(&ballast)?;
    try_eventually("the jobs run again", WITHIN, async || {
        let more = log.entries()?.len() - before;
        anyhow::Ok((more > 100).then_some(()).ok_or(more))
    })
    .await
    .with_context(|| format!("{}\n{}", sizes(&data), server.last_lines()))?;
    check_consistency(server, &log).await
}

/// Waits until every run has ended, and compares the database with the execution log.
async fn check_consistency(server: Standalone, log: &ExecutionLog) -> Result<()> {
    for name in names() {
        // The disk may be full again for a moment.
        try_eventually(format!("{name} is paused"), WITHIN, async || {
            let path = format!("/jobs/{name}/pause");
            let (status, answer) = server.call(Method::POST, &path, None).await?;
            anyhow::Ok(status.is_success().then_some(()).ok_or(answer))
        })
        .await?;
    }
    server.wait_until_all_ended(WITHIN).await?;
    let (runs, entries) = (server.all_runs().await?, log.entries()?);
    let violations = violations(&runs, &entries);
    ensure!(
        violations.is_empty(),
        "{}\n{}",
        violations.join("\n"),
        server.last_lines()
    );
    let printed = server.log();
    server.terminate().await?;
    ensure!(!printed.contains("panicked"), "{printed}");
    println!(
        "{} runs, {} entries in the execution log, {} lines of the server's log",
        runs.len(),
        entries.len(),
        printed.lines().count()
    );
    Ok(())
}

/// Of so many writes fewer than `REFUSED` may fail on a disk that the write-ahead log fills again and again. The first room
/// was freed by hand, so they have to fill the disk a second time.
const WRITES: usize = 3_000;
const REFUSED: usize = 60;

/// Fills the disk by `write`, frees half a MiB, and continues to write. SQLite must empty the write-ahead log before it
/// fills that room as well.
async fn fill_and_continue(data: &Path, mut write: impl AsyncFnMut() -> Result<()>) -> Result<()> {
    let ballast = data.join("ballast");
    std::fs::write(&ballast, vec![0x2a; 512 * 1_024])?;
    let mut written = 0;
    while let Ok(()) = write().await {
        written += 1;
        ensure!(written < 10_000, "the disk does not fill up");
    }
    std::fs::remove_file(&ballast)?;
    let mut refused = 0;
    for _ in 0..WRITES {
        refused += usize::from(write().await.is_err());
    }
    println!("{written} writes until it was full; then {refused} of {WRITES} failed");
    ensure!(refused < REFUSED, "{refused} of {WRITES} writes failed");
    Ok(())
}

#[tokio::test]
async fn the_stores_write_ahead_log_does_not_fill_the_disk_for_good() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let Some(_disk) = Tmpfs::mount(folder.path(), 2_048)? else {
        return Ok(());
    };
    let file = folder.path().join("store.db");
    let store = SqliteStore::open(&file, SqliteOptions::default()).await?;
    // A heartbeat replaces the one before, so that only the log grows.
    let heartbeat = Heartbeat {
        executor: ExecutorId {
            group: "default".parse()?,
            name: "worker-1".parse()?,
        },
        incarnation: "1".to_owned(),
        session: Session(1),
        capabilities: vec!["native:work".repeat(50)],
        capacity: 8,
        labels: cueline_model::ExecutorLabels::default(),
        weight: cueline_model::Weight::default(),
        held: 0,
        running: 0,
        draining: false,
        gone: false,
        refusal: None,
    };
    fill_and_continue(folder.path(), async || {
        store
            .record_heartbeats(std::slice::from_ref(&heartbeat))
            .await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_queues_write_ahead_log_does_not_fill_the_disk_for_good() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let Some(_disk) = Tmpfs::mount(folder.path(), 2_048)? else {
        return Ok(());
    };
    let file = folder.path().join("queue.db");
    let driver = EmbeddedDriver::open(&file, EmbeddedOptions::default()).await?;
    driver.declare(&QueueId::Results).await?;
    fill_and_continue(folder.path(), async || {
        let message = Outgoing {
            queue: QueueId::Results,
            topic: "job".to_owned(),
            id: "id".to_owned(),
            payload: vec![0x2a; 1_000].into(),
        };
        for answer in driver.publish(&[message]).await? {
            answer.map_err(|refusal| anyhow::anyhow!("{refusal}"))?;
        }
        let fetched = driver.fetch(&QueueId::Results, 10, Duration::ZERO).await?;
        let acks: Vec<_> = fetched
            .iter()
            .map(|d| (d.receipt, Settlement::Ack))
            .collect();
        driver.settle(&QueueId::Results, &acks).await?;
        Ok(())
    })
    .await
}

/// The files on the disk, for messages.
fn sizes(data: &Path) -> String {
    let listed = std::process::Command::new("du")
        .arg("-ak")
        .arg(data)
        .output();
    listed.map_or_else(
        |e| e.to_string(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

/// Lines of the log that name the cause.
fn disk_full_lines(server: &Standalone) -> usize {
    let log = server.log();
    log.lines()
        .filter(|line| line.contains("disk is full"))
        .count()
}

/// On a full disk the server answers, and says why it refuses a change.
async fn check_answers(server: &mut Standalone) -> Result<()> {
    server.check_running()?;
    server.get("/stats").await?;
    server.get("/runs").await?;
    try_eventually("a change is refused", WITHIN, async || {
        let job = json!({ "name": "one-more", "schedule": { "manual": true }, "params": "x".repeat(60_000), "handler": { "native": "noop" } });
        let body = json!({ "jobs": [job], "dry_run": false });
        let (status, answer) = server
            .call(Method::POST, "/jobs/apply", Some(&body))
            .await?;
        if status.is_success() {
            return Ok(Err(status));
        }
        ensure!(status == StatusCode::SERVICE_UNAVAILABLE, "{status} {answer}");
        ensure!(answer.to_string().contains("the disk is full"), "{answer}");
        Ok(Ok(()))
    })
    .await
}

fn names() -> impl Iterator<Item = String> {
    let loud = (0..LOUD).map(|i| format!("loud-{i}"));
    loud.chain((0..PLAIN).map(|i| format!("plain-{i}")))
}

/// Differences between the database and the execution log.
fn violations(runs: &[Value], entries: &[Entry]) -> Vec<String> {
    let mut violations = Vec::new();
    let mut seen = HashMap::<i64, [usize; 2]>::new();
    for entry in entries {
        let counts = seen.entry(entry.run).or_default();
        match entry.event {
            Event::Start => counts[0] += 1,
            Event::End => counts[1] += 1,
            Event::Overlap | Event::Fail | Event::Stop => violations.push(format!("{entry:?}")),
        }
    }
    let mut fire_times = BTreeMap::<&str, Vec<i64>>::new();
    for run in runs {
        let recorded = run["id"].as_i64().and_then(|id| seen.remove(&id));
        let good = match run["state"].as_str() {
            Some("succeeded") => recorded == Some([1, 1]) && run["attempt"] == 1,
            // The job was paused before the trigger was published.
            Some("skipped") => recorded.is_none() && run["message"].to_string().contains("paused"),
            _ => false,
        };
        if !good {
            violations.push(format!("recorded {recorded:?}: {run}"));
        }
        if let (Some(job), Some(at)) = (run["job"].as_str(), run["fire_at"].as_i64()) {
            fire_times.entry(job).or_default().push(at);
        }
    }
    violations.extend(seen.iter().map(|run| format!("of no run: {run:?}")));
    for name in names() {
        let mut times = fire_times.remove(&*name).unwrap_or_default();
        times.sort_unstable();
        if times.len() < 10 {
            violations.push(format!("{name} has {} runs", times.len()));
        }
        let gaps = times
            .windows(2)
            .filter(|pair| pair[1] - pair[0] != EVERY_MS);
        violations.extend(gaps.map(|gap| format!("{name}: {gap:?}")));
    }
    violations
}
