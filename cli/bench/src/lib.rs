//! `cueline bench`: how many runs a second a machine fires, how late, and at what cost.
//!
//! The standalone server is measured inside this process. A cluster is measured as separate processes on a PostgreSQL
//! server and a broker. The ceiling is the rate of bare clients on the same servers. This crate knows the ports and the
//! worker SDK. The program that has the command composes the rest: it is the [`Host`].

mod args;
mod broker;
mod ceiling;
mod cluster;
mod database;
mod fleet_args;
mod fleet_queries;
mod idle;
mod load;
mod noop;
mod process;
mod progress;
mod report;
mod scratch_dir;
mod slow_store;
mod standalone;
mod usage;
mod worker;

use std::collections::HashMap;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use cueline_store::Store;
use cueline_worker::Handler;
use futures_util::future::LocalBoxFuture;

pub use args::{BenchArgs, Scenario};
pub use worker::{BenchWorkerArgs, Noop, answer_questions};

use args::Servers;
use load::Load;
use report::Report;

/// Native handlers, by name.
pub type Handlers = HashMap<String, Arc<dyn Handler>>;

/// The program that has the command.
#[async_trait(?Send)]
pub trait Host {
    /// Opens the store at `url`, and creates its schema.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached or used.
    async fn open_store(&self, url: &str) -> Result<OpenStore>;

    /// Starts a standalone server in this process, without HTTP. It has one executor, `default/worker-1`, which runs up
    /// to 10,000 of `handlers` at once.
    ///
    /// # Errors
    ///
    /// If `data` cannot be used.
    async fn start_standalone(
        &self,
        data: &Path,
        handlers: Handlers,
    ) -> Result<Box<dyn Standalone>>;
}

/// An open store with its close function.
pub struct OpenStore {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Ends its connections.
    pub close: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// A standalone server in this process.
#[async_trait]
pub trait Standalone: Send + Sync {
    /// Its store.
    fn store(&self) -> &Arc<dyn Store>;

    /// Makes the scheduler look for due jobs now.
    fn wake(&self);

    /// Stops it, and lets running handlers end for up to 10 s.
    ///
    /// # Errors
    ///
    /// If its last reports or its lease cannot be written.
    async fn stop(self: Box<Self>) -> Result<()>;
}

/// The error of arguments that contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadInput(pub String);

/// Measures what `args` name, and prints the reports, as JSON if `json`.
///
/// # Errors
///
/// [`BadInput`] if the arguments contradict each other. Otherwise the error of a server or a process.
// Boxed, so that its code is in this crate only, and not again in each that calls it.
pub fn run(host: &dyn Host, args: BenchArgs, json: bool) -> LocalBoxFuture<'_, Result<()>> {
    Box::pin(async move {
        let servers = Servers::of(&args)?;
        let fleet = args.fleet()?;
        let mut reports = Vec::new();
        let mut show = |report: Report| {
            if !json {
                report.print();
            }
            reports.push(report);
        };
        for scenario in args.scenarios(servers.is_some()) {
            let Some(servers) = &servers else {
                show(measure_standalone(host, scenario, &args).await?);
                continue;
            };
            let data = args.data.as_deref();
            let Some(plan) = args.plan(scenario) else {
                if let Some(fleet) = &fleet {
                    cluster::run_fleet(host, fleet, servers, data, &mut show).await?;
                }
                continue;
            };
            let report = cluster::run(host, plan, servers, data, args.seconds).await?;
            let reached = report.first_value();
            show(report);
            if args.ceiling && scenario == Scenario::Due {
                let ceiling = ceiling::run(servers, args.jobs.unwrap_or(100_000) as usize).await?;
                let most = ceiling.first_value();
                show(ceiling);
                if let Some((reached, most)) = reached.zip(most) {
                    let mut ratio = Report::new("ratio", "share of the ceiling that was reached");
                    ratio.add("due / ceiling", reached / most, "");
                    show(ratio);
                }
            }
        }
        if json {
            println!("{}", serde_json::to_string_pretty(&reports)?);
        }
        Ok(())
    })
}

async fn measure_standalone(
    host: &dyn Host,
    scenario: Scenario,
    args: &BenchArgs,
) -> Result<Report> {
    let jobs = |default: u32| args.jobs.unwrap_or(default) as usize;
    let data = args.data.as_deref();
    let load = match scenario {
        Scenario::Steady => Load::steady(args.rate.unwrap_or(500) as usize),
        Scenario::Burst => Load::burst(jobs(1_000), 1),
        Scenario::Throughput => Load::throughput(jobs(6_000)),
        Scenario::Idle => return idle::run(data, Duration::from_secs(args.seconds)).await,
        Scenario::Due
        | Scenario::Trigger
        | Scenario::LaneGap
        | Scenario::Backlog
        | Scenario::Fleet => {
            let message = "SCENARIO: due, trigger, lane-gap, backlog and fleet need a cluster; give --store and --broker";
            return Err(BadInput(message.to_owned()).into());
        }
    };
    standalone::run(host, load, data, args.seconds).await
}
