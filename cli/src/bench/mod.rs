//! `cueline bench`: how fast this machine fires.

mod ceiling;
mod cluster;
mod database;
mod load;
mod noop;
mod process;
mod report;
mod rubbish;
mod scratch;
mod standalone;
mod usage;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{Instant, sleep};

pub(crate) use cluster::worker::{BenchWorkerArgs, run as run_worker};

use crate::adapters::{BrokerUrl, StoreUrl};
use crate::failure::BadInput;
use crate::output::Out;
use load::Load;
use report::Report;
use usage::Watched;

/// Arguments of `cueline bench`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct BenchArgs {
    /// What to measure; by default all that there is for one process, or for a cluster
    #[arg(value_enum, value_name = "SCENARIO")]
    pub(crate) scenarios: Vec<Scenario>,
    /// How long to measure each
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: u64,
    /// Fires a second of `steady` (500 by default, 1,000 on a cluster), triggers a second of `trigger` (20)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rate: Option<u32>,
    /// Jobs of `burst` (1,000 by default, 10,000 on a cluster), `throughput` (6,000) and `due` (100,000)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) jobs: Option<u32>,
    /// Directory to put files under; the system's temporary one by default
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Measure a cluster of processes on this PostgreSQL server.
    #[arg(
        long,
        value_name = "URL",
        requires = "broker",
        env = "CUELINE_BENCH_STORE",
        hide_env_values = true,
        help = "Measure a cluster of processes on this PostgreSQL server, in a database that is made for it and dropped: postgres://user:password@host:5432/database"
    )]
    pub(crate) store: Option<String>,
    /// The cluster's broker.
    #[arg(
        long,
        value_name = "URL",
        requires = "store",
        env = "CUELINE_BENCH_BROKER",
        hide_env_values = true,
        help = "The cluster's broker; what is made on it is deleted: nats://user:password@host:4222, amqp://user:password@host:5672/vhost"
    )]
    pub(crate) broker: Option<String>,
    /// Scheduler processes of the cluster
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16), requires = "store")]
    pub(crate) schedulers: u32,
    /// Worker processes of the cluster
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), requires = "store")]
    pub(crate) workers: u32,
    /// With `due`: send as many rows through the bare pipeline on the same servers, without any scheduler logic, and print the ratio
    #[arg(long, requires = "store")]
    pub(crate) ceiling: bool,
    /// Another process to print the cost of, such as a server on this machine; may be repeated
    #[arg(long, value_name = "NAME=PID", value_parser = usage::watched, requires = "store")]
    watch: Vec<Watched>,
}

/// What to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scenario {
    /// A given rate, evenly spread
    Steady,
    /// Many jobs due at the same instant
    Burst,
    /// More than can be done
    Throughput,
    /// Many jobs that are all due, each once; on a cluster
    Due,
    /// Manual triggers by the API; on a cluster
    Trigger,
    /// Without jobs
    Idle,
}

impl Scenario {
    const STANDALONE: [Self; 4] = [Self::Steady, Self::Burst, Self::Throughput, Self::Idle];
    const CLUSTER: [Self; 5] = [
        Self::Due,
        Self::Steady,
        Self::Burst,
        Self::Trigger,
        Self::Idle,
    ];
}

/// The servers of a cluster, and how many processes of ours.
#[derive(Debug, Clone)]
struct Servers {
    store: String,
    broker: String,
    schedulers: usize,
    workers: usize,
    watch: Vec<Watched>,
}

impl Servers {
    /// Those that were named, if any.
    fn of(args: &BenchArgs) -> Result<Option<Self>, BadInput> {
        let Some((store, broker)) = args.store.as_ref().zip(args.broker.as_ref()) else {
            return Ok(None);
        };
        StoreUrl::parse(store).map_err(|e| BadInput(format!("--store: {e}")))?;
        let parsed = BrokerUrl::parse(broker).map_err(|e| BadInput(format!("--broker: {e}")))?;
        if !store.starts_with("postgres") || parsed.is_embedded() {
            return Err(BadInput(
                "--store and --broker: a cluster needs postgres:// and one of nats://, tls://, amqp:// and amqps://; without both, one process is measured".to_owned(),
            ));
        }
        Ok(Some(Self {
            store: store.clone(),
            broker: broker.clone(),
            schedulers: args.schedulers as usize,
            workers: args.workers as usize,
            watch: args.watch.clone(),
        }))
    }

