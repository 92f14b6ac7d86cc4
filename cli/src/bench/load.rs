//! Loads: jobs with a no-op native handler, through the whole pipeline in this process.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use cueline_model::{JobSpec, RunState};
use cueline_store::RunFilter;
use cueline_worker::{Context, Failure, Handler, Output};
use hdrhistogram::Histogram;
use tokio::time::{Instant, sleep};

use super::report::{Report, cpu_seconds, resident_mb};
use crate::standalone::{Composition, CompositionOptions, DataDir};

/// A directory that is deleted at the end, unless the user named its parent.
pub(super) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    pub(super) fn new(parent: Option<&Path>, name: &str) -> Result<Self> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let path = parent.join(format!("cueline-bench-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path)
            .with_context(|| format!("--data: failed to make {}", path.display()))?;
        Ok(Self { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.path) {
            eprintln!("failed to delete {}: {e}", self.path.display());
        }
    }
}

/// Jobs to load a composition with.
pub(super) struct Load {
    name: &'static str,
    about: String,
    jobs: Vec<JobSpec>,
    /// What is measured starts after this.
    warm_up: Duration,
}

/// Counts and times the attempts; does nothing else.
#[derive(Default)]
struct Noop {
    attempts: AtomicU64,
    measured: Mutex<Measured>,
}

struct Measured {
    lateness_us: Histogram<u64>,
    on: bool,
}

impl Default for Measured {
    fn default() -> Self {
        let lateness_us = Histogram::new_with_max(3_600_000_000, 3)
            .expect("3 digits up to an hour are valid bounds");
        Self {
            lateness_us,
            on: false,
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "lateness is measured in microseconds, finer than a Clock tells"
)]
fn now_us() -> i64 {
    jiff::Timestamp::now().as_microsecond()
}

#[async_trait]
impl Handler for Noop {
    async fn run(&self, cx: Context) -> Result<Output, Failure> {
        let late = now_us() - cx.fire_at().as_millis() * 1_000;
        self.attempts.fetch_add(1, Ordering::Relaxed);
        let mut measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        if measured.on {
            measured
                .lateness_us
                .saturating_record(u64::try_from(late).unwrap_or(0));
        }
        Ok(Output::default())
    }
}

fn job(index: usize, every: &str, anchor_ms: usize) -> JobSpec {
    serde_json::from_value(serde_json::json!({
        "name": format!("bench-{index}"),
        "group": "default",
        "schedule": { "every": every, "anchor": anchor_ms },
        "misfire": { "policy": "catch_up", "grace": "1h", "catch_up_limit": 10_000 },
        "block": "serial",
        "backlog": 1_000_000,
        "handler": { "native": "noop" },
    }))
    .expect("a valid definition")
}

impl Load {
    /// `rate` fires a second, evenly spread.
    pub(super) fn steady(rate: usize) -> Self {
        Self {
            name: "steady",
            about: format!("{rate} fires/s, evenly spread, no-op native handler"),
            jobs: (0..rate).map(|i| job(i, "1s", i * 1_000 / rate)).collect(),
            warm_up: Duration::from_secs(3),
        }
    }

    /// `jobs` fires at each full second.
    pub(super) fn burst(jobs: usize) -> Self {
        Self {
            name: "burst",
            about: format!(
                "{jobs} jobs due at the same instant, every second, no-op native handler"
            ),
            jobs: (0..jobs).map(|i| job(i, "1s", 0)).collect(),
            warm_up: Duration::from_secs(3),
        }
    }

    /// `jobs` jobs with ten fires a second each: more than can be done.
    pub(super) fn throughput(jobs: usize) -> Self {
        Self {
            name: "throughput",
            about: format!(
                "{jobs} jobs due ten times a second, more than can be done, no-op native handler"
            ),
            jobs: (0..jobs).map(|i| job(i, "100ms", i % 100)).collect(),
            warm_up: Duration::from_secs(5),
        }
    }

    pub(super) async fn run(self, data: Option<&Path>, seconds: Duration) -> Result<Report> {
        let scratch = Scratch::new(data, self.name)?;
        let noop = Arc::new(Noop::default());
        let mut options = CompositionOptions::new("default".parse()?, vec!["worker-1".parse()?]);
        options.concurrency = 10_000;
        options.native = HashMap::from([("noop".to_owned(), noop.clone() as Arc<dyn Handler>)]);
        let dir = DataDir::open(scratch.path())?;
        let composition = Composition::start(&dir, &options).await?;
        composition.store.apply_jobs(&self.jobs, false).await?;
        composition.engine.nudges().due.wake();

        progress(self.name, self.warm_up).await;
        measure(&noop, true);
        let before = (
            noop.attempts.load(Ordering::Relaxed),
            cpu_seconds("self"),
            Instant::now(),
        );
        progress(self.name, seconds).await;
        measure(&noop, false);
        let attempts = noop.attempts.load(Ordering::Relaxed) - before.0;
        let elapsed = before.2.elapsed().as_secs_f64();
        let cpu = cpu_seconds("self")
            .zip(before.1)
            .map(|(after, before)| after - before);
        let memory = resident_mb("self");

        let mut report = Report::new(
            self.name,
            format!("{}, {} s", self.about, seconds.as_secs()),
        );
        report.add("fires/s", rate(attempts) / elapsed, "1/s");
        if let Some(cpu) = cpu {
            report.add("CPU per fire", cpu * 1e6 / rate(attempts.max(1)), "µs");
            report.add("CPU", cpu / elapsed * 100.0, "% of a core");
        }
        report.add("memory", memory.unwrap_or_default(), "MB");
        lateness(&noop, &mut report);
        check(&composition, &noop, &self.jobs, &mut report).await?;
        composition.stop(Duration::from_secs(10)).await?;
        Ok(report)
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts of a benchmark are far below 2^52"
)]
fn rate(count: u64) -> f64 {
    count as f64
}

fn measure(noop: &Noop, on: bool) {
    noop.measured
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .on = on;
}

fn lateness(noop: &Noop, report: &mut Report) {
    let measured = noop.measured.lock().unwrap_or_else(PoisonError::into_inner);
    let ms = |us: u64| rate(us) / 1_000.0;
    report.add(
        "lateness p50",
        ms(measured.lateness_us.value_at_quantile(0.5)),
        "ms",
    );
    report.add(
        "lateness p99",
        ms(measured.lateness_us.value_at_quantile(0.99)),
        "ms",
    );
    report.add("lateness max", ms(measured.lateness_us.max()), "ms");
}

/// Stops the schedules, waits until all that was committed has ended, and compares the store with what the handler saw.
async fn check(
    composition: &Composition,
    noop: &Noop,
    jobs: &[JobSpec],
    report: &mut Report,
) -> Result<()> {
    let paused: Vec<JobSpec> = jobs
        .iter()
        .cloned()
        .map(|spec| JobSpec {
            enabled: Some(false),
            ..spec
        })
        .collect();
    composition.store.apply_jobs(&paused, false).await?;
    let deadline = Instant::now() + Duration::from_mins(2);
    loop {
        let live: u64 = composition
            .store
            .stats()
            .await?
            .live
            .iter()
            .map(|(_, n)| n)
            .sum();
        if live == 0 || Instant::now() > deadline {
            report.add("runs not ended", rate(live), "");
            break;
        }
        sleep(Duration::from_millis(50)).await;
    }
    let (mut runs, mut succeeded) = (0_u64, 0_u64);
    let mut filter = RunFilter {
        limit: 1_000,
        ..RunFilter::default()
    };
    loop {
        let page = composition.store.runs(&filter).await?;
        runs += page.len() as u64;
        succeeded += page
            .iter()
            .filter(|r| r.state == RunState::Succeeded && r.attempt == 1)
            .count() as u64;
        filter.before = page.last().map(|r| r.id);
        if page.len() < filter.limit {
            break;
        }
    }
    let attempts = noop.attempts.load(Ordering::Relaxed);
    report.add("runs in the store", rate(runs), "");
    report.add("of these succeeded", rate(succeeded), "");
    report.add("attempts that the handler saw", rate(attempts), "");
    Ok(())
}

/// A bar that shows how far the wait is, on a terminal.
async fn progress(name: &'static str, length: Duration) {
    let bar = indicatif::ProgressBar::new(length.as_secs().max(1))
        .with_message(name)
        .with_style(
            indicatif::ProgressStyle::with_template("{msg:<10} {bar:40} {pos}/{len} s")
                .unwrap_or_else(|_| indicatif::ProgressStyle::default_bar()),
        );
    let end = Instant::now() + length;
    while Instant::now() < end {
        sleep((end - Instant::now()).min(Duration::from_secs(1))).await;
        bar.inc(1);
    }
    bar.finish_and_clear();
}
