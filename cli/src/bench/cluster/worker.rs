//! The worker process of a benchmark: `cueline worker` with the handler that does nothing. It is told what to do on its standard input,
//! a word a line, and answers each with a line of JSON.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cueline_model::{ExecutorName, GroupName};
use cueline_worker::Handler;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::super::noop::{Lateness, Noop, lateness};
use crate::adapters::{BrokerSettings, BrokerUrl, Who};
use crate::components::{ExecutorOptions, Executors, Fate, Signals, broken, say};

/// Arguments of the worker process.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct BenchWorkerArgs {
    /// File that holds the broker's address
    #[arg(long)]
    broker_file: PathBuf,
    /// What the names of everything on the broker start with
    #[arg(long)]
    broker_prefix: String,
    /// The executor's name
    #[arg(long)]
    name: ExecutorName,
    /// Directory of the journal
    #[arg(long)]
    state_dir: PathBuf,
}

/// What a worker says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Answer {
    /// Attempts since the start.
    pub(super) attempts: u64,
    /// Microseconds of lateness, and how many attempts were so late.
    lateness: Vec<(u64, u64)>,
}

impl Answer {
    /// Adds what was measured to `all`.
    pub(super) fn add_to(&self, all: &mut Lateness) {
        for (us, count) in &self.lateness {
            all.saturating_record_n(*us, *count);
        }
    }
}

/// Works until SIGTERM.
pub(crate) async fn run(args: BenchWorkerArgs) -> Result<()> {
    cueline_runtime::telemetry::init("warn", false);
    let mut signals = Signals::new()?;
    let address = std::fs::read_to_string(&args.broker_file)?;
    let broker = BrokerUrl::parse(&address).map_err(crate::failure::BadInput)?;
    let settings = BrokerSettings {
        prefix: args.broker_prefix,
        ca: None,
        certificate: None,
        credentials: None,
        replicas: None,
        longest_wait: None,
        heartbeat: None,
    };
    let group: GroupName = "default".parse()?;
    let who = Who {
        connection: format!("cueline bench {}", args.name),
        executor: Some((group.to_string(), args.name.to_string())),
    };
    let broker = broker.open(&who, &settings).await?;
    let noop = Arc::new(Noop::default());
    let options = ExecutorOptions {
        group,
        allow: Vec::new(),
        concurrency: 10_000,
        drain_timeout: Duration::from_secs(10),
        native: HashMap::from([("noop".to_owned(), noop.clone() as Arc<dyn Handler>)]),
        trust: cueline_protocol::VerifyingKeys::default(),
        fate: Fate::Apart {
            fence_after: Duration::from_secs(20),
            failover_after: Duration::from_secs(30),
        },
    };
    let executors = Executors::new();
    executors.start(&args.name, &args.state_dir, &options, &broker.broker)?;
    let ended = tokio::select! {
        () = signals.next() => None,
        what = executors.broken() => Some(what),
        answered = answer(&noop) => {
            // Whoever had started it is gone.
            answered?;
            None
        }
    };
    executors.stop(options.drain_timeout).await;
    broker.close().await;
    ended.map_or(Ok(()), |what| Err(broken(&what)))
}

async fn answer(noop: &Noop) -> Result<()> {
    let mut questions = BufReader::new(tokio::io::stdin()).lines();
    while let Some(question) = questions.next_line().await? {
        let measured = match question.as_str() {
            "measure" => {
                noop.measure();
                lateness()
            }
            "measured" => noop.measured(),
            _ => lateness(),
        };
        let answer = Answer {
            attempts: noop.attempts(),
            lateness: measured
                .iter_recorded()
                .map(|v| (v.value_iterated_to(), v.count_at_value()))
                .collect(),
        };
        let answer = serde_json::to_string(&answer).context("an answer is plain data")?;
        say(&format!("{answer}\n"));
    }
    Ok(())
}
