//! The `cueline` command, and the only crate that names concrete adapters.
//!
//! A command prints its answer on standard output and its errors on standard error. Its exit status is 0 (done), 1
//! (the server refused or did not answer) or 2 (the input is wrong).

mod adapters;
mod args;
#[cfg(feature = "bench")]
mod bench;
mod completion;
mod components;
mod config;
mod guard;
mod migrate;
mod redacted;
mod scheduler;
mod standalone;
mod worker;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _};
use cueline_interface::{Deferred, Failure, Out, say};

use args::{Cli, Command, Options, PrepareCommand, ProgramCommand};
pub use components::Native;
use config::{Loaded, RoleArgs};

/// Runs the command that `args` name, program name first.
pub fn main_with(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    main_with_native(args, Native::new())
}

/// Like [`main_with`], and `cueline worker` can run these handlers as well.
pub fn main_with_native(args: impl IntoIterator<Item = OsString>, native: Native) -> ExitCode {
    execute(args.into_iter().collect(), native)
}

/// Not generic, to be compiled in this crate and not in each program.
fn execute(args: Vec<OsString>, native: Native) -> ExitCode {
    let parsed = Cli::definition(&args)
        .try_get_matches_from(args)
        .and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let cli = match parsed {
        Ok((mut cli, matches)) => {
            cli.options.server.note_sources(&matches);
            let refused = refuse_client_options(&matches)
                .or_else(|| refuse_other_server(&matches))
                .or_else(|| refuse_namespace(&matches));
            match refused {
                Some(failure) => return failure.report(),
                None => cli,
            }
        }
        Err(error) => {
            // The exit status is 0 for help and 2 for a mistake.
            let status = u8::try_from(error.exit_code()).unwrap_or(2);
            let _ = error.print();
            return ExitCode::from(status);
        }
    };
    let mut runtime = match cli.command {
        // It mostly waits, and there is one beside each worker.
        Command::Program(ProgramCommand::Guard(_)) => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime.enable_all().build();
    let result = match runtime {
        Ok(runtime) => {
            let result = runtime.block_on(run(cli, native));
            // Blocking tasks that are no longer awaited must not delay the exit.
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

/// Options of client commands have no effect on a server, so they are refused.
fn refuse_client_options(matches: &ArgMatches) -> Option<Failure> {
    let (name, matches) = matches.subcommand()?;
    config::is_role(name).then_some(())?;
    let messages: Vec<String> = [
        ("url", "--url", "--listen sets the address of this server"),
        ("namespace", "--namespace", "--group NAMESPACE/GROUP sets that of its executors, where the role has it"),
        ("context", "--context", "it names a server for commands; remove it"),
        ("token", "--token", "others can see command lines; use --token-file or CUELINE_TOKEN, where the role has them"),
        ("ca_file", "--ca-file", "--tls-client-ca has the authorities of clients, where the role has it"),
        ("client_cert", "--client-cert", "--tls-cert has the certificate of this server, where the role has it"),
        ("client_key", "--client-key", "--tls-key has the key of this server, where the role has it"),
        ("output", "--output", "logs are JSON lines with --log-json"),
    ]
    .into_iter()
    .filter(|(id, ..)| matches.value_source(id) == Some(ValueSource::CommandLine))
    .map(|(_, flag, instead)| format!("{flag} is only for client commands, but `cueline {name}` is a server; {instead}"))
    .collect();
    (!messages.is_empty()).then_some(Failure::BadInput {
        messages,
        summary: None,
    })
}

/// `cueline login` is about the server that its argument names, and no other.
fn refuse_other_server(matches: &ArgMatches) -> Option<Failure> {
    let (_, matches) = matches.subcommand().filter(|(name, _)| *name == "login")?;
    let messages: Vec<String> = [
        ("url", "--url", "give the address as the argument of login"),
        (
            "token",
            "--token",
            "others can see command lines; use --token-file",
        ),
        (
            "context",
            "--context",
            "--name sets the name of the context",
        ),
        (
            "namespace",
            "--namespace",
            "--default-namespace sets that of the context",
        ),
    ]
    .into_iter()
    .filter(|(id, ..)| matches.value_source(id) == Some(ValueSource::CommandLine))
    .map(|(_, flag, instead)| format!("{flag} has no effect on login; {instead}"))
    .collect();
    (!messages.is_empty()).then_some(Failure::BadInput {
        messages,
        summary: None,
    })
}

/// Commands about what belongs to no namespace, and the one whose arguments name it. They ignore the namespace of a variable or a context.
const OF_NO_NAMESPACE: [&str; 6] = ["logout", "namespace", "setup", "token", "user", "whoami"];

/// Refuses a namespace in the command line of a command that would not be limited to it.
fn refuse_namespace(matches: &ArgMatches) -> Option<Failure> {
    let (name, matches) = matches.subcommand()?;
    let is_given = OF_NO_NAMESPACE.contains(&name)
        && matches.value_source("namespace") == Some(ValueSource::CommandLine);
    is_given.then(|| {
        Failure::bad_input(format!(
            "--namespace has no effect on `cueline {name}`, which is about what belongs to no namespace, or names it as an argument; leave it out"
        ))
    })
}

async fn run(cli: Cli, native: Native) -> Result<(), Failure> {
    let Options { server, output } = cli.options;
    let out = Out::new(output);
    match cli.command {
        Command::Jobs(command) => command.run(server, out).await,
        Command::Access(command) => command.run(server, out).await,
        Command::Role(args) => role(args, native).await,
        Command::Prepare(PrepareCommand::Migrate(Deferred(args))) => migrate::run(out, &args).await,
        Command::Prepare(PrepareCommand::Config(Deferred(command))) => {
            config::check::run(out, command)
        }
        Command::Program(command) => program(command, out).await,
    }
}

async fn program(command: ProgramCommand, out: Out) -> Result<(), Failure> {
    let whole = || cueline_interface::whole(Cli::command);
    match command {
        ProgramCommand::Completion(Deferred(args)) => completion::completion(out, whole(), &args),
        ProgramCommand::Man(Deferred(args)) => completion::man(out, whole(), &args),
        #[cfg(feature = "bench")]
        ProgramCommand::Bench(Deferred(args)) => Ok(bench::run(out, args).await?),
        #[cfg(feature = "bench")]
        ProgramCommand::BenchWorker(Deferred(args)) => Ok(bench::run_worker(args).await?),
        ProgramCommand::Guard(Deferred(args)) => Ok(guard::run(args.id).await?),
    }
}

/// Runs a role until SIGTERM.
async fn role(args: RoleArgs, native: Native) -> Result<(), Failure> {
    // First of all: processes that an earlier start left behind may be watching.
    if let Err(error) = cueline_runtime::private_process::hide() {
        say(&format!(
            "warning: failed to hide this process from its jobs: {error}; they can read its environment, so give secrets in files"
        ));
    }
    match args {
        RoleArgs::Standalone(Deferred(flags)) => standalone::run(valid(flags.load())?).await?,
        RoleArgs::Scheduler(Deferred(flags)) => scheduler::run(valid(flags.load())?).await?,
        RoleArgs::Worker(Deferred(flags)) => worker::run(valid(flags.load())?, native).await?,
    }
    Ok(())
}

/// Returns the configuration, or all its errors.
fn valid<T>(loaded: Loaded<T>) -> Result<T, Failure> {
    for warning in loaded.warnings {
        say(&format!("warning: {warning}"));
    }
    loaded.config.map_err(|messages| Failure::BadInput {
        messages,
        summary: Some("nothing was started".to_owned()),
    })
}
