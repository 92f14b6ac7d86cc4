//! The arguments of `cueline alarm …`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use cueline_model::Timestamp;

use crate::lists::PageArgs;
use crate::window::label;

/// `cueline alarm …`
#[derive(Debug, Subcommand)]
pub(crate) enum AlarmCommand {
    /// List what has raised an alarm, newest first
    List(AlarmListArgs),
    /// List the messages that were sent or will be, with the answers of their channels
    Deliveries(DeliveryListArgs),
    /// Create and change channels and rules to match the files; others stay as they are
    Apply(AlarmApplyArgs),
    /// List, show and delete rules, which say what raises an alarm
    #[command(subcommand)]
    Rule(DefinitionCommand),
    /// List, show and delete channels, where messages go
    #[command(subcommand)]
    Channel(DefinitionCommand),
    /// Begin, list and end silences, in which no messages are sent
    #[command(subcommand)]
    Silence(SilenceCommand),
    /// Send a test message through a channel, and print its answer
    Test(TestArgs),
}

/// `cueline alarm list`
#[derive(Debug, Args)]
pub(crate) struct AlarmListArgs {
    /// Only alarms of this rule
    #[arg(long, value_name = "RULE")]
    pub(crate) rule: Option<String>,
    /// Only alarms about this job
    #[arg(long, value_name = "JOB")]
    pub(crate) job: Option<String>,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// `cueline alarm deliveries`
#[derive(Debug, Args)]
pub(crate) struct DeliveryListArgs {
    /// Only messages of this rule
    #[arg(long, value_name = "RULE")]
    pub(crate) rule: Option<String>,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// `cueline alarm apply`
#[derive(Debug, Args)]
pub(crate) struct AlarmApplyArgs {
    /// A file with lists of channels and rules: .toml, .yaml, .yml or .json; may be given several times
    #[arg(short, long = "file", value_name = "FILE", required = true, num_args = 1..)]
    pub(crate) files: Vec<PathBuf>,
}

/// `cueline alarm rule …` and `cueline alarm channel …`
#[derive(Debug, Subcommand)]
pub(crate) enum DefinitionCommand {
    /// List all of the namespace
    List,
    /// Show one with its definition
    Show(NameArg),
    /// Delete one
    Delete(NameArg),
}

/// One name.
#[derive(Debug, Args)]
pub(crate) struct NameArg {
    /// Its name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// `cueline alarm silence …`
#[derive(Debug, Subcommand)]
pub(crate) enum SilenceCommand {
    /// Begin a silence: alarms in its scope are recorded, and no messages are sent about them
    Start(SilenceArgs),
    /// List the silences that are not over
    List,
    /// End silences
    End(SilenceIds),
}

/// `cueline alarm silence start`
#[derive(Debug, Args)]
pub(crate) struct SilenceArgs {
    /// Only alarms of this rule; may be given several times
    #[arg(long = "rule", value_name = "RULE")]
    pub(crate) rules: Vec<String>,
    /// Only alarms about this job; may be given several times
    #[arg(long = "job", value_name = "JOB")]
    pub(crate) jobs: Vec<String>,
    /// Only alarms about jobs of this group; may be given several times
    #[arg(long = "group", value_name = "GROUP")]
    pub(crate) groups: Vec<String>,
    /// Only alarms about jobs with this label; if given several times, all must hold
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,
    /// Why, for people
    #[arg(long, value_name = "TEXT", required = true)]
    pub(crate) reason: String,
    /// How long
    #[arg(
        long = "for",
        value_name = "DURATION",
        required_unless_present = "until",
        conflicts_with = "until"
    )]
    pub(crate) length: Option<String>,
    /// When it ends
    #[arg(long, value_name = "INSTANT", value_parser = cueline_api::instant)]
    pub(crate) until: Option<Timestamp>,
    /// When it begins; now by default
    #[arg(long, value_name = "INSTANT", value_parser = cueline_api::instant)]
    pub(crate) from: Option<Timestamp>,
}

/// `cueline alarm silence end`
#[derive(Debug, Args)]
pub(crate) struct SilenceIds {
    /// The number of a silence; may be given several times
    #[arg(value_name = "SILENCE", required = true, value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) ids: Vec<i64>,
}

/// `cueline alarm test`
#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// The channel's name
    #[arg(value_name = "CHANNEL")]
    pub(crate) channel: String,
    /// How long to wait for the answer
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) wait: u32,
}
