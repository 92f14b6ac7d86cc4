//! A new user's first minute: the example jobs, seen through the commands that a user types.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cueline_test_servers::free_port;
use cueline_test_support::try_eventually;
use cueline_tests::Standalone;
use cueline_tests::standalone::process;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/jobs.toml");

/// Each example shows its effect within a minute of the start. A busy machine needs more.
const WITHIN: Duration = Duration::from_mins(3);

/// A standstill of the machine may keep the lines of a run until its end, so several runs are followed.
const RUNS_TO_FOLLOW: usize = 3;

/// Starts a server with the example jobs, whose files go to the folder.
async fn start(folder: &Path) -> Result<Standalone> {
    let port = free_port()?;
    let examples = std::fs::read_to_string(EXAMPLES)?;
    ensure!(
        examples.contains("127.0.0.1:7800"),
        "no example calls the server"
    );
    let jobs = folder.join("jobs.toml");
    std::fs::write(
        &jobs,
        examples.replace("127.0.0.1:7800", &format!("127.0.0.1:{port}")),
    )?;
    let data = folder.join("data");
    let process = process(&data, port, &["--jobs", jobs.to_str().context("a name")?])?;
    Standalone::launch(process.env("TMPDIR", folder), &data, port).await
}

/// The effects that no run shows yet.
fn missing(runs: &[Value]) -> Vec<&'static str> {
    let is = |run: &Value, job: &str, state: &str| run["job"] == job && run["state"] == state;
    let seen = |job: &str, state: &str| runs.iter().any(|run| is(run, job, state));
    let sharded = || {
        let good = || {
            runs.iter()
                .filter(|run| is(run, "checksum-shards", "succeeded"))
        };
        good().any(|one| {
            let shards: BTreeSet<_> = good()
                .filter(|run| run["fire_at"] == one["fire_at"] && run["shard"]["total"] == 4)
                .filter_map(|run| run["shard"]["index"].as_u64())
                .collect();
            shards == BTreeSet::from([0, 1, 2, 3])
        })
    };
    let retried = runs
        .iter()
        .any(|run| is(run, "flaky", "succeeded") && run["attempt"] == 3);
    let child = runs.iter().any(|run| {
        let parent = runs
            .iter()
            .find(|r| r["id"] == run["parent"] && !run["parent"].is_null());
        is(run, "archive-report", "succeeded")
            && run["kind"] == "child"
            && parent.is_some_and(|parent| {
                // Its parameter is the last line of its parent's output.
                is(parent, "rotate-log", "succeeded") && run["params"] == parent["output"]
            })
    });
    let startup = runs.iter().filter(|run| run["job"] == "at-start").count() == 1
        && runs
            .iter()
            .any(|run| is(run, "at-start", "succeeded") && run["kind"] == "startup");
    let all = [
        ("disk-report succeeded", seen("disk-report", "succeeded")),
        ("write-log succeeded", seen("write-log", "succeeded")),
        ("api-check succeeded", seen("api-check", "succeeded")),
        ("flaky succeeded at its third attempt", retried),
        ("too-slow timed out", seen("too-slow", "timed_out")),
        (
            "slow-discard was discarded",
            seen("slow-discard", "discarded"),
        ),
        (
            "slow-discard succeeded, too",
            seen("slow-discard", "succeeded"),
        ),
        (
            "slow-serial was discarded at its limit",
            seen("slow-serial", "discarded"),
        ),
        ("slow-cover was covered", seen("slow-cover", "covered")),
        ("four shards of one fire", sharded()),
        ("a child with its parent's output", child),
        ("one startup run", startup),
    ];
    let missing = all.iter().filter(|(_, seen)| !seen);
    missing.map(|(what, _)| *what).collect()
}

async fn runs(server: &Standalone, more: &[&str]) -> Result<Vec<Value>> {
    let args = [&["run", "list", "--limit", "1000"], more].concat();
    let mut page = server.json(&args).await?;
    serde_json::from_value(page["runs"].take()).context("no list of runs")
}

