//! The `cueline` command: everything a person does from a shell, and the only place that names concrete adapters.
//!
//! A command prints its answer on standard output and its complaints on standard error, and ends with 0 (done), 1 (the server
//! said no, or could not be asked) or 2 (the input is wrong).

pub mod adapters;
pub mod args;
#[cfg(feature = "bench")]
pub mod bench;
pub mod client;
pub mod config;
pub mod cron;
pub mod crontab;
pub mod desk;
pub mod discovery;
pub mod dlq;
pub mod doctor;
pub mod executor;
pub mod failure;
pub mod guard;
pub mod human;
pub mod job;
pub mod jobdiff;
pub mod jobfile;
pub mod keys;
pub mod migrate;
pub mod output;
pub mod parts;
pub mod queue;
pub mod run;
pub mod scheduler;
pub mod standalone;
pub mod trigger;
pub mod worker;

use std::collections::HashMap;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _};

use args::{Cli, Command, ImportCommand};
use client::Api;
use cueline_worker::Handler;

use config::{Role, RoleArgs, SchedulerConfig, StandaloneConfig, WorkerConfig};
use failure::Failure;
use output::Out;

/// Handlers that a worker has in its own code, by name.
pub type Native = HashMap<String, Arc<dyn Handler>>;

/// Runs the command that `args` name, program name first.
pub fn main_with(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    main_with_native(args, Native::new())
}

/// The same; `cueline worker` can run these handlers as well. For programs that are this one and a little more.
pub fn main_with_native(args: impl IntoIterator<Item = OsString>, native: Native) -> ExitCode {
    let parsed = Cli::command()
        .try_get_matches_from(args)
        .and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let cli = match parsed {
        Ok((cli, matches)) => match meant_for_a_server(&matches) {
            Some(failure) => return failure.report(),
            None => cli,
        },
        Err(error) => {
            // What clap prints it prints with the exit status that goes with it: 0 for help, 2 for a mistake.
            let status = u8::try_from(error.exit_code()).unwrap_or(2);
            let _ = error.print();
            return ExitCode::from(status);
        }
    };
    let mut runtime = match cli.command {
        // It waits, mostly, and there is one beside each worker.
        Command::Guard(_) => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime.enable_all().build();
    let result = match runtime {
        Ok(runtime) => {
            let result = runtime.block_on(run(cli, native));
            // A blocking task that nobody waits for any more must not hold up the end.
            runtime.shutdown_background();
            result
        }
        Err(error) => Err(Failure::failed(format!(
            "failed to start the runtime: {error}"
        ))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// What only commands take is no use to a server: refused, not passed over.
fn meant_for_a_server(matches: &ArgMatches) -> Option<Failure> {
    let (name, matches) = matches.subcommand()?;
    Role::ALL.iter().find(|role| role.name() == name)?;
    let messages: Vec<String> = [
        ("url", "--url", "where it listens is said with --listen"),
        ("token", "--token", "others can see command lines; use --token-file or CUELINE_TOKEN, where the role has them"),
        ("output", "--output", "logs are JSON lines with --log-json"),
    ]
    .into_iter()
    .filter(|(id, ..)| matches.value_source(id) == Some(ValueSource::CommandLine))
    .map(|(_, flag, instead)| format!("{flag}: is for commands that ask a server, and cueline {name} is one; {instead}"))
    .collect();
    (!messages.is_empty()).then_some(Failure::BadInput {
        messages,
        summary: None,
    })
}

async fn run(cli: Cli, native: Native) -> Result<(), Failure> {
    let out = Out::new(cli.output);
    let api = || Api::new(cli.url.as_deref(), cli.token.as_deref());
    match cli.command {
        Command::Job(command) => job::run(&api()?, out, command).await,
        Command::Trigger(args) => trigger::run(&api()?, out, args).await,
        Command::Run(command) => run::run(&api()?, out, command).await,
        Command::Executor(command) => executor::run(&api()?, out, &command).await,
        Command::Queue(command) => queue::run(&api()?, out, command).await,
        Command::Dlq(command) => dlq::run(&api()?, out, command).await,
        Command::Import(ImportCommand::Crontab(args)) => crontab::run(api, out, &args).await,
        Command::Cron(command) => cron::run(out, command),
        Command::Doctor(args) => {
            doctor::run(cli.url.as_deref(), cli.token.as_deref(), out, &args).await
        }
        Command::Role(args) => role(&args, native).await,
        Command::Migrate(args) => migrate::run(out, &args).await,
        Command::Config(command) => config::check::run(out, command),
        Command::Key(command) => keys::run(out, &command),
        Command::Token(command) => keys::token(out, &command),
        #[cfg(feature = "bench")]
        Command::Bench(args) => bench::run(out, args).await.map_err(failure_of),
        #[cfg(feature = "bench")]
        Command::BenchWorker(args) => bench::run_worker(args).await.map_err(failure_of),
        Command::Guard(args) => guard::run(args).await.map_err(failure_of),
    }
}

/// Runs a role until it is told to stop.
async fn role(args: &RoleArgs, native: Native) -> Result<(), Failure> {
    let reader = config::reader(args);
    let ended = match args.role {
        Role::Standalone => standalone::run(good(StandaloneConfig::read(reader))?).await,
        Role::Scheduler => scheduler::run(good(SchedulerConfig::read(reader))?).await,
        Role::Worker => worker::run(good(WorkerConfig::read(reader))?, native).await,
    };
    ended.map_err(failure_of)
}

/// The configuration, if nothing is wrong with it.
fn good<T>(outcome: config::Outcome<T>) -> Result<T, Failure> {
    for warning in outcome.warnings {
        failure::say(&format!("warning: {warning}"));
    }
    outcome.config.map_err(|messages| Failure::BadInput {
        messages,
        summary: Some("nothing was started".to_owned()),
    })
}

/// The input of a server's command is wrong, in one sentence: exit status 2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadInput(pub String);

/// What can be done about an error, put on it as context.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Hinted {
    /// What happened.
    pub what: String,
    /// What to do.
    pub hint: String,
}

/// What a server's command ended with, by whose fault it was.
fn failure_of(error: anyhow::Error) -> Failure {
    if let Some(BadInput(message)) = error.downcast_ref() {
        return Failure::bad_input(message.clone());
    }
    if let Some(Hinted { hint, .. }) = error.downcast_ref() {
        return Failure::with_hint(told(error.as_ref()), hint);
    }
    match error.downcast::<jobfile::JobFileError>() {
        Ok(error) => Failure::BadInput {
            messages: error.messages,
            summary: Some("nothing was applied".to_owned()),
        },
        Err(error) => Failure::failed(told(error.as_ref())),
    }
}

/// An error and its causes, without those that an error before them has quoted already.
pub(crate) fn told(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::{Context as _, anyhow};

    #[test]
    fn a_cause_is_told_once() {
        let error = anyhow!("the disk is full")
            .context("failed to write: the disk is full")
            .context("failed to start");
        let said = "failed to start: failed to write: the disk is full";
        assert_eq!(super::told(error.as_ref()), said);
        let other = Err::<(), _>(anyhow!("b")).context("a").expect_err("it");
        assert_eq!(super::told(other.as_ref()), "a: b");
    }
}
