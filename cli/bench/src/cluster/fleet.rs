//! `fleet`: many executors on few processes. Runs the phases in order, and measures their start, a time without jobs and
//! a load.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep};

use super::Cluster;
use super::failovers::Schedulers;
use super::fleet_failover::failover;
use super::fleet_phase::{Counters, LOOK_EVERY, new_report, wait_until_accepting};
use super::jobs::apply;
use super::scenarios::run_all;
use crate::Host;
use crate::args::Servers;
use crate::fleet_args::Fleet;
use crate::fleet_queries::oldest_heartbeat_ms;
use crate::load::Load;
use crate::progress::wait;
use crate::report::Report;
use crate::slow_store::SlowStore;
use crate::worker::Question;

/// How long all executors may take to be known to the schedulers.
const START_TIMEOUT: Duration = Duration::from_mins(5);
/// Seconds before the idle phase is measured: executors that have just started send more heartbeats.
const SETTLE_SECONDS: u64 = 5;

/// Measures `fleet`, and passes the report of each phase to `show` when the phase has ended.
pub(crate) async fn run(
    host: &dyn Host,
    fleet: &Fleet,
    servers: &Servers,
    data: Option<&Path>,
    show: &mut dyn FnMut(Report),
) -> Result<()> {
    let slow_store = match fleet.slow_store {
        Some(_) => Some(SlowStore::start(&servers.store).await?),
        None => None,
    };
    let mut cluster = Cluster::create(host, servers, data, "fleet").await?;
    let measured = measure(&mut cluster, fleet, slow_store.as_ref(), show).await;
    // The schedulers stop in time, even if a phase failed while the store was slow.
    if let Some(slow_store) = &slow_store {
        slow_store.set_delay(Duration::ZERO);
    }
    let ended = cluster.end().await;
    measured?;
    ended
}

async fn measure(
    cluster: &mut Cluster,
    fleet: &Fleet,
    slow_store: Option<&SlowStore>,
    show: &mut dyn FnMut(Report),
) -> Result<()> {
    if let Some(slow_store) = slow_store {
        cluster.store_url = slow_store.url(&cluster.database.url)?;
    }
    cluster.write_files().await?;
    cluster.start_schedulers()?;
    let schedulers = Schedulers::new(cluster)?;
    wait_for_schedulers(cluster, &schedulers).await?;
    show(start(cluster, fleet).await?);
    show(idle(cluster, fleet, &schedulers, slow_store).await?);
    show(load(cluster, fleet, &schedulers).await?);
    show(failover(cluster, fleet, &schedulers).await?);
    Ok(())
}

async fn wait_for_schedulers(cluster: &mut Cluster, schedulers: &Schedulers) -> Result<()> {
    let begin = Instant::now();
    loop {
        let Err(error) = schedulers.read(cluster).await else {
            return Ok(());
        };
        cluster.check_running()?;
        if begin.elapsed() > super::READY_TIMEOUT {
            return Err(error);
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Starts the executors, and waits until the schedulers know that each of them accepts triggers.
async fn start(cluster: &mut Cluster, fleet: &Fleet) -> Result<Report> {
    let mut connection = cluster.database.connect().await?;
    let begin = Instant::now();
    for process in fleet.processes() {
        cluster.start_light_executors(&process)?;
    }
    let all = u64::from(fleet.executors);
    wait_until_accepting(cluster, &mut connection, all, 0, START_TIMEOUT).await?;
    let mut report = new_report(
        cluster,
        fleet,
        "fleet start",
        "from the start of the processes",
    );
    let name = "until all executors are known";
    report.add(name, begin.elapsed().as_secs_f64(), "s");
    Ok(report)
}

/// Measures a time without jobs, in which PostgreSQL may be slow.
async fn idle(
    cluster: &Cluster,
    fleet: &Fleet,
    schedulers: &Schedulers,
    slow_store: Option<&SlowStore>,
) -> Result<Report> {
    let delay = fleet.slow_store.unwrap_or_default();
    let what = format!(
        "no jobs, {} s, PostgreSQL delayed by {} ms",
        fleet.idle_seconds,
        delay.as_millis()
    );
    let mut report = new_report(cluster, fleet, "fleet idle", &what);
    let mut connection = cluster.database.connect().await?;
    if let Some(slow_store) = slow_store {
        slow_store.set_delay(delay);
    }
    wait("settling", SETTLE_SECONDS).await;
    let before = Counters::read(cluster, schedulers, &mut connection).await?;
    wait("fleet idle", fleet.idle_seconds).await;
    let after = Counters::read(cluster, schedulers, &mut connection).await?;
    let oldest_ms = oldest_heartbeat_ms(&mut connection).await?;
    if let Some(slow_store) = slow_store {
        slow_store.set_delay(Duration::ZERO);
    }
    after.add_rates_since(&before, &mut report);
    after.add_costs_since(&before, cluster, fleet, &mut report);
    report.add("oldest heartbeat at the end", oldest_ms / 1_000.0, "s");
    after
        .failovers
        .add_false_since(&before.failovers, &mut report);
    Ok(report)
}

/// Measures jobs that fall due once each, evenly spread over some seconds.
async fn load(cluster: &mut Cluster, fleet: &Fleet, schedulers: &Schedulers) -> Result<Report> {
    let load = Load::fleet(fleet.jobs as usize, fleet.rate as usize);
    let mut report = new_report(cluster, fleet, load.name, &load.about);
    apply(cluster, &load).await?;
    cluster.database.settle().await?;
    let late = "applying the jobs took so long that they are due already; measure fewer";
    cluster.ask_workers(Question::Measure).await?;
    let mut connection = cluster.database.connect().await?;
    wait("until due", load.until_due().context(late)?.as_secs()).await;
    sleep(load.until_due().unwrap_or_default()).await;
    let before = Counters::read(cluster, schedulers, &mut connection).await?;
    let last = run_all(cluster, load.name, u64::from(fleet.jobs)).await?;
    let after = Counters::read(cluster, schedulers, &mut connection).await?;
    let measured = cluster.measured().await?;
    let attempts = cluster.attempts().await?;
    let (runs, succeeded) = cluster.database.runs().await?;
    let seconds = last.duration_since(before.at).as_secs_f64();
    report.add("fires/s", f64::from(fleet.jobs) / seconds, "1/s");
    report.add("seconds", seconds, "s");
    report.add_lateness(&measured);
    after.add_costs_since(&before, cluster, fleet, &mut report);
    after
        .failovers
        .add_false_since(&before.failovers, &mut report);
    report.add_consistency(runs, succeeded, attempts);
    Ok(report)
}
