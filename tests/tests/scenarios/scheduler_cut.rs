//! One of two schedulers reaches the store and not the broker. The other one takes over its claims within seconds, and no
//! attempt starts twice. When the link heals, what the first one sent meanwhile arrives.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use cueline_runtime::{Clock as _, SystemClock};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::proxy::{Link, Proxy};
use cueline_test_servers::rabbitmq::Rabbit;
use cueline_test_support::{eventually, try_eventually};
use cueline_tests::cluster::{Cluster, WITHIN, database};

/// Fire times that have to start during the cut.
const CUT_MS: i64 = 25_000;
/// Without the takeover, runs wait for the end of the cut. It takes about 6 s; a busy machine needs longer.
const TAKEN_OVER_MS: i64 = 15_000;
const IN_TIME_MS: i64 = 5_000;
/// The jobs with their periods. Each is no multiple of the time between two polls, so that both schedulers claim runs.
const JOBS: [(&str, &str); 4] = [
    ("a", "700ms"),
    ("b", "900ms"),
    ("c", "1100ms"),
    ("d", "1300ms"),
];

#[derive(Debug)]
struct Start {
    job: String,
    attempt: (String, String),
    fire_at: i64,
    late_ms: i64,
}

/// The lines `job run attempt fire-time time` that the handlers wrote. A line that is being written is left out.
fn starts(cluster: &Cluster) -> Result<Vec<Start>> {
    let text = std::fs::read_to_string(cluster.path("starts")).unwrap_or_default();
    let lines = text.split_inclusive('\n').filter(|l| l.ends_with('\n'));
    let start = |line: &str| {
        let mut words = line.split_whitespace().map(str::to_owned);
        let mut word = || words.next().context("five words");
        let (job, attempt) = (word()?, (word()?, word()?));
        let (fire_at, at): (i64, i64) = (word()?.parse()?, word()?.parse()?);
        Ok(Start {
            job,
            attempt,
            fire_at,
            late_ms: at - fire_at,
        })
    };
    lines.map(start).collect()
}

/// Waits until each job has started for a fire time after this instant.
async fn wait_for_starts(cluster: &Cluster, after: i64) -> Result<()> {
    let started = try_eventually("each job starts", WITHIN, async || {
        let mut latest: BTreeMap<String, i64> = BTreeMap::new();
        for start in starts(cluster)? {
            let known = latest.entry(start.job).or_default();
            *known = start.fire_at.max(*known);
        }
        let is_done = JOBS.iter().all(|(job, _)| latest.get(*job) > Some(&after));
        anyhow::Ok(if is_done {
            Ok(())
        } else {
            Err(format!("{latest:?}"))
        })
    });
    started.await.with_context(|| cluster.logs())
}

/// Waits until the scheduler that is cut off says that it claims nothing, or that it does.
async fn wait_for_claims(cluster: &Cluster, paused: bool) -> Result<()> {
    let said = eventually(format!("claims are paused: {paused}"), WITHIN, async || {
        let stats = cluster.client.get_from(0, "/stats").await;
        let why = stats.map_err(|e| format!("{e:#}"))?["claims_paused"].take();
        let reached = (why.is_string() == paused).then_some(());
        reached.ok_or_else(|| why.to_string())
    });
    said.await.with_context(|| cluster.logs())
}

/// The host and port in the address of a broker.
fn server_of(url: &str) -> Result<&str> {
    let rest = url.split_once("://").context("an address has a scheme")?.1;
    let authority = rest.split('/').next().unwrap_or(rest);
    Ok(authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host))
}

async fn the_other_scheduler_takes_over(broker: String) -> Result<()> {
    let (_postgres, store) = database()?;
    let server = server_of(&broker)?;
    let proxy = Proxy::start(server.parse()?)?;
    let through = broker.replacen(server, &proxy.addr().to_string(), 1);
    let mut cluster = Cluster::new(store, through).await?;
    let mut cut = cluster.scheduler(&[])?;
    cluster.wait_until_ready(&mut cut).await?;
    cluster.broker = broker;
    let mut healthy = cluster.scheduler_beside(&[])?;
    let mut worker = cluster.worker("w")?;
    cluster.wait_for_executor("w").await?;
    let log = cluster.path("starts");
    let jobs = JOBS.map(|(job, every)| {
        format!(
            r#"
[[job]]
name = "{job}"
schedule = {{ every = "{every}" }}
handler = {{ shell = "echo {job} $CUELINE_RUN_ID $CUELINE_ATTEMPT $CUELINE_FIRE_TIME_MS $(date +%s%3N) >> {}" }}
"#,
            log.display()
        )
    });
    cluster.apply(&jobs.concat()).await?;
    wait_for_starts(&cluster, SystemClock.now_ms() + 5_000).await?;

    let stats = cluster.client.get_from(0, "/stats").await?;
    let published = stats["since_start"]["published"].as_u64();
    ensure!(published > Some(0), "it publishes a part: {stats}");
    let cut_at = SystemClock.now_ms();
    proxy.set(Link::HalfOpen);
    wait_for_claims(&cluster, true).await?;
    let paused_ms = SystemClock.now_ms() - cut_at;
    wait_for_starts(&cluster, cut_at + CUT_MS).await?;
    proxy.heal();
    wait_for_claims(&cluster, false).await?;
    let healed_at = SystemClock.now_ms();
    wait_for_starts(&cluster, healed_at + 10_000).await?;
    check(&starts(&cluster)?, cut_at, paused_ms).with_context(|| cluster.logs())?;
    worker.terminate().await?;
    healthy.terminate().await?;
    cut.terminate().await
}

fn check(starts: &[Start], cut_at: i64, paused_ms: i64) -> Result<()> {
    let attempts: BTreeSet<_> = starts.iter().map(|start| &start.attempt).collect();
    ensure!(attempts.len() == starts.len(), "an attempt started twice");
    let latest = |from: i64, to: i64| {
        let within = starts
            .iter()
            .filter(|start| (from..to).contains(&(start.fire_at - cut_at)));
        within.map(|start| start.late_ms).max().unwrap_or_default()
    };
    let (at_first, later) = (latest(-5_000, TAKEN_OVER_MS), latest(TAKEN_OVER_MS, CUT_MS));
    println!(
        "claims paused after {paused_ms} ms; latest start {at_first} ms after its fire time, {later} ms later in the cut"
    );
    ensure!(at_first <= TAKEN_OVER_MS, "late at first: {at_first} ms");
    ensure!(later <= IN_TIME_MS, "late in the cut: {later} ms");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn on_nats_the_other_scheduler_takes_over_from_one_that_is_cut_off() -> Result<()> {
    let nats = Nats::start(Version::V2_12)?;
    the_other_scheduler_takes_over(nats.url()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn on_rabbitmq_the_other_scheduler_takes_over_from_one_that_is_cut_off() -> Result<()> {
    let rabbit = Rabbit::start()?;
    the_other_scheduler_takes_over(rabbit.url("/")).await
}
