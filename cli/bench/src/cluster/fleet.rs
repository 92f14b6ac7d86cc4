//! `fleet`: many executors on few processes. Their start, a time without jobs, a load, and a failover of many executors
//! at once.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use sqlx::postgres::PgConnection;
use tokio::time::{Instant, sleep};

use super::Cluster;
use super::failovers::{FailoverCounts, Schedulers};
use super::scenarios::{apply, run_all};
use crate::Host;
use crate::args::Servers;
use crate::database::Counted;
use crate::fleet_args::Fleet;
use crate::fleet_queries::{
    Ends, Moves, accepting, last_run, oldest_heartbeat_ms, stored_heartbeats,
};
use crate::load::Load;
use crate::process::Process;
use crate::progress::{bar, wait};
use crate::report::{Report, number};
use crate::slow_store::SlowStore;
use crate::usage::{Cost, Usage};
use crate::worker::Question;

/// How long all executors may take to be known to the schedulers.
const START_TIMEOUT: Duration = Duration::from_mins(5);
/// Seconds before the idle phase is measured: executors that have just started send more heartbeats.
const SETTLE_SECONDS: u64 = 5;
/// The jobs of the failover fall due this long after they were made.
const FAILOVER_LEAD: Duration = Duration::from_secs(10);
/// The executors are frozen this long before the jobs fall due. By then their last request for triggers, of half a
/// second, has expired, so that NATS delivers nothing to them. All triggers must be routed before the executors have
/// been silent for 15 s.
const FROZEN_BEFORE_DUE: Duration = Duration::from_secs(4);
/// How long the triggers may take to be queued.
const QUEUED_TIMEOUT: Duration = Duration::from_mins(1);
/// How long the failover may take, from the freeze to the last end.
const FAILOVER_TIMEOUT: Duration = Duration::from_mins(10);
/// How long unfrozen executors may take to accept triggers again.
const RETURN_TIMEOUT: Duration = Duration::from_mins(2);
/// The time between two looks at the database.
const LOOK_EVERY: Duration = Duration::from_millis(100);

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

