//! The arguments of `cueline job list`, `executor list`, `queue list` and `dlq list`.

use clap::Args;
use cueline_model::ExecutorName;

use crate::lists::{GroupArgs, LabelArgs, PageArgs, WindowArgs};
use crate::namespaces::AllNamespaces;
use crate::watch::WatchArgs;

/// `cueline job list`
#[derive(Debug, Args)]
pub(crate) struct JobListArgs {
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
    #[command(flatten)]
    pub(crate) page: PageArgs,
    /// Whether it is shown again and again.
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
}

/// `cueline executor list`
#[derive(Debug, Args)]
pub(crate) struct ExecutorListArgs {
    #[command(flatten)]
    pub(crate) all: AllNamespaces,
    /// Only executors with this name, or whose names begin with what is before a * at the end; may be given several times
    #[arg(long = "name", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) groups: GroupArgs,
    /// Only executors that announce this label; if given several times, all must hold
    #[arg(long = "label", value_name = "KEY[=VALUE]")]
    pub(crate) labels: Vec<String>,
    /// Only executors in this state; may be given several times
    #[arg(long = "state", value_name = "STATE", value_parser = ["alive", "draining", "refused", "silent", "stopped"])]
    pub(crate) states: Vec<String>,
    #[command(flatten)]
    pub(crate) page: PageArgs,
    /// Whether it is shown again and again.
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
}

/// `cueline queue list`
#[derive(Debug, Args)]
pub(crate) struct QueueListArgs {
    #[command(flatten)]
    pub(crate) all: AllNamespaces,
    #[command(flatten)]
    pub(crate) groups: GroupArgs,
    /// Only queues of executors with this name; may be given several times
    #[arg(long = "executor", value_name = "EXECUTOR")]
    pub(crate) executors: Vec<ExecutorName>,
    #[command(flatten)]
    pub(crate) page: PageArgs,
    /// Whether it is shown again and again.
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
}

/// `cueline dlq list`
#[derive(Debug, Args)]
pub(crate) struct DeadListArgs {
    #[command(flatten)]
    pub(crate) all: AllNamespaces,
    /// Only letters that were in this queue; may be given several times
    #[arg(long = "queue", value_name = "QUEUE")]
    pub(crate) queues: Vec<String>,
    /// Only letters with this topic, such as the name of a job; may be given several times
    #[arg(long = "topic", value_name = "TOPIC")]
    pub(crate) topics: Vec<String>,
    /// Only letters that this one refused, such as scheduler; may be given several times
    #[arg(long = "origin", value_name = "ORIGIN")]
    pub(crate) origins: Vec<String>,
    #[command(flatten)]
    pub(crate) groups: GroupArgs,
    #[command(flatten)]
    pub(crate) window: WindowArgs,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}
