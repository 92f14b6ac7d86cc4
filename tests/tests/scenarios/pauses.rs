//! Pauses of several jobs on a cluster with two schedulers: once the command has returned, nothing of them starts (G3), each
//! fire time is accounted for (G1), and a pause ends by itself.

use anyhow::{Context as _, Result, ensure};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_support::eventually;
use cueline_tests::cluster::{Cluster, WITHIN, database};
use serde_json::Value;

/// The jobs are slow, so that there always are runs that wait.
const FILE: &str = r#"
[[job]]
name = "tick"
schedule = { every = "500ms" }
labels = { tier = "1" }
handler = { shell = "sleep 0.7" }

[[job]]
name = "other"
schedule = { every = "500ms" }
handler = { shell = "true" }
"#;

async fn runs(cluster: &Cluster, job: &str) -> Result<Vec<Value>> {
    let path = format!("/runs?job={job}&limit=1000");
    let listed = cluster.client.get(&path).await?;
    Ok(listed["runs"].as_array().context("a list")?.clone())
}

async fn now(cluster: &Cluster) -> Result<i64> {
    let page = cluster.client.get("/jobs").await?;
    page["now"].as_i64().context("a time")
}

/// Waits until the job has succeeded for a fire time after `after`.
async fn wait_for_success(cluster: &Cluster, job: &str, after: i64) -> Result<()> {
    let what = format!("{job} succeeds after {after}");
    let succeeded = eventually(what, WITHIN, async || {
        let found = runs(cluster, job)
            .await
            .map_err(|error| format!("{error:#}"))?;
        let is_new = |run: &&Value| {
            run["state"] == "succeeded" && run["fire_at"].as_i64().is_some_and(|at| at > after)
        };
        match found.iter().find(is_new) {
            Some(_) => Ok(()),
            None => Err(format!("{:?}", found.first())),
        }
    });
    succeeded.await.with_context(|| cluster.logs())
}

#[tokio::test]
async fn a_paused_label_starts_nothing_at_any_scheduler() -> Result<()> {
    let nats = Nats::start(Version::V2_12)?;
    let (_postgres, store) = database()?;
    let cluster = Cluster::new(store, nats.url()).await?;
    let mut first = cluster.scheduler(&[])?;
    cluster.wait_until_ready(&mut first).await?;
    let mut second = cluster.scheduler_beside(&[])?;
    let mut worker = cluster.worker("one")?;
    std::fs::write(cluster.path("jobs.toml"), FILE)?;
    let apply = ["job", "apply", "-f", "jobs.toml"];
    cluster.run(&apply).await?.success()?;
    wait_for_success(&cluster, "tick", 0).await?;

    let pause = [
        "pause", "--label", "tier=1", "--reason", "incident", "--for", "8s", "-o", "json",
    ];
    let paused = cluster.run(&pause).await?.json()?;
    ensure!(paused["jobs"] == 1, "{paused}");
    let since = now(&cluster).await?;
    let waiting = runs(&cluster, "tick").await?;
    let waiting = waiting.iter().filter(|run| run["state"] == "scheduled");
    ensure!(waiting.count() == 0, "a run waits in a pause");
    let listed = cluster.run(&["job", "list"]).await?.success()?;
    ensure!(listed.contains("paused by"), "{listed}");
    wait_for_success(&cluster, "other", since + 3_000).await?;
    for run in runs(&cluster, "tick").await? {
        let published = run["dispatched_at"].as_i64().or(run["queued_at"].as_i64());
        ensure!(
            published.is_none_or(|at| at <= since),
            "published after the pause had returned at {since}: {run}"
        );
    }
    // It ends by itself, and everything is in the ledger.
    wait_for_success(&cluster, "tick", since).await?;
    let to = now(&cluster).await? - 2_000;
    let path = format!(
        "/jobs/tick/ledger?from={}&to={to}&limit=1000",
        since - 3_000
    );
    let ledger = cluster.client.get(&path).await?;
    let entries = ledger["entries"].as_array().context("a list")?;
    let missing: Vec<&Value> = entries
        .iter()
        .filter(|entry| entry["state"].is_null())
        .collect();
    ensure!(missing.is_empty(), "{missing:?} of {}", entries.len());
    let id = paused["id"].to_string();
    ensure!(
        !cluster
            .run(&["pause", "list"])
            .await?
            .success()?
            .contains("incident"),
        "an ended pause is listed"
    );
    cluster.run(&["resume", &id]).await?.success()?;
    worker.terminate().await?;
    second.terminate().await?;
    first.terminate().await
}
