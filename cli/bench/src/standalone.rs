//! Measures a load on a standalone server in this process.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use cueline_model::{Actor, ActorKind, JobSpec, RunState};
use cueline_store::{Run, RunFilter, Store};
use cueline_worker::Handler;
use tokio::time::{Instant, sleep};

use crate::load::Load;
use crate::noop::Noop;
use crate::progress::wait;
use crate::report::{Report, cpu_seconds, mapped_mb, number, resident_mb};
use crate::scratch_dir::ScratchDir;
use crate::{Handlers, Host};

const SETTLE_TIMEOUT: Duration = Duration::from_mins(2);

/// Measures `load` for `seconds`.
pub(crate) async fn run(
    host: &dyn Host,
    load: Load,
    data: Option<&Path>,
    seconds: u64,
) -> Result<Report> {
    let scratch = ScratchDir::new(data, load.name)?;
    let noop = Arc::new(Noop::default());
    let handlers = Handlers::from([("noop".to_owned(), noop.clone() as Arc<dyn Handler>)]);
    let server = host.start_standalone(scratch.path(), handlers).await?;
    server
        .store()
        .apply_jobs(
            &load.jobs,
            false,
            &Actor::new(ActorKind::User, "a benchmark"),
        )
        .await?;
    server.wake();

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
    let (memory, mapped) = (resident_mb("self"), mapped_mb("self"));

    let about = format!("{}, no-op native handler, {seconds} s", load.about);
    let mut report = Report::new(load.name, about);
    report.add("fires/s", number(attempts) / elapsed, "1/s");
    if let Some(cpu) = cpu {
        report.add("CPU per fire", cpu * 1e6 / number(attempts.max(1)), "µs");
        report.add("CPU", cpu / elapsed * 100.0, "% of a core");
    }
    report.add("memory", memory.unwrap_or_default(), "MB");
    report.add("of it mapped from files", mapped.unwrap_or_default(), "MB");
    report.add_lateness(&measured);
    settle(server.store(), &load.jobs, &mut report).await?;
    let (runs, succeeded) = count(server.store()).await?;
    report.add_consistency(runs, succeeded, noop.attempts());
    server.stop().await?;
    Ok(report)
}

/// Disables the jobs, and waits until all committed runs have ended.
pub(crate) async fn settle(
    store: &Arc<dyn Store>,
    jobs: &[JobSpec],
    report: &mut Report,
) -> Result<()> {
    let paused = jobs.iter().cloned().map(|spec| JobSpec {
        enabled: Some(false),
        ..spec
    });
    let paused: Vec<JobSpec> = paused.collect();
    store
        .apply_jobs(&paused, false, &Actor::new(ActorKind::User, "a benchmark"))
        .await?;
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    loop {
        let live: u64 = store.stats().await?.live.iter().map(|(_, n)| n).sum();
        if live == 0 || Instant::now() > deadline {
            report.add("runs not ended", number(live), "");
            return Ok(());
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// The number of all runs, and of runs that succeeded at the first attempt.
async fn count(store: &Arc<dyn Store>) -> Result<(u64, u64)> {
    let (mut runs, mut succeeded) = (0_u64, 0_u64);
    let mut filter = RunFilter {
        limit: 1_000,
        ..RunFilter::default()
    };
    loop {
        let page = store.list_runs(&filter).await?;
        runs += page.runs.len() as u64;
        let good = |r: &&Run| r.state == RunState::Succeeded && r.attempt == 1;
        succeeded += page.runs.iter().filter(good).count() as u64;
        if page.next.is_none() {
            return Ok((runs, succeeded));
        }
        filter.after = page.next;
    }
}
