//! A disk that is full: the server says so, lives on, and when there is room again it goes on by itself; nothing is lost and nothing happens twice.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cueline_broker::{Driver as _, Outgoing, QueueId, Settlement};
use cueline_broker_embedded::{EmbeddedDriver, EmbeddedOptions};
use cueline_store::Store as _;
use cueline_store_sqlite::{SqliteOptions, SqliteStore};
use cueline_tests::standalone::last_lines;
use cueline_tests::witness::{Note, What};
use cueline_tests::{Standalone, Tmpfs, Witness, until, witness};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

const DISK_KIB: u32 = 48 * 1_024;

/// What is deleted when room is needed: about as much as the logs beside the files may have, for they are copied into the files only when
/// they have 16 MiB or, once the disk was full, before anything else is written.
const BALLAST: usize = 40 * 1_024 * 1_024;

/// Jobs that say much, and jobs that say nothing.
const LOUD: usize = 3;
const PLAIN: usize = 3;
const EVERY_MS: i64 = 200;

const WITHIN: Duration = Duration::from_mins(1);

/// The jobs. The loud ones are silent from the time on when `hush` is there.
fn jobs(witness: &Witness, hush: &Path) -> Value {
    let (program, file) = (witness::program(), witness.path().display());
    let bear = format!("{} {file} 5", program.display());
    let loud = format!(
        "{bear} || exit 1; [ -e {} ] || head -c 200000 /dev/zero | tr '\\0' x | fold -w 1000",
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
    let plain = (0..PLAIN).map(|i| job(format!("plain-{i}"), &bear));
    Value::Array(loud.chain(plain).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_stops_everything_until_there_is_room() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let Some(_disk) = Tmpfs::mount(&data, DISK_KIB)? else {
        return Ok(());
    };
    let ballast = data.join("ballast");
    std::fs::write(&ballast, vec![0x2a; BALLAST])?;
    // Neither is on the disk that fills up.
    let witness = Witness::in_folder(folder.path());
    let hush = folder.path().join("hush");

    let mut server = Standalone::start(&data, &[]).await?;
    server.apply(&jobs(&witness, &hush)).await?;
    until("it says often that the disk is full", WITHIN, async || {
        Ok((complaints(&server) >= 30).then_some(()))
    })
    .await
    .with_context(|| format!("{}\n{}", sizes(&data), last_lines(&data)))?;
    lives_on(&mut server).await?;

    std::fs::write(&hush, "")?;
    let before = witness.notes()?.len();
    std::fs::remove_file(&ballast)?;
    until("it goes on", WITHIN, async || {
        Ok((witness.notes()?.len() > before + 100).then_some(()))
    })
    .await
    .with_context(|| format!("{}\n{}", sizes(&data), last_lines(&data)))?;
    the_books_agree(server, &data, &witness).await
}

/// Lets all come to an end, and compares what the database says with what the handlers wrote down.
async fn the_books_agree(server: Standalone, data: &Path, witness: &Witness) -> Result<()> {
    for name in names() {
        // The disk may be full again for a moment.
        until("a job is paused", WITHIN, async || {
            let path = format!("/jobs/{name}/pause");
            let (status, _) = server.call(Method::POST, &path, None).await?;
            Ok(status.is_success().then_some(()))
        })
        .await?;
    }
    server.quiet(WITHIN).await?;
    let runs = server.all_runs().await?;
    let wrong = audit(&runs, &witness.notes()?);
    ensure!(
        wrong.is_empty(),
        "{}\n{}",
        wrong.join("\n"),
        last_lines(data)
    );
    let log = server.log();
    ensure!(server.terminate().await?.code() == Some(0), "it failed");
    ensure!(!log.contains("panicked"), "{log}");
    println!(
        "{} runs, {} notes, {} lines of log",
        runs.len(),
        witness.notes()?.len(),
        log.lines().count()
    );
    Ok(())
}

/// How often one of so many writes may be refused on a disk that its log fills again and again.
const WRITES: usize = 600;
const REFUSED: usize = 60;

/// Fills the disk by `write`, gives back half a MiB, and writes on: the log beside the file, which holds the same pages over and over, must be
/// emptied before it takes that room as well.
async fn fill_and_go_on(data: &Path, mut write: impl AsyncFnMut() -> Result<()>) -> Result<()> {
    let ballast = data.join("ballast");
    std::fs::write(&ballast, vec![0x2a; 512 * 1_024])?;
    let mut written = 0;
    while let Ok(()) = write().await {
        written += 1;
        ensure!(written < 10_000, "the disk is never full");
    }
    std::fs::remove_file(&ballast)?;
    let mut refused = 0;
    for _ in 0..WRITES {
        refused += usize::from(write().await.is_err());
    }
    println!("{written} writes until it was full; then {refused} of {WRITES} refused");
    ensure!(refused < REFUSED, "{refused} of {WRITES} were refused");
    Ok(())
}

#[tokio::test]
async fn the_stores_log_does_not_fill_the_disk_for_good() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let Some(_disk) = Tmpfs::mount(folder.path(), 2_048)? else {
        return Ok(());
    };
    let file = folder.path().join("store.db");
    let store = SqliteStore::open(&file, SqliteOptions::default()).await?;
    let spec = json!({ "name": "job", "group": "default", "schedule": { "manual": true }, "handler": { "native": "noop" } });
    store
        .apply_jobs(&[serde_json::from_value(spec)?], false)
        .await?;
    let (job, mut enabled) = ("job".parse()?, true);
    fill_and_go_on(folder.path(), async || {
        enabled = !enabled;
        store.set_job_enabled(&job, enabled, "test").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_queues_log_does_not_fill_the_disk_for_good() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let Some(_disk) = Tmpfs::mount(folder.path(), 2_048)? else {
        return Ok(());
    };
    let file = folder.path().join("queue.db");
    let driver = EmbeddedDriver::open(&file, EmbeddedOptions::default()).await?;
    driver.declare(&QueueId::Results).await?;
    fill_and_go_on(folder.path(), async || {
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

/// How many lines of the log say what is wrong.
fn complaints(server: &Standalone) -> usize {
    let log = server.log();
    log.lines()
        .filter(|line| line.contains("disk is full"))
        .count()
}

/// With a full disk it answers, and says why it does not do what it is asked to.
async fn lives_on(server: &mut Standalone) -> Result<()> {
    let ended = server.ended()?;
    ensure!(ended.is_none(), "it ended: {ended:?}; {}", server.log());
    server.get("/stats").await?;
    server.get("/runs").await?;
    until("a change is refused", WITHIN, async || {
        let job = json!({ "name": "one-more", "schedule": { "manual": true }, "params": "x".repeat(60_000), "handler": { "native": "noop" } });
        let body = json!({ "jobs": [job], "dry_run": false });
        let (status, answer) = server
            .call(Method::POST, "/jobs/apply", Some(&body))
            .await?;
        if status.is_success() {
            return Ok(None);
        }
        ensure!(status == StatusCode::SERVICE_UNAVAILABLE, "{status} {answer}");
        ensure!(answer.to_string().contains("the disk is full"), "{answer}");
        Ok(Some(()))
    })
    .await
}

fn names() -> impl Iterator<Item = String> {
    let loud = (0..LOUD).map(|i| format!("loud-{i}"));
    loud.chain((0..PLAIN).map(|i| format!("plain-{i}")))
}

/// Compares what the database says with what the handlers wrote down.
fn audit(runs: &[Value], notes: &[Note]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut seen = HashMap::<i64, [usize; 2]>::new();
    for note in notes {
        let counts = seen.entry(note.run).or_default();
        match note.what {
            What::Start => counts[0] += 1,
            What::End => counts[1] += 1,
            What::Overlap | What::Fail | What::Stop => wrong.push(format!("{note:?}")),
        }
    }
    let mut fire_times = BTreeMap::<&str, Vec<i64>>::new();
    for run in runs {
        let booked = run["id"].as_i64().and_then(|id| seen.remove(&id));
        let good = match run["state"].as_str() {
            Some("succeeded") => booked == Some([1, 1]) && run["attempt"] == 1,
            // The pause at the end met it before its trigger had gone out.
            Some("skipped") => booked.is_none() && run["message"].to_string().contains("paused"),
            _ => false,
        };
        if !good {
            wrong.push(format!("noted {booked:?}: {run}"));
        }
        if let (Some(job), Some(at)) = (run["job"].as_str(), run["fire_at"].as_i64()) {
            fire_times.entry(job).or_default().push(at);
        }
    }
    wrong.extend(seen.iter().map(|run| format!("of no run: {run:?}")));
    for name in names() {
        let mut times = fire_times.remove(&*name).unwrap_or_default();
        times.sort_unstable();
        if times.len() < 10 {
            wrong.push(format!("{name} has {} runs", times.len()));
        }
        let gaps = times
            .windows(2)
            .filter(|pair| pair[1] - pair[0] != EVERY_MS);
        wrong.extend(gaps.map(|gap| format!("{name}: {gap:?}")));
    }
    wrong
}