fn new_report(cluster: &Cluster, fleet: &Fleet, phase: &str, what: &str) -> Report {
    let about = format!(
        "{what}; {} executors in {} processes, {} scheduler processes, PostgreSQL, {}",
        fleet.executors,
        fleet.processes().len(),
        cluster.servers.schedulers,
        cluster.servers.broker_name()
    );
    Report::new(phase, about)
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

/// Waits until all executors accept triggers and have sent a heartbeat after `since_ms` of the database's clock.
async fn wait_until_accepting(
    cluster: &mut Cluster,
    connection: &mut PgConnection,
    all: u64,
    since_ms: i64,
    limit: Duration,
) -> Result<()> {
    let bar = bar(all, "executors");
    let begin = Instant::now();
    loop {
        let known = accepting(connection, since_ms).await?;
        bar.set_position(known);
        if known >= all {
            bar.finish_and_clear();
            return Ok(());
        }
        cluster.check_running()?;
        if begin.elapsed() > limit {
            bail!("{known} of {all} executors accept triggers");
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Counters at one instant.
struct Counters {
    at: Instant,
    usage: Usage,
    counted: Counted,
    heartbeats: f64,
    failovers: FailoverCounts,
}

impl Counters {
    async fn read(
        cluster: &Cluster,
        schedulers: &Schedulers,
        connection: &mut PgConnection,
    ) -> Result<Self> {
        Ok(Self {
            at: Instant::now(),
            usage: cluster.usage()?,
            counted: cluster.database.counted().await?,
            heartbeats: stored_heartbeats(connection).await?,
            failovers: schedulers.read(cluster).await?,
        })
    }

    /// Adds the costs since `before`: of the executors' processes in total and per executor, of others as they are.
    fn add_costs_since(
        &self,
        before: &Self,
        cluster: &Cluster,
        fleet: &Fleet,
        report: &mut Report,
    ) {
        let costs = self.usage.costs_since(&before.usage);
        let (schedulers, others) = costs.split_at(cluster.schedulers.len().min(costs.len()));
        let (processes, watched) = others.split_at(cluster.workers.len().min(others.len()));
        for cost in schedulers {
            cost.add_to(report);
        }
        let executors = Cost {
            name: "executors".to_owned(),
            cpu_percent: processes.iter().map(|cost| cost.cpu_percent).sum(),
            memory_mb: processes.iter().map(|cost| cost.memory_mb).sum(),
        };
        executors.add_to(report);
        let each = executors.memory_mb / f64::from(fleet.executors);
        report.add("memory per executor", each, "MB");
        for cost in watched {
            cost.add_to(report);
        }
    }

    /// Adds the rates since `before`.
    fn add_rates_since(&self, before: &Self, report: &mut Report) {
        let seconds = self.at.duration_since(before.at).as_secs_f64();
        let (now, then) = (&self.counted, &before.counted);
        let transactions = (now.transactions - then.transactions) / seconds;
        report.add("transactions (pg_stat_database)", transactions, "1/s");
        if let (Some(now), Some(then)) = (now.statements, then.statements) {
            let statements = (now - then) / seconds;
            report.add("statements (pg_stat_statements)", statements, "1/s");
        }
        let heartbeats = (self.heartbeats - before.heartbeats) / seconds;
        report.add("heartbeats stored", heartbeats, "1/s");
    }
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

/// A failover of the frozen process, as the database saw it.
struct Failover {
    /// The id of the last run before.
    last_run: i64,
    /// When the process was frozen, by the database's clock.
    frozen_ms: i64,
    /// When no run was left, by the same clock.
    ended_ms: i64,
    /// Triggers that were queued at the frozen executors.
    queued: u64,
}

/// Measures how long the work of frozen executors takes to be done elsewhere.
async fn failover(cluster: &mut Cluster, fleet: &Fleet, schedulers: &Schedulers) -> Result<Report> {
    let load = Load::sharded(fleet.queued as usize, fleet.frozen as usize, FAILOVER_LEAD);
    let mut report = new_report(cluster, fleet, "fleet failover", &load.about);
    let mut connection = cluster.database.connect().await?;
    let before = schedulers.read(cluster).await?;
    let last_run = last_run(&mut connection).await?;
    apply(cluster, &load).await?;
    let (there, elsewhere) = attempts_there_and_elsewhere(cluster).await?;
    let until = load.until_due();
    let until = until.and_then(|due| due.checked_sub(FROZEN_BEFORE_DUE));
    let late = "applying the jobs took too long; give a smaller --queued";
    sleep(until.context(late)?).await;

    // Not among the workers while it is frozen, because it answers no questions.
    let frozen = cluster.workers.remove(0);
    let failed_over = fail_over(cluster, fleet, &frozen, &mut connection, last_run).await;
    let unfrozen = frozen.unfreeze();
    cluster.workers.insert(0, frozen);
    let failed_over = failed_over?;
    unfrozen?;

    let after = schedulers.read(cluster).await?;
    let begin = Instant::now();
    let all = u64::from(fleet.executors);
    let since_ms = failed_over.ended_ms;
    wait_until_accepting(cluster, &mut connection, all, since_ms, RETURN_TIMEOUT).await?;
    let returned_after = begin.elapsed().as_secs_f64();
    let (there_now, elsewhere_now) = attempts_there_and_elsewhere(cluster).await?;
    let ends = Ends::read(&mut connection, last_run, Fleet::FROZEN).await?;

    add_failover(&failed_over, &ends, &mut report)?;
    let executors = after.failovers.saturating_sub(before.failovers);
    report.add("executors failed over", number(executors), "");
    let attempts = after.failed_over.saturating_sub(before.failed_over);
    report.add("attempts failed over", number(attempts), "");
    let handled = elsewhere_now.saturating_sub(elsewhere);
    report.add("attempts of the handler elsewhere", number(handled), "");
    let stale = there_now.saturating_sub(there);
    report.add("attempts at the frozen executors", number(stale), "");
    report.add("unfrozen executors are back after", returned_after, "s");
    Ok(report)
}

/// The attempts so far of the process that is frozen, and of all others.
async fn attempts_there_and_elsewhere(cluster: &mut Cluster) -> Result<(u64, u64)> {
    let answers = cluster.ask_workers(Question::Count).await?;
    let mut attempts = answers.iter().map(|answer| answer.attempts);
    let there = attempts.next().unwrap_or_default();
    Ok((there, attempts.sum()))
}

/// Freezes the process, and waits until its work has ended elsewhere.
async fn fail_over(
    cluster: &mut Cluster,
    fleet: &Fleet,
    frozen: &Process,
    connection: &mut PgConnection,
    last_run: i64,
) -> Result<Failover> {
    frozen.freeze()?;
    let begin = Instant::now();
    let all = u64::from(fleet.frozen) * u64::from(fleet.queued);
    let mut moves = Moves::read(connection, last_run, Fleet::FROZEN).await?;
    let frozen_ms = moves.now_ms;
    while moves.created < all || moves.unpublished > 0 {
        if begin.elapsed() > QUEUED_TIMEOUT {
            bail!(
                "{} of {all} runs exist, and {} of them are not published",
                moves.created,
                moves.unpublished
            );
        }
        sleep(LOOK_EVERY).await;
        moves = Moves::read(connection, last_run, Fleet::FROZEN).await?;
    }
    let queued = moves.queued_there;
    let bar = bar(all, "failover");
    while moves.live > 0 {
        cluster.check_running()?;
        if begin.elapsed() > FAILOVER_TIMEOUT {
            bail!("{} of {all} runs have not ended", moves.live);
        }
        bar.set_position(all.saturating_sub(moves.live));
        sleep(LOOK_EVERY).await;
        moves = Moves::read(connection, last_run, Fleet::FROZEN).await?;
    }
    bar.finish_and_clear();
    Ok(Failover {
        last_run,
        frozen_ms,
        ended_ms: moves.now_ms,
        queued,
    })
}

fn add_failover(failover: &Failover, ends: &Ends, report: &mut Report) -> Result<()> {
    let Some(first_ms) = ends.first_taken_ms else {
        bail!(
            "no attempt after run {} was taken from a frozen executor",
            failover.last_run
        );
    };
    let seconds = |from_ms: i64, to_ms: i64| number((to_ms - from_ms).unsigned_abs()) / 1_000.0;
    let took = seconds(first_ms, failover.ended_ms);
    report.add("from the first failover to the last end", took, "s");
    let noticed = seconds(failover.frozen_ms, first_ms);
    report.add("from the freeze to the first failover", noticed, "s");
    for (name, count) in [
        ("triggers queued there", failover.queued),
        ("returned and routed again", ends.returned),
        ("lost and run again", ends.lost),
        (
            "succeeded elsewhere at attempt 2",
            ends.second_attempt_elsewhere,
        ),
        ("runs with further attempts", ends.further_attempts),
        ("runs that did not succeed", ends.unsuccessful),
    ] {
        report.add(name, number(count), "");
    }
    Ok(())
}
