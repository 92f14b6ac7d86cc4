//! The scenarios on a cluster.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::time::{Instant, interval, sleep};

use super::jobs::{STUCK_TIMEOUT, apply};
use super::snapshot::Snapshot;
use super::{Cluster, backlog};
use crate::Host;
use crate::args::{Plan, Servers};
use crate::database::has_live_runs;
use crate::load::Load;
use crate::noop::now_us;
use crate::progress::{bar, wait};
use crate::report::{Report, number};
use crate::standalone::settle;
use crate::worker::Question;

/// Schedulers are stopped this long before the jobs are due, so that they do not claim them early.
const STOPPED: Duration = Duration::from_secs(4);

/// Starts a cluster and carries out one plan on it.
pub(crate) async fn run(
    host: &dyn Host,
    plan: Plan,
    servers: &Servers,
    data: Option<&Path>,
    seconds: u64,
) -> Result<Report> {
    let mut cluster = Cluster::start(host, servers, data, plan.name()).await?;
    let report = carry_out(plan, servers, &mut cluster, seconds).await;
    let ended = cluster.end().await;
    let report = report?;
    ended?;
    Ok(report)
}

async fn carry_out(
    plan: Plan,
    servers: &Servers,
    cluster: &mut Cluster,
    seconds: u64,
) -> Result<Report> {
    let name = plan.name();
    let about = |what: &str| {
        format!(
            "{what}; {} scheduler and {} worker processes, PostgreSQL, {}",
            servers.schedulers,
            servers.workers,
            servers.broker_name()
        )
    };
    let mut report = match plan {
        Plan::Load(load) => {
            let mut report = Report::new(name, about(&format!("{}, {seconds} s", load.about)));
            ongoing(cluster, &load, seconds, &mut report).await?;
            report
        }
        Plan::Due(load) => {
            let mut report = Report::new(name, about(&load.about));
            due(cluster, &load, &mut report).await?;
            report
        }
        Plan::Trigger { load, rate } => {
            let what = format!("{}, {rate} a second, {seconds} s", load.about);
            let mut report = Report::new(name, about(&what));
            trigger(cluster, &load, rate, seconds, &mut report).await?;
            report
        }
        Plan::LaneGap(load) => {
            let mut report = Report::new(name, about(&format!("{}, {seconds} s", load.about)));
            lane_gap(cluster, &load, seconds, &mut report).await?;
            report
        }
        Plan::Backlog { load, runs } => {
            let what = format!("{}, {seconds} s each", load.about);
            let mut report = Report::new(name, about(&what));
            backlog::run(cluster, &load, runs, seconds, &mut report).await?;
            // Most runs have not ended, so there is nothing to compare.
            return Ok(report);
        }
        Plan::Idle => {
            let mut report = Report::new(name, about(&format!("no jobs, {seconds} s")));
            wait("settling", 5).await;
            let before = cluster.usage()?;
            wait(name, seconds).await;
            cluster.usage()?.add_since(&before, &mut report);
            report
        }
    };
    let (runs, succeeded) = cluster.database.runs().await?;
    let attempts = cluster.attempts().await?;
    report.add_consistency(runs, succeeded, attempts);
    Ok(report)
}

/// Waits until `all` runs have started and ended, with a progress bar. Returns when the last start was seen.
pub(super) async fn run_all(
    cluster: &mut Cluster,
    name: &'static str,
    all: u64,
) -> Result<Instant> {
    let bar = bar(all, name);
    let (mut seen, mut moved) = (0, Instant::now());
    while seen < all {
        sleep(Duration::from_millis(50)).await;
        let attempts = cluster.attempts().await?;
        if attempts > seen {
            moved = Instant::now();
        }
        if moved.elapsed() > STUCK_TIMEOUT {
            bail!("{attempts} of {all} runs have started, and no more start");
        }
        seen = attempts;
        bar.set_position(seen);
    }
    let mut connection = cluster.database.connect().await?;
    while has_live_runs(&mut connection).await? {
        if moved.elapsed() > STUCK_TIMEOUT {
            bail!("all {all} runs have started, and some do not end");
        }
        sleep(Duration::from_millis(30)).await;
    }
    bar.finish_and_clear();
    Ok(moved)
}

