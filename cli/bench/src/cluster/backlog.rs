//! How late a fast job is, alone and beside a long backlog of a slow job on the same executors.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cueline_model::{Actor, ActorKind, JobName, RunState};
use cueline_store::{Precondition, TriggerRequest};
use futures_util::{StreamExt as _, TryStreamExt as _};
use tokio::time::{Instant, sleep};

use super::Cluster;
use super::jobs::{STUCK_TIMEOUT, apply};
use crate::load::Load;
use crate::noop::Lateness;
use crate::progress::{bar, wait};
use crate::report::{Report, number};
use crate::worker::Question;

/// More than the runs of the fast job that a scheduler claims before they are due.
const CLAIMED_EARLY: u64 = 50;
/// Runs that are written at the same time.
const AT_ONCE: usize = 32;

/// Measures the first job of `load` for `seconds`, then while the second one is triggered `runs` times, and then for
/// `seconds` beside these. They are left behind.
pub(super) async fn run(
    cluster: &mut Cluster,
    load: &Load,
    runs: usize,
    seconds: u64,
    report: &mut Report,
) -> Result<()> {
    let slow = &load.jobs.last().context("a slow job")?.name;
    apply(cluster, load).await?;
    wait("warming up", load.warm_up).await;
    let alone = measure(cluster, "alone", seconds).await?;
    cluster.ask_workers(Question::Measure).await?;
    let started = Instant::now();
    trigger(cluster, slow, runs).await?;
    wait_until_published(cluster).await?;
    let published = started.elapsed();
    let meanwhile = cluster.measured().await?;
    let waiting = runs_in(cluster, &[RunState::Queued]).await?;
    let beside = measure(cluster, "beside", seconds).await?;
    report.add("waiting before", number(waiting), "runs");
    report.add(
        "waiting after",
        number(runs_in(cluster, &[RunState::Queued]).await?),
        "runs",
    );
    report.add("until all were published", published.as_secs_f64(), "s");
    report.add("fires alone", number(alone.len()), "");
    report.add("fires beside", number(beside.len()), "");
    report.add_times("alone", &alone);
    report.add_times("meanwhile", &meanwhile);
    report.add_times("beside", &beside);
    Ok(())
}

async fn measure(cluster: &mut Cluster, name: &'static str, seconds: u64) -> Result<Lateness> {
    cluster.ask_workers(Question::Measure).await?;
    wait(name, seconds).await;
    cluster.measured().await
}

async fn trigger(cluster: &Cluster, job: &JobName, runs: usize) -> Result<()> {
    let store = &cluster.store.store;
    let request = TriggerRequest {
        job: job.clone(),
        params: None,
        idempotency_key: None,
        run_at: None,
        condition: Precondition::None,
        by: Actor::new(ActorKind::User, "a benchmark"),
    };
    let bar = bar(runs as u64, "triggers");
    let triggered = futures_util::stream::iter(0..runs)
        .map(|_| store.trigger(&request))
        .buffer_unordered(AT_ONCE);
    triggered
        .try_for_each(async |_| {
            bar.inc(1);
            Ok(())
        })
        .await?;
    bar.finish_and_clear();
    Ok(())
}

async fn runs_in(cluster: &Cluster, states: &[RunState]) -> Result<u64> {
    let live = cluster.store.store.stats().await?.live;
    let chosen = live.iter().filter(|(state, _)| states.contains(state));
    Ok(chosen.map(|(_, count)| count).sum())
}

/// Waits until only runs of the fast job are not published, which are claimed early.
async fn wait_until_published(cluster: &Cluster) -> Result<()> {
    let (mut least, mut moved) = (u64::MAX, Instant::now());
    while least > CLAIMED_EARLY {
        sleep(Duration::from_millis(50)).await;
        let left = runs_in(cluster, &[RunState::Scheduled, RunState::Dispatching]).await?;
        if left < least {
            (least, moved) = (left, Instant::now());
        }
        if moved.elapsed() > STUCK_TIMEOUT {
            bail!("{left} runs are not published, and no more are");
        }
    }
    Ok(())
}
