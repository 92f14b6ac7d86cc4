//! The command line.

use std::ffi::OsString;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
#[cfg(feature = "bench")]
use cueline_bench::{BenchArgs, BenchWorkerArgs};
use cueline_commands::{AccessCommand, JobsCommand, ServerArgs};
use cueline_interface::{Deferred, OutputFormat};

use crate::completion::{CompletionArgs, ManArgs};
use crate::config::RoleArgs;
use crate::config::check::ConfigCommand;
use crate::migrate::MigrateArgs;

/// The longest lines of a help text.
const MAX_TERM_WIDTH: usize = 110;

/// A distributed job scheduler.
#[derive(Debug, Parser)]
#[command(name = "cueline", version, max_term_width = MAX_TERM_WIDTH)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) options: Options,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The options of all commands.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// How to print answers
    #[arg(short, long, global = true, value_enum, default_value_t)]
    pub(crate) output: OutputFormat,
}

/// The commands, in the order of the help. [`Cli::definition`] has their families.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Commands about jobs and their runs.
    #[command(flatten)]
    Jobs(JobsCommand),
    /// Processes that run until SIGTERM.
    #[command(flatten)]
    Role(RoleArgs),
    /// Commands for what a process needs before it starts.
    #[command(flatten)]
    Prepare(PrepareCommand),
    /// Commands about keys, people and servers.
    #[command(flatten)]
    Access(AccessCommand),
    /// Commands about this program.
    #[command(flatten)]
    Program(ProgramCommand),
}

/// Commands for what a process needs before it starts.
#[derive(Debug, Subcommand)]
pub(crate) enum PrepareCommand {
    /// Bring a store's schema up to date
    Migrate(Deferred<MigrateArgs>),
    /// Check the configuration
    #[command(subcommand)]
    Config(Deferred<ConfigCommand>),
}

/// Commands about this program.
#[derive(Debug, Subcommand)]
pub(crate) enum ProgramCommand {
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

impl Cli {
    /// The definition of the command line `args`, program name first. If the first argument names a command, the others are
    /// left out. Defining all of them takes memory that a process keeps, not least because clap copies all options to each.
    pub(crate) fn definition(args: &[OsString]) -> clap::Command {
        type Family = (fn(&str) -> bool, fn(clap::Command) -> clap::Command);
        fn family<T: Subcommand>() -> Family {
            (T::has_subcommand, T::augment_subcommands)
        }
        let families = [
            family::<JobsCommand>(),
            family::<RoleArgs>(),
            family::<PrepareCommand>(),
            family::<AccessCommand>(),
            family::<ProgramCommand>(),
        ];
        let first = args.get(1).and_then(|first| first.to_str());
        let command = first.and_then(|name| {
            let (_, define) = families.iter().find(|(has, _)| has(name))?;
            let all = define(clap::Command::new(""));
            all.find_subcommand(name).cloned()
        });
        match command {
            Some(command) => {
                let program = clap::Command::new("cueline").max_term_width(MAX_TERM_WIDTH);
                Options::augment_args(program).subcommand(command)
            }
            None => Self::command(),
        }
    }
}

/// `cueline guard`
#[derive(Debug, Args)]
pub(crate) struct GuardArgs {
    /// The mark of the worker's processes
    pub(crate) id: String,
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches as _;

    use super::*;

    /// What is parsed, or what the user reads instead.
    fn answer(command: clap::Command, args: &[OsString]) -> String {
        let matches = command.try_get_matches_from(args);
        match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
            Ok(cli) => format!("{cli:?}"),
            Err(error) => error.render().to_string(),
        }
    }

    #[test]
    fn a_command_is_defined_alike_without_the_others() {
        let names: Vec<String> = Cli::command()
            .get_subcommands()
            .map(|command| command.get_name().to_owned())
            .collect();
        assert!(names.len() > 20, "{names:?}");
        for name in &names {
            for rest in [
                &[][..],
                &["--help"],
                &["-h"],
                &["--nonsense"],
                &["--version"],
                &["help"],
                &["--output", "json"],
                &["--url", "x"],
            ] {
                let words = ["cueline", name.as_str()]
                    .into_iter()
                    .chain(rest.iter().copied());
                let args: Vec<OsString> = words.map(OsString::from).collect();
                let (alone, among_all) = (Cli::definition(&args), Cli::command());
                assert_eq!(alone.get_subcommands().count(), 1, "{args:?}");
                assert_eq!(answer(alone, &args), answer(among_all, &args), "{args:?}");
            }
        }
    }

    #[test]
    fn without_a_command_in_front_all_are_defined() {
        for first in [None, Some("--url"), Some("help"), Some("nonsense")] {
            let args: Vec<OsString> = [Some("cueline"), first]
                .into_iter()
                .flatten()
                .map(OsString::from)
                .collect();
            assert!(
                Cli::definition(&args).get_subcommands().count() > 20,
                "{first:?}"
            );
        }
    }
}
