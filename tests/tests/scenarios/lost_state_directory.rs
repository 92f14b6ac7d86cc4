//! A worker loses its state directory. What ran there ends `lost`, what waited there runs, and nothing runs twice
//! (G4, G5).

use anyhow::{Context as _, Result, ensure};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::rabbitmq::Rabbit;
use cueline_tests::cluster::{Cluster, database};

/// The scheduler compares attempts that were queued this long ago, and compares a missing one again after this time.
const TIMES: [&str; 2] = ["--failover-after", "18s"];

async fn nothing_runs_twice_after_a_lost_state_directory(broker: String) -> Result<()> {
    let (_postgres, store) = database()?;
    let cluster = Cluster::new(store, broker).await?;
    let mut scheduler = cluster.scheduler(&TIMES)?;
    cluster.wait_until_ready(&mut scheduler).await?;
    // A worker that loses its key as well is another worker, until an operator revokes the lost key.
    let extra = [&TIMES[..], &["--worker-key", "one.key"]].concat();
    let mut worker = cluster.worker_with("one", "signing.key.public", &extra)?;
    cluster.wait_for_executor("one").await?;
    let (ran, may_end) = (cluster.path("ran"), cluster.path("may-end"));
    cluster
        .apply(&format!(
            r#"
[[job]]
name = "job"
schedule = {{ manual = true }}
handler = {{ shell = "echo $CUELINE_RUN_ID >> {}; until [ -e {} ]; do sleep 0.1; done" }}
"#,
            ran.display(),
            may_end.display()
        ))
        .await?;
    let running = cluster.trigger("job").await?;
    cluster.wait_for_state(&running, "running").await?;
    let waiting = cluster.trigger("job").await?;
    cluster.wait_for_state(&waiting, "queued").await?;

    worker.kill().await?;
    std::fs::rename(cluster.path("state-one"), cluster.path("lost"))?;
    std::fs::write(&may_end, "")?;
    worker.start()?;
    for (run, state) in [(&running, "lost"), (&waiting, "succeeded")] {
        let ended = cluster.wait_for_state(run, state).await;
        ended.with_context(|| cluster.logs())?;
    }
    let path = format!("/runs/{running}");
    let message = cluster.client.get(&path).await?["message"].take();
    let is_clear = message
        .as_str()
        .is_some_and(|m| m.contains("its state directory was lost"));
    ensure!(is_clear, "{message}");
    let text = std::fs::read_to_string(&ran)?;
    let started: Vec<&str> = text.lines().collect();
    ensure!(
        started == [&running, &waiting],
        "started {started:?}, triggered {running} and {waiting}"
    );
    worker.terminate().await?;
    scheduler.terminate().await
}

#[tokio::test]
async fn nothing_runs_twice_after_a_lost_state_directory_with_nats() -> Result<()> {
    let nats = Nats::start(Version::V2_12)?;
    nothing_runs_twice_after_a_lost_state_directory(nats.url()).await
}

#[tokio::test]
async fn nothing_runs_twice_after_a_lost_state_directory_with_rabbitmq() -> Result<()> {
    let rabbit = Rabbit::start()?;
    nothing_runs_twice_after_a_lost_state_directory(rabbit.url("/")).await
}
