//! The command line.

use clap::{Args, Parser, Subcommand};
#[cfg(feature = "bench")]
use cueline_bench::{BenchArgs, BenchWorkerArgs};
use cueline_commands::{AccessCommand, JobsCommand, ServerArgs};
use cueline_interface::{Deferred, OutputFormat};

use crate::completion::{CompletionArgs, ManArgs};
use crate::config::RoleArgs;
use crate::config::check::ConfigCommand;
use crate::migrate::MigrateArgs;

/// A distributed job scheduler.
#[derive(Debug, Parser)]
#[command(name = "cueline", version, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// How to print answers
    #[arg(short, long, global = true, value_enum, default_value_t)]
    pub(crate) output: OutputFormat,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands, in the order of the help.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Commands about jobs and their runs.
    #[command(flatten)]
    Jobs(JobsCommand),
    /// Processes that run until SIGTERM.
    #[command(flatten)]
    Role(RoleArgs),
    /// Bring a store's schema up to date
    Migrate(Deferred<MigrateArgs>),
    /// Check the configuration
    #[command(subcommand)]
    Config(Deferred<ConfigCommand>),
    /// Commands about keys, people and servers.
    #[command(flatten)]
    Access(AccessCommand),
    /// Print the completions of a shell
    Completion(Deferred<CompletionArgs>),
    /// Write a man page for each command
    Man(Deferred<ManArgs>),
    /// Measure how many runs a second this machine fires
    #[cfg(feature = "bench")]
    Bench(Deferred<BenchArgs>),
    /// The worker process of a benchmark
    #[cfg(feature = "bench")]
    #[command(hide = true)]
    BenchWorker(Deferred<BenchWorkerArgs>),
    /// Kills a worker's processes when the worker cannot; started by workers
    #[command(hide = true)]
    Guard(Deferred<GuardArgs>),
}

/// `cueline guard`
#[derive(Debug, Args)]
pub(crate) struct GuardArgs {
    /// The mark of the worker's processes
    pub(crate) id: String,
}
