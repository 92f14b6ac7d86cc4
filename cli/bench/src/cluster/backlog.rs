//! How late a fast job is, alone and beside a long backlog of a slow job on the same executors.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cueline_model::{Actor, ActorKind, JobName, RunState};
use cueline_store::{Precondition, TriggerRequest};
use futures_util::{StreamExt as _, TryStreamExt as _};
use tokio::time::{Instant, sleep};

use super::Cluster;
use super::scenarios::{STUCK_TIMEOUT, apply};
use crate::load::Load;
use crate::noop::Lateness;
use crate::progress::{bar, wait};
use crate::report::{Report, number};
use crate::worker::Question;

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
    wait_until_queued(cluster, runs).await?;
    let queued = started.elapsed();
    let meanwhile = cluster.measured().await?;
    let waiting = queued_runs(cluster).await?;
    let beside = measure(cluster, "beside", seconds).await?;
    report.add("waiting before", number(waiting), "runs");
    report.add("waiting after", number(queued_runs(cluster).await?), "runs");
    report.add("until all were queued", queued.as_secs_f64(), "s");
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

async fn queued_runs(cluster: &Cluster) -> Result<u64> {
    let live = cluster.store.store.stats().await?.live;
    let queued = live.iter().filter(|(state, _)| *state == RunState::Queued);
    Ok(queued.map(|(_, count)| count).sum())
}

/// Waits until nearly all runs are at the executors. Some of them may have run meanwhile.
async fn wait_until_queued(cluster: &Cluster, runs: usize) -> Result<()> {
    let enough = runs as u64 - runs as u64 / 20;
    let (mut seen, mut moved) = (0, Instant::now());
    while seen < enough {
        sleep(Duration::from_millis(50)).await;
        let queued = queued_runs(cluster).await?;
        if queued > seen {
            (seen, moved) = (queued, Instant::now());
        }
        if moved.elapsed() > STUCK_TIMEOUT {
            bail!("{queued} of {runs} runs are queued, and no more are");
        }
    }
    Ok(())
}
