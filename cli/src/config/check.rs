//! `cueline config check`: prints the effective configuration, the origin of each value, and all errors.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use cueline_interface::{Deferred, Failure, Out, Paint, cell, say};
use serde_json::{Map, Value, json};

use super::file::ConfigFile;
use super::flags::{FlagsOf, Loaded, RoleArgs};
use super::rules::Rules;
use super::settings::{Layer, Setting};

/// `cueline config …`
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the configuration that a process started here would have, and the origin of each value
    Check(CheckArgs),
}

/// `cueline config check`
#[derive(Debug, Args)]
#[command(subcommand_value_name = "ROLE", subcommand_help_heading = "Roles")]
pub(crate) struct CheckArgs {
    /// Configuration file (TOML); /etc/cueline/cueline.toml by default, if it exists
    #[arg(long, value_name = "FILE", env = "CUELINE_CONFIG")]
    config: Option<PathBuf>,
    /// The role, with the flags that it would be started with; by default each that has a section in the file
    #[command(subcommand)]
    role: Option<RoleArgs>,
}

struct Checked {
    role: &'static str,
    settings: Vec<Setting>,
    problems: Vec<String>,
    warnings: Vec<String>,
}

/// Prints the configuration of the role that `command` names, or of each role in the file.
pub(crate) fn run(out: Out, command: ConfigCommand) -> Result<(), Failure> {
    let ConfigCommand::Check(args) = command;
    let checked = match args.role {
        Some(role) => vec![check(role, args.config)],
        None => check_sections(args.config.as_deref())?,
    };
    // Problems above the sections concern each role, and are reported once.
    let distinct = |of: fn(&Checked) -> &Vec<String>| -> Vec<String> {
        let mut seen = HashSet::new();
        let all = checked.iter().flat_map(of);
        all.filter(|text| seen.insert(*text)).cloned().collect()
    };
    let problems = distinct(|one| &one.problems);
    let warnings = distinct(|one| &one.warnings);
    for warning in warnings {
        say(&format!("warning: {warning}"));
    }
    if out.is_json() {
        let roles = checked
            .iter()
            .map(|one| (one.role.to_owned(), json_of(&one.settings)));
        let roles: Map<String, Value> = roles.collect();
        out.json(&json!({ "roles": roles, "errors": problems }))?;
    } else {
        for one in &checked {
            print(out, one)?;
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(Failure::BadInput {
        messages: problems,
        summary: None,
    })
}

fn check(role: RoleArgs, config: Option<PathBuf>) -> Checked {
    fn of<T: Rules>(mut flags: FlagsOf<T>, config: Option<PathBuf>) -> Checked {
        flags.config = flags.config.or(config);
        let Loaded {
            config,
            settings,
            warnings,
        } = flags.load();
        Checked {
            role: T::NAME,
            settings,
            problems: config.err().unwrap_or_default(),
            warnings,
        }
    }
    match role {
        RoleArgs::Standalone(Deferred(flags)) => of(flags, config),
        RoleArgs::Scheduler(Deferred(flags)) => of(flags, config),
        RoleArgs::Worker(Deferred(flags)) => of(flags, config),
    }
}

/// Each role that has a section in the file.
fn check_sections(config: Option<&Path>) -> Result<Vec<Checked>, Failure> {
    let file = ConfigFile::read(config);
    let roles = file.sections.iter().map(|name| match *name {
        "standalone" => RoleArgs::Standalone(Deferred(FlagsOf::none(None))),
        "scheduler" => RoleArgs::Scheduler(Deferred(FlagsOf::none(None))),
        _ => RoleArgs::Worker(Deferred(FlagsOf::none(None))),
    });
    let checked: Vec<Checked> = roles
        .map(|role| check(role, config.map(Path::to_path_buf)))
        .collect();
    if !checked.is_empty() {
        return Ok(checked);
    }
    let mut messages = file.problems;
    let names = "standalone, scheduler or worker";
    messages.push(match &file.path {
        Some(path) => format!(
            "{}: has no section of a role; name the role: cueline config check {names}",
            path.display()
        ),
        None => {
            format!("ROLE: missing, and there is no configuration file; name the role: {names}")
        }
    });
    Err(Failure::BadInput {
        messages,
        summary: None,
    })
}

fn print(out: Out, checked: &Checked) -> Result<(), Failure> {
    out.line(&format!("[{}]", checked.role))?;
    let mut table = out.table(&["KEY", "VALUE", "FROM"]);
    for setting in &checked.settings {
        let dim = (setting.layer == Layer::Default).then_some(Paint::Dim);
        table.add_row(vec![
            cell(setting.key(), None),
            cell(setting.shown.as_deref().unwrap_or("–"), dim),
            cell(setting.from.as_str(), dim),
        ]);
    }
    out.print_table(&table, "")
}

fn json_of(settings: &[Setting]) -> Value {
    let entry = |one: &Setting| {
        let value = json!({ "value": one.shown, "from": one.from });
        (one.key().to_owned(), value)
    };
    settings.iter().map(entry).collect::<Map<_, _>>().into()
}
