//! Two namespaces on one cluster have the same local names of jobs and groups. Runs go to the worker of their own
//! namespace, and each namespace sees its own (G18).

use anyhow::{Context as _, Result, ensure};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::rabbitmq::Rabbit;
use cueline_test_support::eventually;
use cueline_tests::cluster::{Cluster, WITHIN, database};
use serde_json::Value;

const JOB: &str = r#"
[[job]]
name = "job"
schedule = { manual = true }
handler = { shell = "true" }
"#;

/// The base of a namespace's paths, and the only executor there.
const NAMESPACES: [(&str, &str, &str); 2] = [
    ("default", "", "one"),
    ("team-a", "/namespaces/team-a", "two"),
];

async fn wait_for_executor(cluster: &Cluster, base: &str, name: &str) -> Result<()> {
    let path = format!("{base}/executors");
    let alive = eventually(format!("{name} is listed"), WITHIN, async || {
        let list = cluster.client.get_from(0, &path).await;
        let list = list.map_err(|error| format!("{error:#}"))?["executors"].take();
        let found = list.as_array().is_some_and(|list| {
            let names: Vec<&Value> = list.iter().map(|one| &one["name"]).collect();
            names == [name]
        });
        if found { Ok(()) } else { Err(list.to_string()) }
    });
    alive.await.with_context(|| cluster.logs())
}

async fn trigger(cluster: &Cluster, namespace: &str) -> Result<String> {
    let command = ["--namespace", namespace, "trigger", "job", "-o", "json"];
    let answer = cluster.run(&command).await?.json()?;
    Ok(answer["runs"][0].to_string())
}

async fn each_namespace_runs_its_own_jobs(broker: String) -> Result<()> {
    let (_postgres, store) = database()?;
    let cluster = Cluster::new(store, broker).await?;
    let mut scheduler = cluster.scheduler(&[])?;
    cluster.wait_until_ready(&mut scheduler).await?;
    let mut one = cluster.worker("one")?;
    let group = ["--group", "team-a/default"];
    let mut two = cluster.worker_with("two", "signing.key.public", &group)?;
    std::fs::write(cluster.path("jobs.toml"), JOB)?;
    for (namespace, base, executor) in NAMESPACES {
        wait_for_executor(&cluster, base, executor).await?;
        let apply = ["--namespace", namespace, "job", "apply", "-f", "jobs.toml"];
        cluster.run(&apply).await?.success()?;
    }
    for _ in 0..3 {
        for (namespace, base, executor) in NAMESPACES {
            let run = trigger(&cluster, namespace).await?;
            let path = format!("{base}/runs/{run}");
            let ended = eventually(format!("run {run} has ended"), WITHIN, async || {
                let shown = cluster.client.get_from(0, &path).await;
                let shown = shown.map_err(|error| format!("{error:#}"))?;
                let has_ended = !shown["ended_at"].is_null();
                if has_ended {
                    Ok(shown)
                } else {
                    Err(shown.to_string())
                }
            });
            let ended = ended.await.with_context(|| cluster.logs())?;
            ensure!(ended["state"] == "succeeded", "{ended}");
            ensure!(ended["executor"] == executor, "{ended}");
            for (_, other, _) in NAMESPACES.iter().filter(|(_, other, _)| *other != base) {
                let path = format!("{other}/runs/{run}");
                let seen = cluster.client.get_from(0, &path).await;
                ensure!(seen.is_err(), "run {run} is seen under {other:?}");
            }
        }
    }
    for (_, base, _) in NAMESPACES {
        let listed = cluster.client.get(&format!("{base}/runs")).await?;
        let count = listed["runs"].as_array().map_or(0, Vec::len);
        ensure!(count == 3, "{base}: {listed}");
    }
    one.terminate().await?;
    two.terminate().await?;
    scheduler.terminate().await
}

#[tokio::test]
async fn each_namespace_runs_its_own_jobs_with_nats() -> Result<()> {
    let nats = Nats::start(Version::V2_12)?;
    each_namespace_runs_its_own_jobs(nats.url()).await
}

#[tokio::test]
async fn each_namespace_runs_its_own_jobs_with_rabbitmq() -> Result<()> {
    let rabbit = Rabbit::start()?;
    each_namespace_runs_its_own_jobs(rabbit.url("/")).await
}
