//! The worker process of a benchmark: `cueline worker` with a handler that only counts and times attempts.
//!
//! The benchmark writes questions to its standard input, one per line. It answers each with a line of JSON.

use std::path::PathBuf;

use anyhow::Result;
use cueline_model::ExecutorName;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use crate::noop::{Lateness, lateness};
use crate::process::Process;

pub use crate::noop::Noop;

/// Arguments of the worker process.
#[derive(Debug, Clone, clap::Args)]
pub struct BenchWorkerArgs {
    /// File that holds the broker's address
    #[arg(long)]
    pub broker_file: PathBuf,
    /// Prefix of all names on the broker
    #[arg(long)]
    pub broker_prefix: String,
    /// File with the token that enrols the executors
    #[arg(long)]
    pub enrol_token_file: PathBuf,
    /// File with the public key of the schedulers
    #[arg(long)]
    pub trust: PathBuf,
    /// The executor's name, in the group `default`; with `--light`, what the names begin with
    #[arg(long)]
    pub name: ExecutorName,
    /// Directory of the journal; with `--light`, of a directory for each executor
    #[arg(long)]
    pub state_dir: PathBuf,
    /// Hosts this many executors without guards, NAME-1 and so on, instead of one with a guard
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub light: Option<u32>,
    /// Connections to the broker, which the executors share
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000), requires = "light")]
    pub connections: u32,
}

/// A worker's counts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// Attempts since the start.
    pub(crate) attempts: u64,
    /// Lateness in microseconds, and the number of attempts with it.
    lateness: Vec<(u64, u64)>,
}

impl Answer {
    pub(crate) fn add_to(&self, all: &mut Lateness) {
        for (us, count) in &self.lateness {
            all.saturating_record_n(*us, *count);
        }
    }
}

/// A question to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    /// Asks for the number of attempts so far.
    Count,
    /// As `Count`, and starts to measure lateness.
    Measure,
    /// As `Count`, with the measured lateness.
    Measured,
}

impl Question {
    const ALL: [Self; 3] = [Self::Count, Self::Measure, Self::Measured];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Measure => "measure",
            Self::Measured => "measured",
        }
    }

    pub(crate) async fn ask(self, worker: &mut Process) -> Result<Answer> {
        Ok(serde_json::from_str(&worker.ask(self.as_str()).await?)?)
    }
}

/// Answers the benchmark's questions about `noop` until the benchmark closes the pipe.
///
/// # Errors
///
/// If standard input or output fails.
pub async fn answer_questions(noop: &Noop) -> Result<()> {
    let mut questions = BufReader::new(tokio::io::stdin()).lines();
    let mut stdout = tokio::io::stdout();
    while let Some(line) = questions.next_line().await? {
        let question = Question::ALL.into_iter().find(|q| q.as_str() == line);
        let measured = match question {
            Some(Question::Measure) => {
                noop.measure();
                lateness()
            }
            Some(Question::Measured) => noop.measured(),
            Some(Question::Count) | None => lateness(),
        };
        let answer = Answer {
            attempts: noop.attempts(),
            lateness: measured
                .iter_recorded()
                .map(|v| (v.value_iterated_to(), v.count_at_value()))
                .collect(),
        };
        let answer = format!("{}\n", serde_json::to_string(&answer)?);
        stdout.write_all(answer.as_bytes()).await?;
        stdout.flush().await?;
    }
    Ok(())
}
