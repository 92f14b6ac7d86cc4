//! Which executor gets a run.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::server::{Server, count};

/// The runs of each executor, in the order of their names.
fn shares(server: &Server, runs: &[Value]) -> Vec<usize> {
    let of = |name: &String| {
        runs.iter()
            .filter(|run| run["executor"] == name.as_str())
            .count()
    };
    server.executors.iter().map(of).collect()
}

pub(super) async fn each_route_chooses_an_executor(server: &Server) -> Result<()> {
    let count_of = server.executors.len();
    let last = server.executors.last().context("an executor")?;
    let routes = [
        "first",
        "last",
        "round",
        "lfu",
        "lru",
        "weighted",
        "failover",
        "random",
        "consistent_hash",
        "busyover",
        "least_loaded",
        "any",
    ];
    let mut routes: BTreeMap<String, Value> = routes
        .map(|route| (format!("route-{route}"), route.into()))
        .into();
    routes.insert("route-named".to_owned(), json!({ "executor": last }));
    let job = |(name, route): (&String, &Value)| {
        json!({
            "name": name, "route": route, "schedule": { "manual": true }, "block": { "parallel": 100 },
            "handler": { "shell": "true" },
        })
    };
    let jobs: Vec<Value> = routes.iter().map(job).collect();
    server.apply(&json!(jobs)).await?;
    let all = 2 * count_of;
    for name in routes.keys() {
        for _ in 0..all {
            server.trigger_one(name).await?;
        }
    }
    for name in routes.keys() {
        let ended = |runs: &[Value]| count(runs, "succeeded") == all;
        let runs = server.until(name, "all runs succeed", ended).await?;
        let shares = shares(server, &runs);
        let is_so = match name.as_str() {
            "route-first" => shares[0] == all,
            // The first one may answer too late for some.
            "route-failover" => shares[0] > 0,
            "route-last" | "route-named" => shares[count_of - 1] == all,
            "route-round" | "route-weighted" => shares.iter().all(|share| *share == 2),
            // Each scheduler goes by the runs that it knows of.
            "route-lfu" | "route-lru" => shares.iter().all(|share| *share > 0),
            "route-consistent_hash" => shares.contains(&all),
            _ => shares.iter().sum::<usize>() == all,
        };
        ensure!(is_so, "{name}: {shares:?}");
    }
    Ok(())
}

pub(super) async fn a_selector_that_no_executor_fits_lets_a_run_wait(
    server: &Server,
) -> Result<()> {
    server
        .apply(&json!([{
            "name": "elsewhere", "selector": "zone=mars", "schedule": { "manual": true },
            "dispatch_deadline": "1s", "handler": { "shell": "true" },
        }]))
        .await?;
    let run = server.run_to("elsewhere", "unroutable").await?;
    ensure!(run["executor"].is_null(), "{run}");
    Ok(())
}

pub(super) async fn a_broadcast_reaches_each_executor(server: &Server) -> Result<()> {
    server
        .apply(&json!([{
            "name": "everywhere", "route": "broadcast", "schedule": { "manual": true },
            "handler": { "shell": "echo $CUELINE_SHARD_INDEX of $CUELINE_SHARD_TOTAL" },
        }]))
        .await?;
    let ids = server.trigger("everywhere", &json!({})).await?;
    ensure!(ids.len() == server.executors.len(), "{ids:?}");
    let mut runs = Vec::new();
    for id in ids {
        runs.push(server.reached(id, "succeeded").await?);
    }
    ensure!(
        shares(server, &runs).iter().all(|share| *share == 1),
        "{runs:?}"
    );
    let total = runs.len();
    for run in &runs {
        let expected = format!("{} of {total}", run["shard"]["index"]);
        ensure!(run["output"] == expected.as_str(), "{run}");
    }
    Ok(())
}

pub(super) async fn shards_have_their_items(server: &Server) -> Result<()> {
    server
        .apply(&json!([{
            "name": "sharded", "route": { "sharded": ["0=Beijing", "1=Shanghai", "2=Shenzhen"] },
            "schedule": { "manual": true }, "handler": { "shell": "echo $CUELINE_SHARD_ITEM" },
        }]))
        .await?;
    let ids = server.trigger("sharded", &json!({})).await?;
    let mut items = Vec::new();
    for id in ids {
        let run = server.reached(id, "succeeded").await?;
        items.push(run["output"].as_str().context("an output")?.to_owned());
    }
    items.sort_unstable();
    ensure!(items == ["Beijing", "Shanghai", "Shenzhen"], "{items:?}");
    Ok(())
}
