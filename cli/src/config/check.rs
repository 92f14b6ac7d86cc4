//! `cueline config check`: the configuration as it holds, with where each value comes from, and everything that is wrong with it.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::raw::Source;
use super::reader::Effective;
use super::{ConfigFile, Role, RoleArgs, SchedulerConfig, StandaloneConfig, WorkerConfig};
use crate::failure::{Failure, say};
use crate::output::{Out, Paint, cell};

/// `cueline config …`
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print the configuration that a process would have here and now, and where each value comes from
    Check(CheckArgs),
}

/// `cueline config check`
#[derive(Debug, Args)]
#[command(subcommand_value_name = "ROLE", subcommand_help_heading = "Roles")]
pub struct CheckArgs {
    /// Configuration file (TOML); /etc/cueline/cueline.toml by default, if it is there
    #[arg(long, value_name = "FILE", env = "CUELINE_CONFIG")]
    pub config: Option<PathBuf>,
    /// The role, with the flags that it would be started with; by default each that has a section in the file
    #[command(subcommand)]
    pub role: Option<RoleArgs>,
}

/// Carries it out.
pub fn run(out: Out, command: ConfigCommand) -> Result<(), Failure> {
    let ConfigCommand::Check(args) = command;
    let roles = roles(&args)?;
    let mut problems = Vec::new();
    let mut shown = Vec::new();
    for mut role in roles {
        role.config = role.config.or_else(|| args.config.clone());
        let checked = checked(&role);
        for warning in checked.warnings {
            say(&format!("warning: {warning}"));
        }
        for problem in checked.problems {
            // What is wrong above the sections is wrong for each role.
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
        shown.push((role.role, checked.effective));
    }
    if out.is_json() {
        let roles: serde_json::Map<String, Value> = shown
            .iter()
            .map(|(role, effective)| (role.name().to_owned(), json_of(effective)))
            .collect();
        out.json(&json!({ "roles": roles, "errors": problems }))?;
    } else {
        for (role, effective) in &shown {
            print(out, *role, effective)?;
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

struct Checked {
    effective: Vec<Effective>,
    problems: Vec<String>,
    warnings: Vec<String>,
}

fn checked(args: &RoleArgs) -> Checked {
    fn of<T>(outcome: super::Outcome<T>) -> Checked {
        Checked {
            problems: outcome.config.err().unwrap_or_default(),
            effective: outcome.effective,
            warnings: outcome.warnings,
        }
    }
    let reader = super::reader(args);
    match args.role {
        Role::Standalone => of(StandaloneConfig::read(reader)),
        Role::Scheduler => of(SchedulerConfig::read(reader)),
        Role::Worker => of(WorkerConfig::read(reader)),
    }
}

fn roles(args: &CheckArgs) -> Result<Vec<RoleArgs>, Failure> {
    if let Some(role) = &args.role {
        return Ok(vec![role.clone()]);
    }
    let (file, problems) = ConfigFile::read(args.config.as_deref());
    let found: Vec<RoleArgs> = file
        .sections
        .iter()
        .map(|(role, _)| RoleArgs {
            role: *role,
            config: args.config.clone(),
            given: Vec::new(),
        })
        .collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let mut messages = problems;
    let names = "standalone, scheduler or worker";
    messages.push(match &file.path {
        Some(path) => format!(
            "{}: has no section of a role; say which is meant: cueline config check {names}",
            path.display()
        ),
        None => format!(
            "ROLE: missing, and there is no configuration file; say which is meant: {names}"
        ),
    });
    Err(Failure::BadInput {
        messages,
        summary: None,
    })
}

fn print(out: Out, role: Role, effective: &[Effective]) -> Result<(), Failure> {
    out.line(&format!("[{}]", role.name()))?;
    let mut table = out.table(&["KEY", "VALUE", "FROM"]);
    for one in effective {
        let dim = (one.source == Source::Default).then_some(Paint::Dim);
        table.add_row(vec![
            cell(one.setting.key, None),
            cell(one.shown.as_deref().unwrap_or("–"), dim),
            cell(one.source.to_string(), dim),
        ]);
    }
    out.print_table(&table, "")
}

fn json_of(effective: &[Effective]) -> Value {
    effective
        .iter()
        .map(|one| {
            let entry = json!({ "value": one.shown, "from": one.source.to_string() });
            (one.setting.key.to_owned(), entry)
        })
        .collect::<serde_json::Map<_, _>>()
        .into()
}
