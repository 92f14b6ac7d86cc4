//! The arguments of `cueline import`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use cueline_model::GroupName;

/// `cueline import …`
#[derive(Debug, Subcommand)]
pub(crate) enum ImportCommand {
    /// Create a job from each line of crontab files
    Crontab(CrontabArgs),
    /// Create a job from each trigger of Quartz, from its database or from its job files
    Quartz(QuartzArgs),
    /// Create a job from each timer of systemd
    Systemd(SystemdArgs),
    /// Create a job from each job of XXL-JOB, and a script from each GLUE source, from a dump of its database
    Xxl(XxlArgs),
}

/// What to do with the jobs.
#[derive(Debug, Args)]
pub(crate) struct TargetArgs {
    /// Print the jobs and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Write the jobs into a new job file (.toml), and change nothing on the server
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    pub(crate) write: Option<PathBuf>,
    /// The executor group of the jobs; "default" by default, and for XXL-JOB the app name of their executors
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<GroupName>,
    /// The time zone of times without one, that of the machine that they come from; this machine's by default
    #[arg(long, value_name = "ZONE")]
    pub(crate) tz: Option<String>,
}

/// `cueline import crontab`
#[derive(Debug, Args)]
pub(crate) struct CrontabArgs {
    /// Crontab files
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Whether lines name a user after the times, as in /etc/crontab and /etc/cron.d
    #[arg(long, value_enum, default_value_t)]
    pub(crate) user_column: UserColumn,
}

/// Whether a crontab has a user column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum UserColumn {
    /// Detected; a file whose lines differ is refused
    #[default]
    Auto,
    /// Each line has it
    Yes,
    /// No line has it
    No,
}

/// `cueline import systemd`
#[derive(Debug, Args)]
pub(crate) struct SystemdArgs {
    /// Timer units; each service is read from the same directory
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

/// `cueline import xxl`
#[derive(Debug, Args)]
pub(crate) struct XxlArgs {
    /// What `mysqldump DATABASE xxl_job_group xxl_job_info xxl_job_logglue` has written
    #[arg(long, value_name = "FILE")]
    pub(crate) dump: PathBuf,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

/// `cueline import quartz`
#[derive(Debug, Args)]
pub(crate) struct QuartzArgs {
    #[command(flatten)]
    pub(crate) source: QuartzSource,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// The prefix of the tables' names, after a schema and a dot if it is not the default one
    #[arg(
        long,
        value_name = "PREFIX",
        default_value = "QRTZ_",
        requires = "jdbc"
    )]
    pub(crate) prefix: String,
    /// The name of the scheduler, if the tables have several
    #[arg(long, value_name = "NAME", requires = "jdbc")]
    pub(crate) scheduler: Option<String>,
    /// The native handler of a Java class; without one, the handler has the name of the class. May be given several times
    #[arg(long = "handler", value_name = "CLASS=HANDLER", value_parser = handler)]
    pub(crate) handlers: Vec<(String, String)>,
}

/// Where Quartz's jobs are.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct QuartzSource {
    /// The PostgreSQL database with Quartz's tables: jdbc:postgresql://HOST:PORT/DATABASE?user=USER, or postgresql://…. PGPASSWORD has the password
    #[arg(long, value_name = "URL")]
    pub(crate) jdbc: Option<String>,
    /// A job file of Quartz (`job_scheduling_data`); may be given several times
    #[arg(long, value_name = "FILE")]
    pub(crate) xml: Vec<PathBuf>,
}

fn handler(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((class, handler)) if !class.is_empty() && !handler.is_empty() => {
            Ok((class.to_owned(), handler.to_owned()))
        }
        _ => Err("CLASS=HANDLER is expected, such as com.acme.ReportJob=report".to_owned()),
    }
}
