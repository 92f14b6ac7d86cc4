//! `cueline bench`: how fast this machine fires.

mod load;
mod process;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use load::Load;

/// Arguments of `cueline bench`.
#[derive(Debug, Clone, clap::Args)]
pub struct BenchArgs {
    /// What to measure; all of it by default
    #[arg(value_enum, value_name = "SCENARIO")]
    pub scenarios: Vec<Scenario>,
    /// How long to measure each
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// Fires a second of `steady`
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: u32,
    /// Jobs of `burst` (1,000 by default) and `throughput` (6,000)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub jobs: Option<u32>,
    /// Directory to put the data under; the system's temporary one by default
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Scenario {
    /// A given rate, evenly spread
    Steady,
    /// Many jobs due at the same instant
    Burst,
    /// More than can be done
    Throughput,
    /// A process without jobs
    Idle,
}

/// Measures and prints.
pub async fn run(args: BenchArgs) -> Result<()> {
    let all = [
        Scenario::Steady,
        Scenario::Burst,
        Scenario::Throughput,
        Scenario::Idle,
    ];
    let scenarios = if args.scenarios.is_empty() {
        &all[..]
    } else {
        &args.scenarios
    };
    let seconds = Duration::from_secs(args.seconds);
    let data = args.data.as_deref();
    let jobs = |default: u32| args.jobs.unwrap_or(default) as usize;
    let mut reports = Vec::new();
    for scenario in scenarios {
        let report = match scenario {
            Scenario::Steady => Load::steady(args.rate as usize).run(data, seconds).await?,
            Scenario::Burst => Load::burst(jobs(1_000)).run(data, seconds).await?,
            Scenario::Throughput => Load::throughput(jobs(6_000)).run(data, seconds).await?,
            Scenario::Idle => process::idle(data, seconds).await?,
        };
        if !args.json {
            report.print();
        }
        reports.push(report);
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    }
    Ok(())
}
