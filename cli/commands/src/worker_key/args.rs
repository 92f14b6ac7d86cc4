//! The arguments of `cueline worker-key`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use cueline_model::{DurationMs, ExecutorName, GroupName};
use cueline_protocol::origin::WorkerKeyId;

use crate::lists::{GroupArgs, PageArgs};
use crate::namespaces::AllNamespaces;

/// `cueline worker-key …`
#[derive(Debug, Subcommand)]
pub(crate) enum WorkerKeyCommand {
    /// Create an enrolment token, with which workers have their keys accepted
    Token(EnrolTokenArgs),
    /// List enrolment tokens
    Tokens(TokenListArgs),
    /// Delete an enrolment token; the keys that it has enrolled stay
    DeleteToken(DeleteTokenArg),
    /// List the keys of workers
    List(KeyListArgs),
    /// Revoke a key: what it seals is not accepted any more
    Revoke(KeyArgs),
    /// Allow a revoked key again
    Allow(KeyArgs),
    /// Show the key of a worker on this machine
    Show(LocalKeyArg),
    /// Make a new key for a worker on this machine; it replaces the present one after the worker's next start
    Rotate(LocalKeyArg),
}

/// `cueline worker-key token`
#[derive(Debug, Args)]
pub(crate) struct EnrolTokenArgs {
    /// Only workers of this group; of all groups of the namespace by default
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<GroupName>,
    /// Only this executor; its new key replaces an earlier one
    #[arg(long, value_name = "EXECUTOR", requires = "group")]
    pub(crate) executor: Option<ExecutorName>,
    /// How many workers it enrols; 1 by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) uses: Option<u32>,
    /// How long it is valid, such as 30m or 2d, or never; 1h by default
    #[arg(long, value_name = "DURATION", value_parser = validity)]
    pub(crate) valid: Option<String>,
    /// Where to write it; printed by default. An existing file is not overwritten
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Only write the file, without a server; for the --enrol-token-file of schedulers and workers
    #[arg(long, requires = "out", conflicts_with_all = ["group", "executor", "uses", "valid"])]
    pub(crate) offline: bool,
}

/// `cueline worker-key delete-token`
#[derive(Debug, Args)]
pub(crate) struct DeleteTokenArg {
    #[command(flatten)]
    pub(crate) all: AllNamespaces,
    /// The token's id
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

/// `cueline worker-key list`
#[derive(Debug, Args)]
pub(crate) struct KeyListArgs {
    #[command(flatten)]
    pub(crate) all: AllNamespaces,
    #[command(flatten)]
    pub(crate) groups: GroupArgs,
    /// Only keys of executors with this name; may be given several times
    #[arg(long = "executor", value_name = "EXECUTOR")]
    pub(crate) executors: Vec<ExecutorName>,
    /// Only keys in this state; may be given several times
    #[arg(long = "state", value_name = "STATE", value_parser = ["allowed", "revoked"])]
    pub(crate) states: Vec<String>,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// `cueline worker-key tokens`
#[derive(Debug, Args)]
pub(crate) struct TokenListArgs {
    #[command(flatten)]
    pub(crate) all: AllNamespaces,
    #[command(flatten)]
    pub(crate) groups: GroupArgs,
    /// Only tokens in this state; may be given several times
    #[arg(long = "state", value_name = "STATE", value_parser = ["valid", "expired", "used_up"])]
    pub(crate) states: Vec<String>,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// A key of an executor.
#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    /// The executor's name
    #[arg(value_name = "EXECUTOR")]
    pub(crate) executor: ExecutorName,
    /// The key's id, as `cueline worker-key list` prints it
    #[arg(value_name = "KEY")]
    pub(crate) key: WorkerKeyId,
    /// The executor's group
    #[arg(long, value_name = "GROUP", default_value = "default")]
    pub(crate) group: GroupName,
}

/// The key of a worker on this machine.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct LocalKeyArg {
    /// The worker's key file
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// The worker's state directory, in which the key is by default
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

fn validity(text: &str) -> Result<String, String> {
    if text != "never" {
        text.parse::<DurationMs>()
            .map_err(|error| format!("{error}, or never"))?;
    }
    Ok(text.to_owned())
}