/// Measures jobs that fire repeatedly.
async fn ongoing(
    cluster: &mut Cluster,
    load: &Load,
    seconds: u64,
    report: &mut Report,
) -> Result<()> {
    apply(cluster, load).await?;
    wait("warming up", load.warm_up).await;
    cluster.ask_workers(Question::Measure).await?;
    let before = Snapshot::take(cluster).await?;
    wait(load.name, seconds).await;
    let after = Snapshot::take(cluster).await?;
    let measured = cluster.measured().await?;
    after.add_since(&before, report);
    report.add_lateness(&measured);
    settle(&cluster.store.store, &load.jobs, report).await
}

/// Measures the time from the end of a run to the start of the next one in its lane, where that one waits. A gap counts if
/// both are at the same worker, as runs of a busy lane are.
async fn lane_gap(
    cluster: &mut Cluster,
    load: &Load,
    seconds: u64,
    report: &mut Report,
) -> Result<()> {
    apply(cluster, load).await?;
    wait("warming up", load.warm_up).await;
    cluster.ask_workers(Question::Measure).await?;
    wait(load.name, seconds).await;
    let measured = cluster.measured().await?;
    report.add("gaps", number(measured.len()), "");
    report.add_times("gap", &measured);
    settle(&cluster.store.store, &load.jobs, report).await
}

/// Measures jobs that are all due when the schedulers start.
async fn due(cluster: &mut Cluster, load: &Load, report: &mut Report) -> Result<()> {
    apply(cluster, load).await?;
    cluster.database.settle().await?;
    let late = "applying the jobs took so long that they are due already; measure fewer";
    let until = load.until_due().and_then(|due| due.checked_sub(STOPPED));
    sleep(until.context(late)?).await;
    // The stop is shorter than heartbeats stay valid, so the schedulers know the workers when they start again.
    cluster.stop_schedulers().await?;
    sleep(load.until_due().unwrap_or_default()).await;
    cluster.ask_workers(Question::Measure).await?;
    let all = load.jobs.len() as u64;
    let before = Snapshot::take(cluster).await?;
    cluster.start_schedulers()?;
    run_all(cluster, load.name, all).await?;
    let after = Snapshot::take(cluster).await?;
    after.add_since(&before, report);
    Ok(())
}

/// Measures triggers through the API, one after the other.
async fn trigger(
    cluster: &mut Cluster,
    load: &Load,
    rate: usize,
    seconds: u64,
    report: &mut Report,
) -> Result<()> {
    apply(cluster, load).await?;
    cueline_runtime::tls::install_provider();
    let token = cluster.token()?;
    let client = reqwest::Client::builder().timeout(STUCK_TIMEOUT).build()?;
    let url = format!("{}/jobs/{}/trigger", cluster.urls[0], load.jobs[0].name);
    let every = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
    let mut turns = interval(Duration::from_micros(1_000_000 / every));
    let fire = async || -> Result<()> {
        let body = serde_json::json!({ "params": now_us().to_string() });
        let request = client.post(&url).bearer_auth(&token).json(&body);
        let answer = request.send().await?;
        if !answer.status().is_success() {
            bail!(
                "the API answered {}: {}",
                answer.status(),
                answer.text().await?
            );
        }
        Ok(())
    };
    // The first triggers are not measured, because they open connections and read definitions.
    for _ in 0..20 {
        turns.tick().await;
        fire().await?;
    }
    let count = every * seconds;
    let bar = bar(count, load.name);
    let mut workers = std::mem::take(&mut cluster.workers);
    for worker in &mut workers {
        Question::Measure.ask(worker).await?;
    }
    for _ in 0..count {
        turns.tick().await;
        fire().await.context("failed to trigger")?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    cluster.workers = workers;
    report.add("triggers", number(count), "");
    settle(&cluster.store.store, &load.jobs, report).await?;
    let measured = cluster.measured().await?;
    report.add_lateness(&measured);
    Ok(())
}
