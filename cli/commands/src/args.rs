//! The commands and their arguments.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use cueline_model::{ExecutorName, GroupName, JobName, RunState, Timestamp};

use crate::bulk::{Confirmation, JobFilterArgs, Prune, RunPruneArgs};
use crate::job_change::ChangedJobArg;
use crate::job_history::{HistoryArgs, RestoreArgs};
use crate::list_args::{ExecutorListArgs, JobListArgs, QueueListArgs};
use crate::lists::{GroupArgs, LabelArgs, PageArgs, WindowArgs, run_state};
use crate::namespaces::AllNamespaces;
use crate::watch::WatchArgs;

/// `cueline job …`
#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// Create and change jobs to match the files; other jobs stay as they are, unless --prune deletes them
    Apply(ApplyArgs),
    /// Print the definitions of jobs, as a job file
    Export(ExportArgs),
    /// Show what apply would change, field by field
    Diff(FilesArgs),
    /// List jobs
    List(JobListArgs),
    /// Show one job
    Show(JobArg),
    /// Show a job's next fire times
    Next(NextArgs),
    /// Show the next fire times of the jobs in files, without applying them
    Preview(PreviewArgs),
    /// Stop a job's schedule; its running attempts continue
    Pause(ChangedJobArg),
    /// Start a job's schedule
    Resume(ChangedJobArg),
    /// Delete a job; its runs are kept
    Delete(ChangedJobArg),
    /// List a job's versions, or compare two of them
    History(HistoryArgs),
    /// Apply the definition of an earlier version of a job
    Restore(RestoreArgs),
}

/// One job.
#[derive(Debug, Args)]
pub(crate) struct JobArg {
    /// The job's name
    #[arg(value_name = "JOB")]
    pub(crate) name: JobName,
}

/// Job files.
#[derive(Debug, Args)]
pub(crate) struct FilesArgs {
    /// A job file: .toml, .yaml, .yml or .json; may be given several times
    #[arg(short, long = "file", value_name = "FILE", required = true, num_args = 1..)]
    pub(crate) files: Vec<PathBuf>,
}

/// `cueline job apply`
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// What to apply.
    #[command(flatten)]
    pub(crate) files: FilesArgs,
    /// Also delete the jobs with this label that the files do not have, in their namespaces; all jobs of the files have to have it
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) prune: Option<Prune>,
    /// Whether to do it, and to ask before a deletion.
    #[command(flatten)]
    pub(crate) confirmation: Confirmation,
}

/// `cueline job export`
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Which jobs; all of the namespace by default.
    #[command(flatten)]
    pub(crate) filter: JobFilterArgs,
    /// Write them to this file, which job apply reads
    #[arg(long, value_name = "FILE.json")]
    pub(crate) out: Option<PathBuf>,
}

/// `cueline job next`
#[derive(Debug, Args)]
pub(crate) struct NextArgs {
    /// The job's name
    #[arg(value_name = "JOB")]
    pub(crate) name: JobName,
    /// How many
    #[arg(short, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) n: u32,
    /// From when on; from now by default
    #[arg(long, value_name = "INSTANT", value_parser = cueline_api::instant)]
    pub(crate) from: Option<Timestamp>,
}

/// `cueline job preview`
#[derive(Debug, Args)]
pub(crate) struct PreviewArgs {
    #[command(flatten)]
    pub(crate) files: FilesArgs,
    /// How many for each job
    #[arg(short, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) n: u32,
    /// From when on; from now by default
    #[arg(long, value_name = "INSTANT", value_parser = cueline_api::instant)]
    pub(crate) from: Option<Timestamp>,
}

/// `cueline trigger`
#[derive(Debug, Args)]
pub(crate) struct TriggerArgs {
    /// The job's name
    #[arg(value_name = "JOB")]
    pub(crate) name: JobName,
    /// Parameter text in place of the job's own
    #[arg(long, value_name = "TEXT")]
    pub(crate) param: Option<String>,
    /// Idempotency key: a second trigger of the job with the same key creates no second run
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Time of the run; now by default
    #[arg(long, value_name = "INSTANT", value_parser = cueline_api::instant)]
    pub(crate) at: Option<Timestamp>,
    /// Wait for the end of the run; the exit status is 1 unless it succeeds
    #[arg(long)]
    pub(crate) wait: bool,
}

