//! Loads through the whole pipeline in this process.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use cueline_model::{JobSpec, RunState};
use cueline_store::{RunFilter, Store};
use cueline_worker::Handler;
use tokio::time::{Instant, sleep};

use super::load::Load;
use super::noop::Noop;
use super::report::{Report, cpu_seconds, number, resident_mb};
use super::scratch::Scratch;
use super::wait;
use crate::standalone::{Composition, CompositionOptions, DataDir};

/// Runs `load` for `seconds`.
pub(super) async fn run(load: Load, data: Option<&Path>, seconds: u64) -> Result<Report> {
    let scratch = Scratch::new(data, load.name)?;
    let noop = Arc::new(Noop::default());
    let mut options = CompositionOptions::new("default".parse()?, vec!["worker-1".parse()?]);
    options.concurrency = 10_000;
    options.native = HashMap::from([("noop".to_owned(), noop.clone() as Arc<dyn Handler>)]);
    let dir = DataDir::open(scratch.path())?;
    let composition = Composition::start(&dir, &options).await?;
    composition.store.apply_jobs(&load.jobs, false).await?;
    composition.engine.admin().wake_claim();

    wait(load.name, load.warm_up).await;
    noop.measure();
    let before = (noop.attempts(), cpu_seconds("self"), Instant::now());
    wait(load.name, seconds).await;
    let attempts = noop.attempts() - before.0;
    let measured = noop.measured();
    let elapsed = before.2.elapsed().as_secs_f64();
    let cpu = cpu_seconds("self")
        .zip(before.1)
        .map(|(after, before)| after - before);
    let memory = resident_mb("self");

    let about = format!("{}, no-op native handler, {seconds} s", load.about);
    let mut report = Report::new(load.name, about);
    report.add("fires/s", number(attempts) / elapsed, "1/s");
    if let Some(cpu) = cpu {
        report.add("CPU per fire", cpu * 1e6 / number(attempts.max(1)), "µs");
        report.add("CPU", cpu / elapsed * 100.0, "% of a core");
    }
    report.add("memory", memory.unwrap_or_default(), "MB");
    report.add_lateness(&measured);
    settle(&composition.store, &load.jobs, &mut report).await?;
    let (runs, succeeded) = count(&composition.store).await?;
    report.add_books(runs, succeeded, noop.attempts());
    composition.stop(Duration::from_secs(10)).await?;
    Ok(report)
}

/// Stops the schedules, and waits until all that was committed has ended.
pub(super) async fn settle(
    store: &Arc<dyn Store>,
    jobs: &[JobSpec],
    report: &mut Report,
) -> Result<()> {
    let paused = jobs.iter().cloned().map(|spec| JobSpec {
        enabled: Some(false),
        ..spec
    });
    let paused: Vec<JobSpec> = paused.collect();
    store.apply_jobs(&paused, false).await?;
    let deadline = Instant::now() + Duration::from_mins(2);
    loop {
        let live = live(store).await?;
        if live == 0 || Instant::now() > deadline {
            report.add("runs not ended", number(live), "");
            return Ok(());
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Runs that have not ended.
async fn live(store: &Arc<dyn Store>) -> Result<u64> {
    Ok(store.stats().await?.live.iter().map(|(_, n)| n).sum())
}

/// All runs, and those that succeeded at the first attempt.
async fn count(store: &Arc<dyn Store>) -> Result<(u64, u64)> {
    let (mut runs, mut succeeded) = (0_u64, 0_u64);
    let mut filter = RunFilter {
        limit: 1_000,
        ..RunFilter::default()
    };
    loop {
        let page = store.runs(&filter).await?;
        runs += page.len() as u64;
        let good = |r: &&cueline_store::Run| r.state == RunState::Succeeded && r.attempt == 1;
        succeeded += page.iter().filter(good).count() as u64;
        filter.before = page.last().map(|r| r.id);
        if page.len() < filter.limit {
            return Ok((runs, succeeded));
        }
    }
}
