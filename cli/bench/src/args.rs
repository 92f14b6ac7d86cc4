//! The command's arguments, and the measurements that follow from them.

use std::path::PathBuf;

use crate::BadInput;
use crate::fleet_args::{Fleet, FleetArgs};
use crate::load::Load;
use crate::usage::{self, Watched};

/// Arguments of `cueline bench`.
#[derive(Debug, Clone, clap::Args)]
pub struct BenchArgs {
    /// Scenarios to measure; by default all of one process, or of a cluster
    #[arg(value_enum, value_name = "SCENARIO")]
    pub scenarios: Vec<Scenario>,
    /// Seconds to measure each scenario
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// Fires a second of `steady` (500 by default, 1,000 on a cluster), triggers a second of `trigger` (20), jobs a second of `fleet` (5,000)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: Option<u32>,
    /// Jobs of `burst` (1,000 by default, 10,000 on a cluster), `throughput` (6,000), `lane-gap` (20), `due` and `fleet` (100,000); waiting runs of `backlog` (10,000)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub jobs: Option<u32>,
    /// Directory for files; the system's temporary directory by default
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Measure a cluster of processes on this PostgreSQL server.
    #[arg(
        long,
        value_name = "URL",
        requires = "broker",
        env = "CUELINE_BENCH_STORE",
        hide_env_values = true,
        help = "Measure a cluster of processes on this PostgreSQL server, in a database that is created for it and dropped: postgres://user:password@host:5432/database"
    )]
    pub store: Option<String>,
    /// The cluster's broker.
    #[arg(
        long,
        value_name = "URL",
        requires = "store",
        env = "CUELINE_BENCH_BROKER",
        hide_env_values = true,
        help = "The cluster's broker; what is created on it is deleted: nats://user:password@host:4222, amqp://user:password@host:5672/vhost"
    )]
    pub broker: Option<String>,
    /// Scheduler processes of the cluster
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16), requires = "store")]
    pub schedulers: u32,
    /// Worker processes of the cluster
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), requires = "store")]
    pub workers: u32,
    /// With `due`: send as many rows through the bare pipeline on the same servers, without any scheduler logic, and print the ratio
    #[arg(long, requires = "store")]
    pub ceiling: bool,
    /// Another process to print the cost of, such as a server on this machine; may be repeated
    #[arg(long, value_name = "NAME=PID", value_parser = usage::parse_watched, requires = "store")]
    watch: Vec<Watched>,
    #[command(flatten)]
    fleet: FleetArgs,
}

/// What to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Scenario {
    /// A given rate, evenly spread
    Steady,
    /// Many jobs due at the same instant
    Burst,
    /// More fires than the machine can handle
    Throughput,
    /// Many jobs that are all due, each once; on a cluster
    Due,
    /// Manual triggers by the API; on a cluster
    Trigger,
    /// The time from the end of a run to the start of the next one in its lane; on a cluster
    LaneGap,
    /// The lateness of a fast job, alone and beside many waiting runs of a slow job; on a cluster
    Backlog,
    /// Without jobs
    Idle,
    /// Many executors: their start, no jobs, a load, and a failover of many at once; on a cluster
    Fleet,
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

/// A measurement on a cluster.
pub(crate) enum Plan {
    Load(Load),
    Due(Load),
    Trigger { load: Load, rate: usize },
    LaneGap(Load),
    Backlog { load: Load, runs: usize },
    Idle,
}

impl Plan {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Load(load)
            | Self::Due(load)
            | Self::LaneGap(load)
            | Self::Backlog { load, .. }
            | Self::Trigger { load, .. } => load.name,
            Self::Idle => "idle",
        }
    }
}

impl BenchArgs {
    pub(crate) fn scenarios(&self, on_a_cluster: bool) -> Vec<Scenario> {
        match (self.scenarios.as_slice(), on_a_cluster) {
            ([], false) => Scenario::STANDALONE.to_vec(),
            ([], true) => Scenario::CLUSTER.to_vec(),
            (some, _) => some.to_vec(),
        }
    }

    /// The measurement of `scenario` on a cluster; `None` for `fleet`, which has phases of its own.
    pub(crate) fn plan(&self, scenario: Scenario) -> Option<Plan> {
        let jobs = |default: u32| self.jobs.unwrap_or(default) as usize;
        let rate = |default: u32| self.rate.unwrap_or(default) as usize;
        Some(match scenario {
            Scenario::Steady => Plan::Load(Load::steady(rate(1_000))),
            Scenario::Burst => Plan::Load(Load::burst(jobs(10_000), 10)),
            Scenario::Throughput => Plan::Load(Load::throughput(jobs(6_000))),
            Scenario::Due => Plan::Due(Load::due(jobs(100_000))),
            Scenario::Trigger => Plan::Trigger {
                load: Load::manual(),
                rate: rate(20),
            },
            Scenario::LaneGap => Plan::LaneGap(Load::lane_gap(jobs(20))),
            Scenario::Backlog => {
                let runs = jobs(10_000);
                let load = Load::backlog(runs);
                Plan::Backlog { load, runs }
            }
            Scenario::Idle => Plan::Idle,
            Scenario::Fleet => return None,
        })
    }

    /// The fleet, if it is among the scenarios.
    ///
    /// # Errors
    ///
    /// [`BadInput`] if its arguments contradict each other.
    pub(crate) fn fleet(&self) -> Result<Option<Fleet>, BadInput> {
        if !self.scenarios.contains(&Scenario::Fleet) {
            return Ok(None);
        }
        let (jobs, rate) = (self.jobs.unwrap_or(100_000), self.rate.unwrap_or(5_000));
        self.fleet.fleet(jobs, rate).map(Some)
    }
}

/// The servers of a cluster, and the number of processes on them.
#[derive(Debug, Clone)]
pub(crate) struct Servers {
    pub(crate) store: String,
    pub(crate) broker: String,
    pub(crate) schedulers: usize,
    pub(crate) workers: usize,
    pub(crate) watch: Vec<Watched>,
}

impl Servers {
    /// The servers that `args` name, if any.
    pub(crate) fn of(args: &BenchArgs) -> Result<Option<Self>, BadInput> {
        let Some((store, broker)) = args.store.as_ref().zip(args.broker.as_ref()) else {
            return Ok(None);
        };
        let shared = ["nats:", "tls:", "amqp:", "amqps:"];
        if !store.starts_with("postgres") || !shared.iter().any(|kind| broker.starts_with(kind)) {
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

    pub(crate) fn is_rabbitmq(&self) -> bool {
        self.broker.starts_with("amqp")
    }

    pub(crate) fn broker_name(&self) -> &'static str {
        if self.is_rabbitmq() {
            "RabbitMQ"
        } else {
            "NATS"
        }
    }
}
