//! What becomes of work while processes are away.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cueline_test_support::eventually;
use cueline_tests::cluster::WITHIN;
use serde_json::{Value, json};

use super::server::{Server, count, fire_at};

/// The process that runs an attempt dies. The run ends on another executor, or on the same one after its return.
pub(super) async fn an_attempt_whose_worker_dies_runs_again(server: &mut Server) -> Result<()> {
    server
        .apply(&json!([{
            "name": "survives", "schedule": { "manual": true }, "route": "last", "on_lost": "rerun",
            "handler": { "shell": "test $CUELINE_ATTEMPT != 1 || sleep 600" },
        }]))
        .await?;
    let id = server.trigger_one("survives").await?;
    let running = server.reached(id, "running").await?;
    let executor = running["executor"]
        .as_str()
        .context("an executor")?
        .to_owned();
    ensure!(Some(&executor) == server.executors.last(), "{running}");
    server.kill_executor(&executor).await?;
    let run = server.reached(id, "succeeded").await?;
    ensure!(run["attempt"] == 2, "{run}");
    ensure!(run["executor"] == server.executors[0].as_str(), "{run}");
    Ok(())
}

const GRACE_MS: i64 = 2_000;

pub(super) async fn missed_fire_times_follow_the_misfire_policy(server: &mut Server) -> Result<()> {
    let policies = [("skip", 0), ("fire_once", 1), ("catch_up", 2)];
    let job = |policy: &str| {
        json!({
            "name": format!("misfire-{policy}"), "schedule": { "every": "500ms" }, "block": { "parallel": 50 },
            "misfire": { "policy": policy, "grace": "2s", "catch_up_limit": 2 }, "handler": { "shell": "true" },
        })
    };
    let jobs: Vec<Value> = policies.iter().map(|(policy, _)| job(policy)).collect();
    server.apply(&json!(jobs)).await?;
    for (policy, _) in policies {
        let fired = |runs: &[Value]| count(runs, "succeeded") >= 1;
        server
            .until(&format!("misfire-{policy}"), "it fires", fired)
            .await?;
    }
    let stopped_at = server.now().await?;
    server.stop_schedulers().await?;
    // Fire times are missed when they are later than the grace.
    let begun = tokio::time::Instant::now();
    let outage = Duration::from_millis(GRACE_MS.unsigned_abs() + 4_000);
    eventually("fire times are missed", WITHIN, async || {
        let passed = begun.elapsed();
        if passed > outage {
            Ok(())
        } else {
            Err(format!("{passed:?}"))
        }
    })
    .await?;
    server.start_schedulers().await?;
    let started_at = server.now().await?;
    for (policy, late) in policies {
        let name = format!("misfire-{policy}");
        let goes_on = |runs: &[Value]| {
            let new = |run: &&Value| run["state"] == "succeeded" && fire_at(run) > started_at;
            runs.iter().any(|run| new(&run))
        };
        let runs = server.until(&name, "it fires again", goes_on).await?;
        let reason = format!("skipped by misfire policy {policy}");
        let says = |run: &&Value| run["message"].as_str().is_some_and(|m| m.contains(&reason));
        ensure!(runs.iter().any(|run| says(&run)), "{name}: {runs:?}");
        // Written later than the grace allows, and not skipped.
        let is_late = |run: &&Value| {
            let written = run["created_at"].as_i64().unwrap_or_default();
            let in_outage = (stopped_at..started_at).contains(&fire_at(run));
            in_outage && run["state"] != "skipped" && written - fire_at(run) > GRACE_MS
        };
        let found = runs.iter().filter(is_late).count();
        // More may be late if the machine stands still for longer than the grace, but never all of them.
        let is_so = if late == 0 {
            found == 0
        } else {
            (late..=late + 2).contains(&found)
        };
        ensure!(is_so, "{name}: {found} late runs of {runs:?}");
    }
    Ok(())
}