async fn every_example_shows_its_effect(server: &Standalone) -> Result<()> {
    try_eventually("each example shows its effect", WITHIN, async || {
        let left = missing(&runs(server, &[]).await?);
        let all = left.is_empty().then_some(());
        Ok(all.ok_or(format!("not yet: {left:?}")))
    })
    .await
}

/// Lines arrive while a run goes on.
async fn a_log_can_be_followed(server: &Standalone) -> Result<()> {
    let mut live = Vec::new();
    for _ in 0..RUNS_TO_FOLLOW {
        live.push(lines_while_it_ran(server).await?);
        if live.last() >= Some(&3) {
            return Ok(());
        }
    }
    bail!("only {live:?} of the lines of several runs arrived while they ran")
}

/// Follows the log of a run with eight steps of a second each. The command ends with the run. Returns how many lines arrived
/// while it ran.
async fn lines_while_it_ran(server: &Standalone) -> Result<usize> {
    let job = ["--job", "slow-serial"];
    let id = try_eventually("a run waits in its lane", WITHIN, async || {
        let runs = runs(server, &job).await?;
        let waiting = runs
            .iter()
            .find(|r| r["state"] == "queued" && r["due_at"].as_i64() <= r["queued_at"].as_i64());
        let id = waiting.and_then(|run| run["id"].as_i64());
        anyhow::Ok(id.ok_or(format!("none of {} runs waits", runs.len())))
    })
    .await?
    .to_string();
    let mut follower = server
        .command(&["run", "logs", "-f", &id])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(follower.stdout.take().context("piped")?).lines();
    let mut seen = Vec::new();
    let mut live = 0;
    let reading = async {
        while let Some(line) = lines.next_line().await? {
            let run = server.json(&["run", "show", &id]).await?;
            live += usize::from(run["state"] == "running");
            seen.push(line);
        }
        Ok::<_, anyhow::Error>(follower.wait().await?)
    };
    let status = tokio::time::timeout(WITHIN, reading)
        .await
        .context("the command does not end with the run")??;
    ensure!(
        status.success(),
        "following ended with {status}, after {seen:?}"
    );
    let steps: Vec<_> = (1..=8).map(|i| format!("step {i} of 8")).collect();
    let own: Vec<_> = seen
        .iter()
        .filter(|line| line.starts_with("step"))
        .cloned()
        .collect();
    ensure!(own == steps, "it printed {seen:?}");
    let run = server.json(&["run", "show", &id]).await?;
    ensure!(run["state"] == "succeeded", "{run}");
    Ok(live)
}

async fn a_job_can_be_triggered(server: &Standalone) -> Result<()> {
    let output = server
        .run(&["trigger", "hello", "--param", "World", "--wait"])
        .await?
        .success()?;
    ensure!(
        output.contains("queued → worker-1") && output.contains("succeeded in"),
        "{output}"
    );
    let hello = runs(server, &["--job", "hello"]).await?;
    ensure!(
        hello.len() == 1
            && hello[0]["output"] == "Hello from Cueline"
            && hello[0]["params"] == "World",
        "{hello:?}"
    );
    Ok(())
}

/// The processes with this text in their environment.
fn processes_with(text: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let path = entry?.path();
        // Not a process, not readable, or ended meanwhile: it does not count.
        let environment = std::fs::read(path.join("environ")).unwrap_or_default();
        if environment
            .windows(text.len())
            .any(|part| part == text.as_bytes())
        {
            found.push(path);
        }
    }
    Ok(found)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_jobs_do_what_they_say() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path()).await?;
    tokio::try_join!(
        every_example_shows_its_effect(&server),
        a_log_can_be_followed(&server),
        a_job_can_be_triggered(&server),
    )?;

    // It stops while a handler runs, and leaves no process behind.
    let marker = format!("CUELINE_WORKER_STATE={}", folder.path().display());
    try_eventually("a handler runs", WITHIN, async || {
        let none = processes_with(&marker)?.is_empty();
        anyhow::Ok((!none).then_some(()).ok_or("no process"))
    })
    .await?;
    let log = server.log();
    server.terminate().await?;
    assert_eq!(processes_with(&marker)?, Vec::<PathBuf>::new());
    assert!(!log.contains("panicked") && !log.contains("ERROR"), "{log}");
    Ok(())
}
