//! The command line of a role: its settings as flags. Their values are parsed later, so that all mistakes are reported
//! at once.

use std::marker::PhantomData;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{
    Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, Id, Subcommand, value_parser,
};
use cueline_interface::Deferred;

use super::environment;
use super::file::ConfigFile;
use super::roles::{Role, SchedulerConfig, StandaloneConfig, WorkerConfig};
use super::rules::Rules;
use super::schema::{self, Definition, Shape};
use super::settings::{Flags, Setting, Settings};

/// A role with the flags that it was given.
#[derive(Debug, Subcommand)]
pub(crate) enum RoleArgs {
    /// Scheduler, store, broker and executor in one process
    Standalone(Deferred<FlagsOf<StandaloneConfig>>),
    /// A scheduler node with its API; any number of them share one store
    Scheduler(Deferred<FlagsOf<SchedulerConfig>>),
    /// An executor: takes triggers from the broker and runs them
    Worker(Deferred<FlagsOf<WorkerConfig>>),
}

/// The flags of one role.
#[derive(Debug)]
pub(crate) struct FlagsOf<T> {
    /// The file that `--config` names.
    pub(super) config: Option<PathBuf>,
    given: Flags,
    role: PhantomData<T>,
}

/// A configuration with the origin of each setting.
#[derive(Debug)]
pub(crate) struct Loaded<T> {
    /// The configuration, or all its errors.
    pub(crate) config: Result<T, Vec<String>>,
    pub(crate) settings: Vec<Setting>,
    pub(crate) warnings: Vec<String>,
}

impl<T: Rules> FlagsOf<T> {
    /// No flags but `--config`.
    pub(super) fn none(config: Option<PathBuf>) -> Self {
        Self {
            config,
            given: Flags::new(),
            role: PhantomData,
        }
    }

    /// Derives the configuration from these flags, the environment and the file.
    pub(crate) fn load(&self) -> Loaded<T> {
        let variable = || std::env::var_os("CUELINE_CONFIG").filter(|path| !path.is_empty());
        let path = self
            .config
            .clone()
            .or_else(|| variable().map(PathBuf::from));
        let mut settings = Settings::gather::<T>(&self.given, ConfigFile::read(path.as_deref()));
        T::complete(&mut settings);
        let config = settings.parse::<T>();
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        settings.warnings.extend(environment::warnings(names));
        Loaded {
            config: config.ok_or(settings.problems),
            settings: settings.list,
            warnings: settings.warnings,
        }
    }
}

impl<T: Role> FromArgMatches for FlagsOf<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self {
            config: matches.get_one("config").cloned(),
            given: given::<T>(matches),
            role: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<T: Role> Args for FlagsOf<T> {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("Configuration file (TOML); /etc/cueline/cueline.toml by default, if it exists");
        let flags = schema::definitions::<T>()
            .into_iter()
            .filter(schema::is_flag);
        command.arg(config).args(flags.map(unparsed))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// The flag takes any text: all values are parsed together later.
fn unparsed(definition: Definition) -> Arg {
    let flag = definition
        .required(false)
        .value_parser(value_parser!(String));
    match Shape::of(&flag) {
        Shape::Switch => flag.action(ArgAction::SetTrue),
        _ => flag,
    }
}

/// The flags that were given on the command line.
fn given<T: Role>(matches: &ArgMatches) -> Flags {
    let given = |id: &Id| {
        let is_given = matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
        let texts = matches.get_many(id.as_str()).filter(|_| is_given)?;
        Some((id.clone(), texts.cloned().collect()))
    };
    let definitions = schema::definitions::<T>();
    let flags = definitions
        .iter()
        .filter(|definition| schema::is_flag(definition));
    flags
        .filter_map(|definition| given(definition.get_id()))
        .collect()
}