/// `cueline run …`
#[derive(Debug, Subcommand)]
pub(crate) enum RunCommand {
    /// List runs, newest first
    List(Box<RunListArgs>),
    /// Show one run with its timeline
    Show(RunShowArgs),
    /// Print a run's log
    Logs(LogsArgs),
    /// Cancel a run, whatever its state
    Cancel(RunArg),
    /// Delete the ended runs that a filter selects, with their logs
    Prune(Box<RunPruneArgs>),
}

/// `cueline run list`
#[derive(Debug, Args)]
pub(crate) struct RunListArgs {
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
    pub(crate) page: PageArgs,
    /// Whether it is shown again and again.
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
}

/// `cueline run show`
#[derive(Debug, Args)]
pub(crate) struct RunShowArgs {
    /// The run.
    #[command(flatten)]
    pub(crate) run: RunArg,
    /// Whether it is shown again and again.
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
}

/// One run.
#[derive(Debug, Args)]
pub(crate) struct RunArg {
    /// The run's id
    #[arg(value_name = "RUN", value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) id: i64,
}

/// `cueline run logs`
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// The run's id
    #[arg(value_name = "RUN", value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) id: i64,
    /// Continue until the run has ended
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Print the time of each line
    #[arg(short, long)]
    pub(crate) timestamps: bool,
}

/// `cueline executor …`
#[derive(Debug, Subcommand)]
pub(crate) enum ExecutorCommand {
    /// List executors
    List(ExecutorListArgs),
}

/// `cueline events`
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    #[command(flatten)]
    pub(crate) all: AllNamespaces,
    /// Only events of this kind; may be given several times
    #[arg(long = "kind", value_name = "KIND", value_enum)]
    pub(crate) kinds: Vec<EventKind>,
    /// Only this job and its runs; may be given several times
    #[arg(long = "job", value_name = "JOB")]
    pub(crate) jobs: Vec<JobName>,
    #[command(flatten)]
    pub(crate) groups: GroupArgs,
    /// Only runs in this state; may be given several times
    #[arg(long = "state", value_name = "STATE", value_parser = run_state)]
    pub(crate) states: Vec<RunState>,
}

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EventKind {
    /// Jobs that are created, changed, paused, resumed and deleted
    Job,
    /// Runs, from their creation to their end
    Run,
    /// Executors that appear, change their state, and are forgotten
    Executor,
}

impl EventKind {
    /// Its name in requests.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Run => "run",
            Self::Executor => "executor",
        }
    }
}

/// `cueline queue …`
#[derive(Debug, Subcommand)]
pub(crate) enum QueueCommand {
    /// List queues with their number of messages
    List(QueueListArgs),
    /// Show an executor's queue and its unfinished attempts
    Show(ExecutorArg),
    /// Empty an executor's queue; its runs are routed again
    Drain(ExecutorArg),
    /// Empty an executor's queue; its runs are cancelled
    Purge(ExecutorArg),
    /// Publish an executor's unfinished triggers again, after it has lost its state or its queue
    Replay(ExecutorArg),
}

/// One executor.
#[derive(Debug, Args)]
pub(crate) struct ExecutorArg {
    /// The executor's name
    #[arg(value_name = "EXECUTOR")]
    pub(crate) executor: ExecutorName,
    /// Its group
    #[arg(long, value_name = "GROUP", default_value = "default")]
    pub(crate) group: GroupName,
}

/// `cueline cron …`
#[derive(Debug, Subcommand)]
pub(crate) enum CronCommand {
    /// Show when an expression fires next
    Next(CronNextArgs),
}

/// `cueline cron next`
#[derive(Debug, Args)]
pub(crate) struct CronNextArgs {
    /// The expression, in quotes
    #[arg(value_name = "EXPRESSION")]
    pub(crate) expression: String,
    /// The time zone
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub(crate) tz: String,
    /// Dialect of the expression; by default its number of fields decides
    #[arg(long, value_enum)]
    pub(crate) dialect: Option<DialectArg>,
    /// From when on; from now by default
    #[arg(long, value_name = "INSTANT", value_parser = cueline_api::instant)]
    pub(crate) from: Option<Timestamp>,
    /// How many
    #[arg(short, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) n: u32,
}

/// The dialect of a cron expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DialectArg {
    /// 6 or 7 fields from seconds on, 1 = Sunday
    Quartz,
    /// 5 fields from minutes on, 0 and 7 = Sunday
    Unix,
}

/// `cueline doctor`
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// The data directory of a standalone server on this machine; by default the one that it announced
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
}