    fn product(&self) -> &'static str {
        if self.broker.starts_with("amqp") {
            "RabbitMQ"
        } else {
            "NATS"
        }
    }
}

/// What to do with a cluster.
enum Plan {
    Load(Load),
    Due(Load),
    Trigger { load: Load, rate: usize },
    Idle,
}

impl Plan {
    fn name(&self) -> &'static str {
        match self {
            Self::Load(load) | Self::Due(load) | Self::Trigger { load, .. } => load.name,
            Self::Idle => "idle",
        }
    }
}

/// Measures and prints.
pub(crate) async fn run(out: Out, args: BenchArgs) -> Result<()> {
    let servers = Servers::of(&args)?;
    let all = match (args.scenarios.as_slice(), &servers) {
        ([], None) => &Scenario::STANDALONE[..],
        ([], Some(_)) => &Scenario::CLUSTER[..],
        (some, _) => some,
    };
    let mut reports = Vec::new();
    let show = |report: Report, reports: &mut Vec<Report>| {
        if !out.is_json() {
            report.print();
        }
        reports.push(report);
    };
    for scenario in all {
        let Some(servers) = &servers else {
            show(standalone(*scenario, &args).await?, &mut reports);
            continue;
        };
        let plan = plan(*scenario, &args);
        let report = cluster::run(plan, servers, args.data.as_deref(), args.seconds).await?;
        let reached = report.numbers.first().map(|n| n.value);
        show(report, &mut reports);
        if args.ceiling && *scenario == Scenario::Due {
            let ceiling = ceiling::run(servers, args.jobs.unwrap_or(100_000) as usize).await?;
            let most = ceiling.numbers.first().map(|n| n.value);
            show(ceiling, &mut reports);
            if let Some((reached, most)) = reached.zip(most) {
                let mut ratio = Report::new("ratio", "of the ceiling that was reached");
                ratio.add("due / ceiling", reached / most, "");
                show(ratio, &mut reports);
            }
        }
    }
    if out.is_json() {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    }
    Ok(())
}

async fn standalone(scenario: Scenario, args: &BenchArgs) -> Result<Report> {
    let jobs = |default: u32| args.jobs.unwrap_or(default) as usize;
    let data = args.data.as_deref();
    let load = match scenario {
        Scenario::Steady => Load::steady(args.rate.unwrap_or(500) as usize),
        Scenario::Burst => Load::burst(jobs(1_000), 1),
        Scenario::Throughput => Load::throughput(jobs(6_000)),
        Scenario::Idle => {
            return process::idle(data, Duration::from_secs(args.seconds)).await;
        }
        Scenario::Due | Scenario::Trigger => {
            let message = "SCENARIO: due and trigger need a cluster; give --store and --broker";
            return Err(BadInput(message.to_owned()).into());
        }
    };
    standalone::run(load, data, args.seconds).await
}

fn plan(scenario: Scenario, args: &BenchArgs) -> Plan {
    let jobs = |default: u32| args.jobs.unwrap_or(default) as usize;
    let rate = |default: u32| args.rate.unwrap_or(default) as usize;
    match scenario {
        Scenario::Steady => Plan::Load(Load::steady(rate(1_000))),
        Scenario::Burst => Plan::Load(Load::burst(jobs(10_000), 10)),
        Scenario::Throughput => Plan::Load(Load::throughput(jobs(6_000))),
        Scenario::Due => Plan::Due(Load::due(jobs(100_000))),
        Scenario::Trigger => Plan::Trigger {
            load: Load::manual(),
            rate: rate(20),
        },
        Scenario::Idle => Plan::Idle,
    }
}

/// A bar, on a terminal.
fn progress(length: u64, name: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:<12} {bar:40} {pos}/{len}");
    ProgressBar::new(length.max(1))
        .with_message(name)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Waits, with a bar that shows how far.
async fn wait(name: &'static str, seconds: u64) {
    let bar = progress(seconds, name);
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        sleep((end - Instant::now()).min(Duration::from_secs(1))).await;
        bar.inc(1);
    }
    bar.finish_and_clear();
}
