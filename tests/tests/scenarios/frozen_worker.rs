//! A worker freezes. What was published to it meanwhile never started, so it runs elsewhere, once, and nothing ends
//! `lost` (G5, G10).

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::rabbitmq::Rabbit;
use cueline_test_support::try_eventually;
use cueline_tests::cluster::{Cluster, WITHIN, database};

/// Runs that are triggered while the worker is frozen.
const RUNS: usize = 20;
/// Long enough for a first trigger before the schedulers notice the freeze. The other worker must keep its lease on a
/// machine that stands still for some seconds.
const TIMES: [&str; 2] = ["--failover-after", "20s"];

async fn what_was_published_to_a_frozen_worker_runs_elsewhere(broker: String) -> Result<()> {
    let (_postgres, store) = database()?;
    let cluster = Cluster::new(store, broker).await?;
    let mut scheduler = cluster.scheduler(&TIMES)?;
    cluster.wait_until_ready(&mut scheduler).await?;
    let mut one = cluster.worker_with("one", "signing.key.public", &TIMES)?;
    let mut two = cluster.worker_with("two", "signing.key.public", &TIMES)?;
    for name in ["one", "two"] {
        cluster.wait_for_executor(name).await?;
    }
    let ran = cluster.path("ran");
    cluster
        .apply(&format!(
            r#"
[[job]]
name = "job"
schedule = {{ manual = true }}
route = "first"
block = {{ parallel = 4 }}
handler = {{ shell = "echo $CUELINE_RUN_ID >> {}" }}
"#,
            ran.display()
        ))
        .await?;
    let first = cluster.trigger("job").await?;
    cluster.wait_for_state(&first, "succeeded").await?;

    one.pause()?;
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        runs.push(cluster.trigger("job").await?);
    }
    let ended = try_eventually("all runs have ended elsewhere", WITHIN, async || {
        let mut states = BTreeMap::<String, usize>::new();
        for run in &runs {
            let run = cluster.client.get(&format!("/runs/{run}")).await?;
            *states.entry(run["state"].to_string()).or_default() += 1;
        }
        let is_done = states.keys().eq(["\"succeeded\""]);
        anyhow::Ok(if is_done {
            Ok(())
        } else {
            Err(format!("{states:?}"))
        })
    });
    let ended = ended.await;
    one.resume()?;
    ended.map_err(|e| e.context(cluster.logs()))?;
    let mut moved = 0;
    for run in &runs {
        let run = cluster.client.get(&format!("/runs/{run}")).await?;
        ensure!(run["executor"] == "two", "{run}");
        moved += usize::from(run["attempt"] == 2);
    }
    // Triggers written after the silence was noticed go to the other worker at once.
    ensure!(moved > 0, "nothing was published to the frozen worker");
    // The worker that was frozen takes new triggers, and runs none of the old ones.
    cluster.wait_for_executor("one").await?;
    let last = cluster.trigger("job").await?;
    cluster.wait_for_state(&last, "succeeded").await?;
    runs.extend([first, last]);
    runs.sort();
    let text = std::fs::read_to_string(&ran)?;
    let mut started: Vec<String> = text.lines().map(str::to_owned).collect();
    started.sort();
    ensure!(started == runs, "started {started:?}, triggered {runs:?}");
    one.terminate().await?;
    two.terminate().await?;
    scheduler.terminate().await
}

#[tokio::test]
async fn what_was_published_to_a_frozen_worker_runs_elsewhere_with_nats() -> Result<()> {
    let nats = Nats::start(Version::V2_12)?;
    what_was_published_to_a_frozen_worker_runs_elsewhere(nats.url()).await
}

#[tokio::test]
async fn what_was_published_to_a_frozen_worker_runs_elsewhere_with_rabbitmq() -> Result<()> {
    let rabbit = Rabbit::start()?;
    what_was_published_to_a_frozen_worker_runs_elsewhere(rabbit.url("/")).await
}
