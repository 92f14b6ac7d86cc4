//! Calendars and maintenance windows on a cluster with two schedulers: once a command has returned, no scheduler fires an
//! excluded time, whatever it has in its memory (G3), and each excluded fire time is accounted for (G1).

use anyhow::{Context as _, Result, ensure};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_support::eventually;
use cueline_tests::cluster::{Cluster, WITHIN, database};
use serde_json::Value;

const FILE: &str = r#"
[[calendar]]
name = "freeze"
dates = ["2001-01-01"]

[[job]]
name = "tick"
schedules = [{ every = "500ms" }, { every = "1s" }]
calendars = ["freeze"]
handler = { shell = "true" }

[[job]]
name = "other"
schedule = { every = "500ms" }
labels = { tier = "1" }
handler = { shell = "true" }
"#;

/// Every instant of these tests is within this calendar.
const FROZEN: &str = r#"
[[calendar]]
name = "freeze"
dates = ["2001-01-01", "2020-01-01/2099-12-31"]
"#;

/// The fire times of a job's runs that were to be executed, in milliseconds, newest first.
async fn fire_times(cluster: &Cluster, job: &str) -> Result<Vec<i64>> {
    let listed = cluster
        .client
        .get(&format!("/runs?job={job}&limit=1000"))
        .await?;
    let runs = listed["runs"].as_array().context("a list")?;
    let executed = runs.iter().filter(|run| run["state"] != "skipped");
    Ok(executed.filter_map(|run| run["fire_at"].as_i64()).collect())
}

async fn wait_for_runs(cluster: &Cluster, job: &str, after: i64) -> Result<()> {
    let what = format!("{job} fires after {after}");
    let fired = eventually(what, WITHIN, async || {
        let found = fire_times(cluster, job).await;
        let found = found.map_err(|error| format!("{error:#}"))?;
        let new = found.iter().filter(|at| **at > after).count();
        if new >= 3 {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    });
    fired.await.with_context(|| cluster.logs())
}

async fn now(cluster: &Cluster) -> Result<i64> {
    let page = cluster.client.get("/jobs").await?;
    page["now"].as_i64().context("a time")
}

/// No run is for a fire time after `since`, although the other job goes on.
async fn ensure_silent(cluster: &Cluster, silent: &str, other: &str, since: i64) -> Result<()> {
    let later = now(cluster).await? + 2_000;
    wait_for_runs(cluster, other, later).await?;
    let times = fire_times(cluster, silent).await?;
    let wrong: Vec<&i64> = times.iter().filter(|at| **at > since).collect();
    ensure!(
        wrong.is_empty(),
        "{silent} fired at {wrong:?} after {since}"
    );
    Ok(())
}

#[tokio::test]
async fn excluded_jobs_do_not_fire_at_any_scheduler() -> Result<()> {
    let nats = Nats::start(Version::V2_12)?;
    let (_postgres, store) = database()?;
    let cluster = Cluster::new(store, nats.url()).await?;
    let mut first = cluster.scheduler(&[])?;
    cluster.wait_until_ready(&mut first).await?;
    let mut second = cluster.scheduler_beside(&[])?;
    let mut worker = cluster.worker("one")?;
    std::fs::write(cluster.path("jobs.toml"), FILE)?;
    std::fs::write(cluster.path("frozen.toml"), FROZEN)?;
    cluster
        .run(&["job", "apply", "-f", "jobs.toml"])
        .await?
        .success()?;
    wait_for_runs(&cluster, "tick", 0).await?;
    // Two schedules with the same instant give one run (G2).
    let times = fire_times(&cluster, "tick").await?;
    let mut once = times.clone();
    once.dedup();
    ensure!(once == times, "{times:?}");

    cluster
        .run(&["calendar", "apply", "-f", "frozen.toml"])
        .await?
        .success()?;
    let since = now(&cluster).await?;
    ensure_silent(&cluster, "tick", "other", since).await?;
    let used = cluster.run(&["calendar", "delete", "freeze"]).await?;
    ensure!(used.success().is_err(), "a calendar in use was deleted");
    cluster
        .run(&["job", "apply", "-f", "jobs.toml"])
        .await?
        .success()?;
    let thawed = now(&cluster).await?;
    wait_for_runs(&cluster, "tick", thawed).await?;

    let add = [
        "window",
        "add",
        "--label",
        "tier=1",
        "--cron",
        "* * * * *",
        "--duration",
        "2m",
        "--reason",
        "upgrade",
        "-o",
        "json",
    ];
    let added = cluster.run(&add).await?.json()?;
    ensure!(added["jobs"] == 1, "{added}");
    let since = now(&cluster).await?;
    ensure_silent(&cluster, "other", "tick", since).await?;
    let id = added["id"].to_string();
    cluster.run(&["window", "delete", &id]).await?.success()?;
    let open = now(&cluster).await?;
    wait_for_runs(&cluster, "other", open).await?;

    for job in ["tick", "other"] {
        let to = now(&cluster).await?;
        let path = format!("/jobs/{job}/ledger?from={}&to={to}&limit=1000", to - 10_000);
        let ledger = cluster.client.get(&path).await?;
        let entries = ledger["entries"].as_array().context("a list")?;
        let missing: Vec<&Value> = entries
            .iter()
            .filter(|entry| entry["state"].is_null())
            .collect();
        ensure!(
            missing.len() <= 2,
            "{job}: {missing:?} of {}",
            entries.len()
        );
    }
    worker.terminate().await?;
    second.terminate().await?;
    first.terminate().await
}
