//! `cueline bulk …`: one action on all jobs or runs that a filter selects.
//!
//! The command lists what the filter selects, says how many those are, and asks. Then it sends one request for each of them,
//! with the version that it has listed. So no transaction is long, each change has its entry in the audit log, and what
//! somebody else has changed meanwhile is left as it is and reported. The server needs to know nothing of all this.

mod jobs;
mod prune;
mod prune_runs;
mod request;
mod runs;
mod tally;

use clap::{Args, Subcommand};
use cueline_interface::{Failure, Out};
use cueline_model::{ExecutorName, JobName, RunState};

use crate::client::Api;
use crate::lists::{GroupArgs, LabelArgs, PageArgs, WindowArgs, run_state};
use crate::namespaces::AllNamespaces;
use crate::prompt;

pub(crate) use jobs::export;
pub(crate) use prune::Prune;
pub(crate) use prune_runs::{RunPruneArgs, run as prune_runs};

/// The most jobs or runs of one command.
const MAX_SELECTED: u32 = 100_000;

/// How many of them are named before the question.
const NAMED: usize = 10;

/// `cueline bulk …`
#[derive(Debug, Subcommand)]
pub(crate) enum BulkCommand {
    /// Stop the schedules of jobs; their running attempts continue
    Pause(BulkJobsArgs),
    /// Start the schedules of jobs
    Resume(BulkJobsArgs),
    /// Run jobs now
    Trigger(BulkTriggerArgs),
    /// Delete jobs; their runs are kept
    Delete(BulkJobsArgs),
    /// Cancel runs that have not ended
    Cancel(Box<BulkRunsArgs>),
    /// Trigger the jobs of runs that have failed, with the parameters of those runs; once for each run
    Retry(Box<BulkRunsArgs>),
}

/// Whether to act, and whether to ask before.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Confirmation {
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask
    #[arg(short, long, conflicts_with = "dry_run")]
    pub(crate) yes: bool,
}

/// Which jobs.
#[derive(Debug, Args)]
pub(crate) struct JobFilterArgs {
    #[command(flatten)]
    pub(crate) all: AllNamespaces,
    /// Only jobs with this name, or whose names begin with what is before a * at the end; may be given several times
    #[arg(long = "name", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) groups: GroupArgs,
    #[command(flatten)]
    pub(crate) labels: LabelArgs,
    /// Only jobs in this state; may be given several times
    #[arg(long = "state", value_name = "STATE", value_parser = ["active", "paused"])]
    pub(crate) states: Vec<String>,
}

/// Some jobs.
#[derive(Debug, Args)]
pub(crate) struct BulkJobsArgs {
    #[command(flatten)]
    pub(crate) filter: JobFilterArgs,
    #[command(flatten)]
    pub(crate) confirmation: Confirmation,
}

/// `cueline bulk trigger`
#[derive(Debug, Args)]
pub(crate) struct BulkTriggerArgs {
    #[command(flatten)]
    pub(crate) jobs: BulkJobsArgs,
    /// Parameter text in place of the jobs' own
    #[arg(long, value_name = "TEXT")]
    pub(crate) param: Option<String>,
}

/// Some runs.
#[derive(Debug, Args)]
pub(crate) struct BulkRunsArgs {
    #[command(flatten)]
    pub(crate) all: AllNamespaces,
    /// Only runs of this job; may be given several times
    #[arg(long = "job", value_name = "JOB")]
    pub(crate) jobs: Vec<JobName>,
    #[command(flatten)]
    pub(crate) groups: GroupArgs,
    #[command(flatten)]
    pub(crate) labels: LabelArgs,
    /// Only runs in this state; may be given several times
    #[arg(long = "state", value_name = "STATE", value_parser = run_state)]
    pub(crate) states: Vec<RunState>,
    /// Only runs that this has created; may be given several times
    #[arg(long = "kind", value_name = "KIND", value_parser = ["schedule", "manual", "child", "startup", "backfill"])]
    pub(crate) kinds: Vec<String>,
    /// Only runs of executors with this name; may be given several times
    #[arg(long = "executor", value_name = "EXECUTOR")]
    pub(crate) executors: Vec<ExecutorName>,
    #[command(flatten)]
    pub(crate) window: WindowArgs,
    #[command(flatten)]
    pub(crate) confirmation: Confirmation,
}

pub(crate) async fn run(api: &Api, out: Out, command: BulkCommand) -> Result<(), Failure> {
    match command {
        BulkCommand::Pause(args) => jobs::run(api, out, &args, jobs::Action::Pause).await,
        BulkCommand::Resume(args) => jobs::run(api, out, &args, jobs::Action::Resume).await,
        BulkCommand::Delete(args) => jobs::run(api, out, &args, jobs::Action::Delete).await,
        BulkCommand::Trigger(args) => {
            let action = jobs::Action::Trigger { param: args.param };
            jobs::run(api, out, &args.jobs, action).await
        }
        BulkCommand::Cancel(args) => runs::run(api, out, &args, runs::Action::Cancel).await,
        BulkCommand::Retry(args) => runs::run(api, out, &args, runs::Action::Retry).await,
    }
}

/// The whole of a list, if it is not longer than one command may act on.
fn whole() -> PageArgs {
    PageArgs {
        limit: Some(MAX_SELECTED + 1),
        ..PageArgs::default()
    }
}

/// Refuses more than one command may act on.
fn check_number(found: usize, what: &str) -> Result<(), Failure> {
    if u32::try_from(found).is_ok_and(|found| found <= MAX_SELECTED) {
        return Ok(());
    }
    Err(Failure::bad_input(format!(
        "filter: more than {MAX_SELECTED} {what} match; give a filter that selects fewer"
    )))
}

/// Asks whether to act. Without a terminal, `--yes` has to be given.
pub(crate) fn confirm(
    out: Out,
    confirmation: Confirmation,
    question: &str,
) -> Result<bool, Failure> {
    if confirmation.yes {
        return Ok(true);
    }
    let answer = prompt::line(&format!("{question} [y/N] "), "--yes");
    match answer {
        Ok(answer) if ["y", "yes"].contains(&answer.to_lowercase().as_str()) => Ok(true),
        Ok(_) => {
            out.line("nothing was changed")?;
            Ok(false)
        }
        Err(_) => Err(Failure::bad_input(
            "--yes: missing; nothing was changed. Give --yes, or --dry-run to see what would be done",
        )),
    }
}

/// The first of some names, and how many others there are.
fn named<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let others = names.len().saturating_sub(NAMED);
    let first: Vec<&str> = names.take(NAMED).collect();
    let first = first.join(", ");
    match others {
        0 => first,
        others => format!("{first} and {others} more"),
    }
}

/// "1 job", "3 jobs".
fn counted(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_names_are_shown_and_the_others_counted() {
        let names: Vec<String> = (0..12).map(|n| format!("j{n}")).collect();
        let shown = |n: usize| named(names[..n].iter().map(String::as_str));
        assert_eq!(shown(2), "j0, j1");
        assert!(shown(10).ends_with("j9"));
        assert!(shown(12).ends_with("j9 and 2 more"));
        assert_eq!(counted(1, "job"), "1 job");
        assert_eq!(counted(0, "job"), "0 jobs");
    }

    #[test]
    fn one_command_acts_on_a_bounded_number() {
        assert!(check_number(100_000, "jobs").is_ok());
        assert!(check_number(100_001, "jobs").is_err());
    }
}
