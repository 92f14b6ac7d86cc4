//! Limits over executors and schedulers, while some of them are killed: never more attempts at work than the concurrency
//! key allows, and no more dispatches than the rate allows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::rabbitmq::Rabbit;
use cueline_test_support::try_eventually;
use cueline_tests::Standalone;
use cueline_tests::cluster::{Cluster, WITHIN, database};
use serde_json::Value;

const TIMES: [&str; 2] = ["--failover-after", "6s"];
/// Attempts of both jobs of the key at work.
const PLACES: usize = 3;
/// Dispatches of the rated job in a second.
const RATE: usize = 4;
const RATED: &str = "/runs?job=rated&limit=1000";
/// Starts before a kill.
const STARTS: usize = 25;

#[derive(Debug)]
struct Line {
    event: String,
    run: String,
    worker: String,
}

/// The lines that the handlers wrote. Each is one write, so they are in the order of the events.
fn lines(log: &Path) -> Vec<Line> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let line = |line: &str| {
        let mut words = line.split(' ').map(str::to_owned);
        let mut word = || words.next().unwrap_or_default();
        Line {
            event: word(),
            run: word(),
            worker: word(),
        }
    };
    text.lines().map(line).collect()
}

/// Notes that the handlers of a worker have been killed.
fn note_kill(log: &Path, worker: &str) -> Result<()> {
    let mut file = OpenOptions::new().append(true).open(log)?;
    // `writeln!` would write each part alone, and lines of handlers could come between them.
    let line = format!("killed - {worker}\n");
    file.write_all(line.as_bytes()).context("notes the kill")
}

/// Two jobs that share a key, and one with a rate. All of them ask for more than they get.
fn jobs(log: &Path) -> String {
    let log = log.display();
    let said = |event: &str| format!("echo {event} $CUELINE_RUN_ID $CUELINE_EXECUTOR >> {log}");
    let (start, end) = (said("start"), said("end"));
    let keyed = |name: &str| {
        format!(
            r#"
[[job]]
name = "{name}"
schedule = {{ every = "300ms" }}
misfire = {{ policy = "catch_up", grace = "1h", catch_up_limit = 1000 }}
block = {{ parallel = 50 }}
on_lost = "rerun"
concurrency = {{ key = "db", limit = {PLACES} }}
handler = {{ shell = "{start}; sleep 0.6; {end}" }}
"#
        )
    };
    format!(
        r#"{}{}
[[job]]
name = "rated"
schedule = {{ every = "100ms" }}
misfire = {{ policy = "catch_up", grace = "1h", catch_up_limit = 1000 }}
block = {{ parallel = 50 }}
rate_limit = {{ count = {RATE}, per = "second", key = "mail" }}
handler = {{ shell = "true" }}
"#,
        keyed("a"),
        keyed("b")
    )
}

/// Counts the attempts at work after each line. A kill ends those of its worker. The worker `gone` does not come back: what
/// it writes after that is from a handler that was being killed.
fn check_places(lines: &[Line], gone: Option<&str>) -> Result<()> {
    let mut at_work: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let (mut most, mut is_gone) = (0, false);
    for (number, line) in lines.iter().enumerate() {
        let of_gone = Some(line.worker.as_str()) == gone;
        is_gone |= of_gone && line.event == "killed";
        if of_gone && is_gone {
            at_work.remove(line.worker.as_str());
            continue;
        }
        let of_worker = at_work.entry(&line.worker).or_default();
        match line.event.as_str() {
            "start" => _ = of_worker.insert(&line.run),
            "end" => _ = of_worker.remove(line.run.as_str()),
            _ => of_worker.clear(),
        }
        let now: usize = at_work.values().map(BTreeSet::len).sum();
        ensure!(now <= PLACES, "line {number}: {now} at work: {at_work:?}");
        most = most.max(now);
    }
    ensure!(most == PLACES, "all places are used: {most}");
    Ok(())
}

