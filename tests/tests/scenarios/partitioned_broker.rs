//! The server of one worker is cut off from the other servers of the broker, and the worker still reaches it. The
//! worker stops its attempts before they run elsewhere (G10).

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use cueline_test_servers::NatsCluster;
use cueline_test_support::try_eventually;
use cueline_tests::cluster::{Cluster, WITHIN, database};

const RUNS: usize = 3;
/// Both workers must keep their leases until the partition, on a machine that stands still for some seconds.
const TIMES: [&str; 2] = ["--failover-after", "20s"];

/// The times at which each attempt of each run was running, in nanoseconds.
type Ticks = BTreeMap<String, BTreeMap<u32, Vec<i64>>>;

/// Reads the lines `run attempt time` that the handlers wrote. A line that is being written is left out.
fn ticks(cluster: &Cluster) -> Result<Ticks> {
    let text = std::fs::read_to_string(cluster.path("ticks")).unwrap_or_default();
    let mut ticks = Ticks::new();
    for line in text.split_inclusive('\n').filter(|l| l.ends_with('\n')) {
        let mut words = line.split_whitespace();
        let mut word = || words.next().context("three words");
        let (run, attempt, time): (&str, u32, i64) = (word()?, word()?.parse()?, word()?.parse()?);
        let attempts = ticks.entry(run.to_owned()).or_default();
        attempts.entry(attempt).or_default().push(time);
    }
    Ok(ticks)
}

/// Waits until each of `runs` has worked in this attempt.
async fn wait_for_attempt(cluster: &Cluster, runs: &[String], attempt: u32) -> Result<()> {
    let expected = format!("attempt {attempt} of each run works");
    let worked = try_eventually(expected, WITHIN * 2, async || {
        let ticks = ticks(cluster)?;
        let works = |run: &String| ticks.get(run).is_some_and(|all| all.contains_key(&attempt));
        let missing = runs.iter().filter(|run| !works(run)).count();
        anyhow::Ok(if missing == 0 {
            Ok(())
        } else {
            Err(format!("{missing} do not"))
        })
    });
    worked.await.with_context(|| cluster.logs())
}

#[tokio::test]
async fn attempts_behind_a_server_without_the_majority_end_before_they_run_elsewhere() -> Result<()>
{
    let mut nats = tokio::task::spawn_blocking(|| NatsCluster::start(3)).await??;
    let (_postgres, store) = database()?;
    let mut cluster = Cluster::new(store, nats.url(0)).await?;
    let mut scheduler = cluster.scheduler(&[&TIMES[..], &["--broker-replicas", "3"]].concat())?;
    cluster.wait_until_ready(&mut scheduler).await?;
    cluster.broker = nats.url(1);
    let mut two = cluster.worker_with("two", "signing.key.public", &TIMES)?;
    cluster.broker = nats.url(2);
    let mut one = cluster.worker_with("one", "signing.key.public", &TIMES)?;
    for name in ["one", "two"] {
        cluster.wait_for_executor(name).await?;
    }
    let (ticks_file, stop_file) = (cluster.path("ticks"), cluster.path("stop"));
    cluster
        .apply(&format!(
            r#"
[[job]]
name = "job"
schedule = {{ manual = true }}
route = "first"
block = {{ parallel = 4 }}
on_lost = "rerun"
handler = {{ shell = """
while [ ! -e {} ]; do
    echo "$CUELINE_RUN_ID $CUELINE_ATTEMPT $(date +%s%N)" >> {}
    sleep 0.05
done
""" }}
"#,
            stop_file.display(),
            ticks_file.display()
        ))
        .await?;
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        runs.push(cluster.trigger("job").await?);
    }
    wait_for_attempt(&cluster, &runs, 1).await?;

    // A majority of which one server is not current may elect no leader.
    for server in 0..3 {
        nats.wait_until_current(server)?;
    }
    nats.isolate(2)?;
    wait_for_attempt(&cluster, &runs, 2).await?;
    std::fs::write(&stop_file, "")?;
    for run in &runs {
        cluster.wait_for_state(run, "succeeded").await?;
        let run = cluster.client.get(&format!("/runs/{run}")).await?;
        ensure!(run["executor"] == "two", "{run}");
    }
    for (run, attempts) in ticks(&cluster)? {
        let spans: Vec<_> = attempts
            .values()
            .filter_map(|times| Some((times.iter().min()?, times.iter().max()?)))
            .collect();
        let overlaps = spans.windows(2).any(|pair| pair[0].1 >= pair[1].0);
        ensure!(!overlaps, "attempts of run {run} overlap: {spans:?}");
    }

    nats.heal();
    cluster.wait_for_executor("one").await?;
    let last = cluster.trigger("job").await?;
    cluster.wait_for_state(&last, "succeeded").await?;
    one.terminate().await?;
    two.terminate().await?;
    scheduler.terminate().await
}
