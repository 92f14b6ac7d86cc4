//! A flow of five jobs, with a kill in the middle: each job fires once in each flow run, after what it waits for, and a
//! failed shard alone is repeated.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_support::try_eventually;
use cueline_tests::Standalone;
use cueline_tests::cluster::{Cluster, WITHIN, database};
use serde_json::{Value, json};

const FLOW_RUNS: usize = 4;

/// `extract` in three shards, one of which fails first; `orders` and a slow `prices`; then `report`. `page` waits for
/// failures, which there are none of.
fn jobs(log: &Path) -> Value {
    let said = |rest: &str| {
        json!({ "shell": format!(
            "echo $CUELINE_JOB $CUELINE_RUN_ID $CUELINE_ATTEMPT $CUELINE_SHARD_INDEX >> {}; {rest}",
            log.display()
        ) })
    };
    let fails_first = "test $CUELINE_SHARD_INDEX != 1 || test $CUELINE_ATTEMPT != 1";
    json!([
        {
            "name": "extract", "schedule": { "manual": true }, "block": { "parallel": 10 },
            "route": { "sharded": ["north", "south", "east"] },
            "retry": { "max": 1, "first": "100ms" }, "on_lost": "rerun", "handler": said(fails_first),
        },
        { "name": "orders", "after": "extract", "block": { "parallel": 10 }, "on_lost": "rerun", "handler": said("echo 12") },
        {
            "name": "prices", "after": "extract", "block": { "parallel": 10 }, "on_lost": "rerun",
            "handler": said("sleep 3; echo 7"),
        },
        {
            "name": "report", "after": { "all": ["orders", "prices"], "pass_output": true }, "block": { "parallel": 10 },
            "on_lost": "rerun", "handler": said("true"),
        },
        { "name": "page", "after": { "any": ["extract", "orders", "prices"], "on": "failure" }, "handler": said("true") },
    ])
}

/// Waits until `prices` is at work in each flow run.
async fn prices_is_at_work(log: &Path) -> Result<()> {
    let at_work = try_eventually("prices is at work", WITHIN, async || {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let started = text.lines().filter(|line| line.starts_with("prices "));
        let started: BTreeSet<&str> = started.filter_map(|line| line.split(' ').nth(1)).collect();
        anyhow::Ok(if started.len() == FLOW_RUNS {
            Ok(())
        } else {
            Err(text)
        })
    });
    at_work.await
}