/// Counts the dispatches of the whole test. Each was confirmed soon after it.
fn check_rate(runs: &Value) -> Result<()> {
    let runs = runs["runs"].as_array().context("a list of runs")?;
    let times = runs.iter().filter_map(|run| run["queued_at"].as_i64());
    let times: BTreeSet<i64> = times.collect();
    let dispatched = runs.iter().filter(|run| run["queued_at"].is_i64()).count();
    let (first, last) = (times.first(), times.last());
    let took_ms = last.context("some")? - first.context("some")?;
    let seconds = usize::try_from(took_ms / 1_000)?;
    ensure!(seconds >= 5, "{seconds} s");
    // The first confirmation is later than its dispatch, by less than two seconds.
    let most = RATE * (seconds + 3);
    ensure!(dispatched <= most, "{dispatched} in {seconds} s");
    ensure!(dispatched >= 2 * RATE, "the rate is used: {dispatched}");
    Ok(())
}

async fn wait_for_starts(log: &Path, more: usize) -> Result<Vec<Line>> {
    let starts = |lines: &[Line]| lines.iter().filter(|line| line.event == "start").count();
    let before = starts(&lines(log));
    try_eventually("attempts start", WITHIN, async || {
        let seen = lines(log);
        anyhow::Ok(if starts(&seen) >= before + more {
            Ok(seen)
        } else {
            Err(format!("{} starts", starts(&seen)))
        })
    })
    .await
}

async fn limits_hold_through_kills(broker: String) -> Result<()> {
    let (_postgres, store) = database()?;
    let cluster = Cluster::new(store, broker).await?;
    let mut one = cluster.scheduler(&TIMES)?;
    cluster.wait_until_ready(&mut one).await?;
    let mut two = cluster.scheduler_beside(&TIMES)?;
    let mut workers = Vec::new();
    for name in ["w1", "w2", "w3"] {
        let worker = cluster.worker_with(name, "signing.key.public", &TIMES)?;
        workers.push((name, worker));
    }
    for (name, _) in &workers {
        cluster.wait_for_executor(name).await?;
    }
    let log = cluster.path("log");
    cluster.apply(&jobs(&log)).await?;
    let tested = async {
        let seen = wait_for_starts(&log, STARTS).await?;
        let killed = seen.last().map(|line| line.worker.clone());
        let killed = killed.unwrap_or_default();
        for (name, worker) in &mut workers {
            if *name == killed {
                worker.kill().await?;
                note_kill(&log, name)?;
            }
        }
        two.kill().await?;
        wait_for_starts(&log, 2 * STARTS).await?;
        check_places(&lines(&log), Some(&killed))?;
        check_rate(&cluster.client.get(RATED).await?)?;
        for (name, worker) in &mut workers {
            if *name != killed {
                worker.terminate().await?;
            }
        }
        one.terminate().await
    };
    tested.await.map_err(|e| e.context(cluster.logs()))
}

#[tokio::test(flavor = "multi_thread")]
async fn on_nats_limits_hold_through_kills() -> Result<()> {
    let nats = Nats::start(Version::V2_12)?;
    limits_hold_through_kills(nats.url()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn on_rabbitmq_limits_hold_through_kills() -> Result<()> {
    let rabbit = Rabbit::start()?;
    limits_hold_through_kills(rabbit.url("/")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn standalone_limits_hold_through_kills() -> Result<()> {
    const ARGS: &[&str] = &["--workers", "3"];
    let folder = tempfile::tempdir()?;
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    let file = folder.path().join("jobs.toml");
    std::fs::write(&file, jobs(&log))?;
    let mut server = Standalone::start(&data, ARGS).await?;
    let apply = ["job", "apply", "-f", &file.to_string_lossy()];
    server.run(&apply).await?.success()?;
    for _ in 0..2 {
        wait_for_starts(&log, STARTS).await?;
        server.kill().await?;
        // The next start ends what still runs, before it starts anything.
        server = Standalone::start(&data, ARGS).await?;
        for name in ["worker-1", "worker-2", "worker-3"] {
            note_kill(&log, name)?;
        }
    }
    wait_for_starts(&log, STARTS).await?;
    check_places(&lines(&log), None)?;
    check_rate(&server.get(RATED).await?)?;
    server.terminate().await
}
