//! What the phases of `fleet` share: the heads of their reports, counters, and the wait for executors.

use std::time::Duration;

use anyhow::{Result, bail};
use sqlx::postgres::PgConnection;
use tokio::time::{Instant, sleep};

use super::Cluster;
use super::failovers::{FailoverCounts, Schedulers};
use crate::database::Counted;
use crate::fleet_args::Fleet;
use crate::fleet_queries::{accepting, stored_heartbeats};
use crate::progress::bar;
use crate::report::Report;
use crate::usage::{Cost, Usage};

/// The time between two looks at the database.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The report of a phase, without numbers.
pub(super) fn new_report(cluster: &Cluster, fleet: &Fleet, phase: &str, what: &str) -> Report {
    let about = format!(
        "{what}; {} executors in {} processes, {} scheduler processes, PostgreSQL, {}",
        fleet.executors,
        fleet.processes().len(),
        cluster.servers.schedulers,
        cluster.servers.broker_name()
    );
    Report::new(phase, about)
}

/// Waits until all executors accept triggers and have sent a heartbeat after `since_ms` of the database's clock.
pub(super) async fn wait_until_accepting(
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
pub(super) struct Counters {
    pub(super) at: Instant,
    usage: Usage,
    counted: Counted,
    heartbeats: f64,
    pub(super) failovers: FailoverCounts,
}

impl Counters {
    pub(super) async fn read(
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
    pub(super) fn add_costs_since(
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
    pub(super) fn add_rates_since(&self, before: &Self, report: &mut Report) {
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
