//! The flags of a role, made from its settings.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, Subcommand, value_parser};

use super::raw::Raw;
use super::settings::{Preset, Role, Setting, Shape};

/// `cueline standalone`, `cueline scheduler` or `cueline worker`, with the flags that were given.
#[derive(Debug, Clone)]
pub struct RoleArgs {
    /// Which.
    pub role: Role,
    /// The file.
    pub config: Option<PathBuf>,
    /// Flags that were given, by key.
    pub given: Vec<(&'static str, Raw)>,
}

impl FromArgMatches for RoleArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let (name, matches) = matches.subcommand().unwrap_or(("", matches));
        let role = Role::ALL
            .into_iter()
            .find(|role| role.name() == name)
            .ok_or_else(|| clap::Error::new(clap::error::ErrorKind::InvalidSubcommand))?;
        let given = role
            .settings()
            .iter()
            .filter(|setting| setting.flag().is_some())
            .filter_map(|setting| Some((setting.key, raw(setting, matches)?)))
            .collect();
        Ok(Self {
            role,
            config: matches.get_one("config").cloned(),
            given,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Subcommand for RoleArgs {
    fn augment_subcommands(command: Command) -> Command {
        Role::ALL.into_iter().fold(command, |command, role| {
            command.subcommand(subcommand(role))
        })
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        Role::ALL.iter().any(|role| role.name() == name)
    }
}

fn subcommand(role: Role) -> Command {
    let config = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("Configuration file (TOML); /etc/cueline/cueline.toml by default, if it is there");
    let command = Command::new(role.name()).about(role.about()).arg(config);
    role.settings()
        .iter()
        .fold(command, |command, setting| match flag(setting) {
            Some(flag) => command.arg(flag),
            None => command,
        })
}

fn flag(setting: &'static Setting) -> Option<Arg> {
    let preset = match setting.preset {
        Preset::Is(_) if setting.shape == Shape::Switch => String::new(),
        Preset::Is(text) | Preset::Found(text) => format!(" [default: {text}]"),
        Preset::None | Preset::Required => String::new(),
    };
    let arg = Arg::new(setting.key).long(setting.flag()?).help(format!(
        "{}{preset} [env: {}]",
        setting.meaning,
        setting.variable()
    ));
    Some(match setting.shape {
        Shape::Switch => arg.action(ArgAction::SetTrue),
        Shape::List => arg
            .value_name(setting.value)
            .action(ArgAction::Append)
            .value_delimiter(','),
        Shape::Text | Shape::Number => arg.value_name(setting.value),
    })
}

fn raw(setting: &Setting, matches: &ArgMatches) -> Option<Raw> {
    let key = setting.key;
    match setting.shape {
        Shape::Switch => matches.get_flag(key).then_some(Raw::Switch(true)),
        Shape::List => {
            let texts = matches.get_many::<String>(key)?;
            Some(Raw::list(texts.map(String::as_str)))
        }
        // A number is read with the other values, so that all mistakes are told at once.
        Shape::Text | Shape::Number => {
            let text = matches.get_one::<String>(key)?.clone();
            Some(Raw::Text(text))
        }
    }
}