/// Each flow run has each job once, and `report` has the outputs of both sides. All runs of a flow run have the fire time
/// of the request that began it.
fn check(runs: &[Value]) -> Result<()> {
    let mut flow_runs: BTreeMap<i64, BTreeMap<String, usize>> = BTreeMap::new();
    for run in runs {
        ensure!(run["state"] == "succeeded", "{run}");
        let job = run["job"].as_str().context("no job")?;
        let fire_at = run["fire_at"].as_i64().context("no fire time")?;
        let of_flow = flow_runs.entry(fire_at).or_default();
        *of_flow.entry(job.to_owned()).or_default() += 1;
        let attempt = run["attempt"].as_u64().context("no attempt")?;
        match (job, run["shard"]["index"].as_u64()) {
            ("extract", Some(1)) => ensure!(attempt >= 2, "it fails first: {run}"),
            ("report", _) => ensure!(run["params"] == r#"{"orders":"12","prices":"7"}"#, "{run}"),
            _ => {}
        }
    }
    let whole = [("extract", 3), ("orders", 1), ("prices", 1), ("report", 1)];
    let whole: BTreeMap<String, usize> = whole.map(|(job, runs)| (job.to_owned(), runs)).into();
    ensure!(flow_runs.len() == FLOW_RUNS, "{flow_runs:?}");
    ensure!(
        flow_runs.values().all(|jobs| *jobs == whole),
        "{flow_runs:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_standalone_server_that_is_killed_finishes_its_flow_runs() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let log = folder.path().join("log");
    let server = Standalone::start(&data, &[]).await?;
    server.apply(&jobs(&log)).await?;
    for _ in 0..FLOW_RUNS {
        server.post("/jobs/extract/trigger", &json!({})).await?;
    }
    prices_is_at_work(&log).await?;
    server.kill().await?;
    let server = Standalone::start(&data, &[]).await?;
    all_reports_have_ended(async || server.all_runs().await).await?;
    server.wait_until_all_ended(WITHIN).await?;
    check(&server.all_runs().await?)?;
    server.terminate().await
}

async fn all_reports_have_ended(read: impl AsyncFn() -> Result<Vec<Value>>) -> Result<()> {
    let ended = try_eventually("all reports have ended", WITHIN, async || {
        let runs = read().await?;
        let reports = runs.iter().filter(|run| run["job"] == "report");
        let ended = reports.filter(|run| run["ended_at"].is_i64()).count();
        anyhow::Ok(if ended == FLOW_RUNS {
            Ok(())
        } else {
            Err(json!(runs).to_string())
        })
    });
    ended.await
}

const TIMES: [&str; 2] = ["--failover-after", "6s"];

/// The executors that got shards of one fire of `spread`.
async fn executors_of_a_fire(cluster: &Cluster) -> Result<BTreeSet<String>> {
    let answer = cluster
        .run(&["trigger", "spread", "--wait", "-o", "json"])
        .await?
        .json()?;
    let runs = answer["runs"].as_array().context("no runs")?;
    let names = runs.iter().filter_map(|run| run["executor"].as_str());
    Ok(names.map(str::to_owned).collect())
}

fn named(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn on_nats_a_flow_run_survives_the_kill_of_a_scheduler_and_a_worker() -> Result<()> {
    let nats = Nats::start(Version::V2_12)?;
    let (_postgres, store) = database()?;
    let cluster = Cluster::new(store, nats.url()).await?;
    let mut one = cluster.scheduler(&TIMES)?;
    cluster.wait_until_ready(&mut one).await?;
    let mut two = cluster.scheduler_beside(&TIMES)?;
    let mut workers = Vec::new();
    for name in ["w1", "w2"] {
        workers.push(cluster.worker_with(name, "signing.key.public", &TIMES)?);
    }
    for name in ["w1", "w2"] {
        cluster.wait_for_executor(name).await?;
    }
    let log = cluster.path("log");
    let mut definitions = jobs(&log);
    let spread = json!({
        "name": "spread", "schedule": { "manual": true },
        "route": { "sharded": ["a", "b", "c", "d", "e", "f"] }, "handler": { "shell": "true" },
    });
    definitions.as_array_mut().context("a list")?.push(spread);
    let apply = json!({ "jobs": definitions });
    cluster.client.post("/jobs/apply", &apply).await?;
    // The items are spread over whoever is alive.
    ensure!(executors_of_a_fire(&cluster).await? == named(&["w1", "w2"]));
    for _ in 0..FLOW_RUNS {
        cluster.trigger("extract").await?;
    }
    prices_is_at_work(&log).await?;
    workers[0].kill().await?;
    two.kill().await?;
    let flows = async || {
        let runs = cluster.client.all_runs().await?;
        let of_flow = runs.into_iter().filter(|run| run["job"] != "spread");
        anyhow::Ok(of_flow.collect::<Vec<Value>>())
    };
    let ended = all_reports_have_ended(&flows).await;
    ended.map_err(|e| e.context(cluster.logs()))?;
    check(&flows().await?).map_err(|e| e.context(cluster.logs()))?;
    // They are spread anew when executors go and come.
    ensure!(executors_of_a_fire(&cluster).await? == named(&["w2"]));
    workers.push(cluster.worker_with("w3", "signing.key.public", &TIMES)?);
    cluster.wait_for_executor("w3").await?;
    ensure!(executors_of_a_fire(&cluster).await? == named(&["w2", "w3"]));
    for worker in &mut workers[1..] {
        worker.terminate().await?;
    }
    one.terminate().await
}
