//! A broker that was restarted delivers triggers before it can store heartbeats. A run that starts then would end `lost`
//! at the fence, although nothing but a restart of the broker happened (G10).

use std::time::Duration;

use anyhow::{Result, ensure};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_support::try_eventually;
use cueline_tests::cluster::{Cluster, WITHIN, database};
use tokio::time::{Instant, sleep, sleep_until};

/// The lease is overdue after 10 s and ends after 20 s. The last heartbeat before a pause is up to 5 s old.
const PAUSE: Duration = Duration::from_secs(11);
/// After this time the broker has ended a fetch that was under way, so a trigger that comes then stays in its queue.
const FETCH: Duration = Duration::from_secs(1);
/// A worker that may start a run does so within this time.
const STARTS_WITHIN: Duration = Duration::from_secs(3);

/// NATS forgets proofs when it ends, and a scheduler declares them again. While the only scheduler is stopped, NATS
/// delivers triggers and takes records of starts, and stores no heartbeat.
#[tokio::test]
async fn a_restarted_broker_that_stores_no_heartbeats_starts_no_run() -> Result<()> {
    let mut nats = Nats::start(Version::V2_12)?;
    let (_postgres, store) = database()?;
    let cluster = Cluster::new(store, nats.url()).await?;
    let mut scheduler = cluster.scheduler(&[])?;
    cluster.wait_until_ready(&mut scheduler).await?;
    let mut worker = cluster.worker("one")?;
    cluster.wait_for_executor("one").await?;
    let ran = cluster.path("ran");
    cluster
        .apply(&format!(
            r#"
[[job]]
name = "job"
schedule = {{ manual = true }}
handler = {{ shell = "echo $CUELINE_RUN_ID >> {}; sleep 12" }}
"#,
            ran.display()
        ))
        .await?;

    worker.pause()?;
    let paused = Instant::now();
    sleep_until(paused + FETCH).await;
    let run = cluster.trigger("job").await?;
    cluster.wait_for_state(&run, "queued").await?;
    scheduler.pause()?;
    nats.kill()?;
    nats.start_again()?;
    // Only the time since its last proof makes a lease overdue.
    sleep_until(paused + PAUSE).await;
    worker.resume()?;
    let overdue = try_eventually("an overdue lease", WITHIN, async || {
        let log = worker.log();
        let is_overdue = log.contains("broker lease was not renewed in time");
        anyhow::Ok(is_overdue.then_some(()).ok_or("no such line"))
    });
    let overdue = overdue.await;
    sleep(STARTS_WITHIN).await;
    let started = std::fs::read_to_string(&ran);
    scheduler.resume()?;
    ensure!(started.is_err(), "run {run} has started: {started:?}");
    overdue.map_err(|e| e.context(cluster.logs()))?;
    cluster.wait_for_state(&run, "succeeded").await?;
    let text = std::fs::read_to_string(&ran)?;
    ensure!(text == format!("{run}\n"), "run {run} started as {text:?}");
    worker.terminate().await?;
    scheduler.terminate().await
}
