//! Backfills: a standalone server that is killed in the middle of one, and a cluster of two schedulers of which one is. Each
//! fire time has exactly one run.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_support::eventually;
use cueline_tests::cluster::{Cluster, WITHIN, database};
use cueline_tests::standalone::Standalone;
use serde_json::{Value, json};

/// The number of runs of each fire time.
fn by_fire_time(listed: &Value) -> Result<BTreeMap<i64, usize>> {
    let mut fires = BTreeMap::new();
    for run in listed["runs"].as_array().context("a list")? {
        let at = run["fire_at"].as_i64().context("a time")?;
        *fires.entry(at).or_default() += 1;
    }
    Ok(fires)
}

const FILE: &str = r#"
[[job]]
name = "hourly"
schedule = { cron = "0 * * * *" }
handler = { shell = "sleep 0.05" }

[[job]]
name = "tick"
schedule = { every = "500ms" }
handler = { shell = "true" }
"#;

async fn done(cluster: &Cluster) -> Result<Value> {
    let listed = cluster.client.get("/jobs/hourly/backfills").await?;
    Ok(listed["backfills"][0].clone())
}

/// The number of successful runs of the schedule beside the backfill.
async fn ticks(cluster: &Cluster) -> Result<usize> {
    let listed = cluster
        .client
        .get("/runs?job=tick&state=succeeded&limit=1000")
        .await?;
    Ok(listed["runs"].as_array().context("a list")?.len())
}

/// 120 fire times of the past, three at once.
async fn start_backfill(cluster: &Cluster) -> Result<()> {
    let start = [
        "backfill",
        "start",
        "hourly",
        "--from",
        "2025-01-01T00:00:00Z",
        "--to",
        "2025-01-06T00:00:00Z",
        "--parallel",
        "3",
        "--yes",
        "-o",
        "json",
    ];
    let started = cluster.run(&start).await?.json()?;
    ensure!(started["fires"] == 120, "{started}");
    Ok(())
}

/// Waits until the schedule beside the backfill has this number of successful runs.
async fn goes_on(cluster: &Cluster, least: usize) -> Result<()> {
    let reached = eventually("the schedule goes on", WITHIN, async || {
        match ticks(cluster).await {
            Ok(ticks) if ticks >= least => Ok(()),
            Ok(ticks) => Err(format!("{ticks} of {least} runs")),
            Err(error) => Err(format!("{error:#}")),
        }
    });
    reached.await.with_context(|| cluster.logs())
}

#[tokio::test]
async fn a_backfill_survives_the_death_of_a_scheduler() -> Result<()> {
    let nats = Nats::start(Version::V2_12)?;
    let (_postgres, store) = database()?;
    let cluster = Cluster::new(store, nats.url()).await?;
    let mut first = cluster.scheduler(&[])?;
    cluster.wait_until_ready(&mut first).await?;
    let mut second = cluster.scheduler_beside(&[])?;
    let mut worker = cluster.worker("one")?;
    std::fs::write(cluster.path("jobs.toml"), FILE)?;
    cluster
        .run(&["job", "apply", "-f", "jobs.toml"])
        .await?
        .success()?;
    start_backfill(&cluster).await?;
    let at_start = ticks(&cluster).await?;
    let reached = eventually("ten fire times and three ticks", WITHIN, async || {
        let backfill = done(&cluster).await.map_err(|error| format!("{error:#}"))?;
        let ticks = ticks(&cluster)
            .await
            .map_err(|error| format!("{error:#}"))?;
        match backfill["done"].as_u64() {
            Some(done) if done >= 10 && ticks >= at_start + 3 => Ok(()),
            _ => Err(format!(
                "{ticks} ticks, {at_start} at the start, {backfill}"
            )),
        }
    });
    reached.await.with_context(|| cluster.logs())?;
    // The schedule has run beside it.
    let backfill = done(&cluster).await?;
    ensure!(backfill["state"] == "running", "{backfill}");
    second.kill().await?;
    let at_kill = ticks(&cluster).await?;
    let finished = eventually("the backfill finishes", WITHIN * 3, async || {
        let backfill = done(&cluster).await.map_err(|error| format!("{error:#}"))?;
        if backfill["state"] == "finished" {
            Ok(())
        } else {
            Err(format!("{backfill}"))
        }
    });
    finished.await.with_context(|| cluster.logs())?;
    let listed = cluster
        .client
        .get("/runs?job=hourly&kind=backfill&limit=1000")
        .await?;
    let failed = listed["runs"].as_array().context("a list")?;
    let failed: Vec<&Value> = failed
        .iter()
        .filter(|run| run["state"] != "succeeded")
        .collect();
    ensure!(failed.is_empty(), "{failed:?}");
    let fires = by_fire_time(&listed)?;
    ensure!(fires.len() == 120, "{} fire times", fires.len());
    ensure!(fires.values().all(|runs| *runs == 1), "{fires:?}");
    // The present goes on. A tick that the killed scheduler had claimed holds its lane until the other scheduler takes it over.
    // That may be later than the end of the backfill.
    goes_on(&cluster, at_kill + 5).await?;
    let shown = cluster
        .run(&["backfill", "show", "hourly"])
        .await?
        .success()?;
    ensure!(shown.contains("120 of 120"), "{shown}");
    worker.terminate().await?;
    first.terminate().await
}

/// What is at work at the moment of the kill ends `lost`; nothing is left out, and nothing comes twice.
#[tokio::test]
async fn a_backfill_survives_kills_of_a_standalone_server() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let mut server = Standalone::start(&data, &[]).await?;
    let job = json!({ "name": "hourly", "schedule": { "cron": "0 * * * *" }, "handler": { "shell": "sleep 0.02" } });
    server.apply(&json!([job])).await?;
    let window =
        json!({ "from": "2025-01-01T00:00:00Z", "to": "2025-01-03T00:00:00Z", "parallel": 2 });
    server.post("/jobs/hourly/backfills", &window).await?;
    for least in [5, 20] {
        let reached = eventually("some fire times are done", WITHIN, async || {
            let listed = server.get("/jobs/hourly/backfills").await;
            let listed = listed.map_err(|error| format!("{error:#}"))?;
            match listed["backfills"][0]["done"].as_u64() {
                Some(done) if done >= least => Ok(()),
                _ => Err(format!("{listed}")),
            }
        });
        reached.await?;
        server.kill().await?;
        server = Standalone::start(&data, &[]).await?;
    }
    let finished = eventually("the backfill finishes", WITHIN, async || {
        let listed = server.get("/jobs/hourly/backfills").await;
        let listed = listed.map_err(|error| format!("{error:#}"))?;
        if listed["backfills"][0]["state"] == "finished" {
            Ok(())
        } else {
            Err(format!("{listed}"))
        }
    });
    finished.await?;
    let fires = by_fire_time(
        &server
            .get("/runs?job=hourly&kind=backfill&limit=1000")
            .await?,
    )?;
    ensure!(fires.len() == 48, "{} fire times", fires.len());
    ensure!(fires.values().all(|runs| *runs == 1), "{fires:?}");
    server.terminate().await
}
