//! Commands about jobs and their runs, and about what runs them.

use clap::Subcommand;
use cueline_interface::{Deferred, Failure, Out};

use crate::alarm::args::AlarmCommand;
use crate::args::{
    CronCommand, DoctorArgs, EventsArgs, ExecutorCommand, JobCommand, QueueCommand, RunCommand,
    TriggerArgs,
};
use crate::audit::AuditCommand;
use crate::backfill::BackfillCommand;
use crate::bulk::BulkCommand;
use crate::calendar::args::CalendarCommand;
use crate::client::Api;
use crate::dlq::DlqCommand;
use crate::explain::ExplainArgs;
use crate::flow::FlowCommand;
use crate::forecast::ForecastArgs;
use crate::import_args::ImportCommand;
use crate::limit::LimitCommand;
use crate::namespace::args::NamespaceCommand;
use crate::opaque::opaque;
use crate::pause::{PauseArgs, ResumeArgs};
use crate::retention::RetentionCommand;
use crate::script::args::ScriptCommand;
use crate::window::WindowCommand;
use crate::{Running, ServerArgs, in_no_namespace};
use crate::{
    alarm, audit, backfill, bulk, calendar, cron, dlq, doctor, events, executor, explain, flow,
    forecast, health, import, job, limit, namespace, pause, queue, retention, run, script, trigger,
    window,
};

#[derive(Debug, Subcommand)]
enum Command {
    /// Apply, list, show, pause, resume, delete and restore jobs
    #[command(subcommand)]
    Job(Deferred<JobCommand>),
    /// List, show, apply, import and delete calendars, which exclude fire times
    #[command(subcommand)]
    Calendar(Deferred<CalendarCommand>),
    /// List, show, save, compare, restore and delete scripts, which jobs run by name
    #[command(subcommand)]
    Script(Deferred<ScriptCommand>),
    /// Add, list and delete maintenance windows, in which jobs do not fire
    #[command(subcommand)]
    Window(Deferred<WindowCommand>),
    /// Rules that raise alarms, the channels and silences of their messages, and what was delivered
    #[command(subcommand)]
    Alarm(Deferred<AlarmCommand>),
    /// Pause all jobs, a group, or jobs with a label, for a time or until they are resumed
    Pause(Deferred<Box<PauseArgs>>),
    /// End pauses of several jobs
    Resume(Deferred<ResumeArgs>),
    /// Run a job for the fire times of a past window; list, show, pause, resume and cancel such backfills
    #[command(subcommand)]
    Backfill(Deferred<BackfillCommand>),
    /// Run a job now
    Trigger(Deferred<TriggerArgs>),
    /// List, show, cancel and prune runs; read their logs
    #[command(subcommand)]
    Run(Deferred<RunCommand>),
    /// List, show, cancel and retry flow runs: a fire, and all that follows from it by `after`
    #[command(subcommand)]
    Flow(Deferred<FlowCommand>),
    /// Say why a run or a job does not run now
    Explain(Deferred<ExplainArgs>),
    /// Show the fires of the next 24 hours, and which jobs are due together
    Forecast(Deferred<ForecastArgs>),
    /// List executors
    #[command(subcommand)]
    Executor(Deferred<ExecutorCommand>),
    /// Print changes of runs, jobs and executors as they happen
    Events(Deferred<EventsArgs>),
    /// List and show executors' queues; drain, purge and replay them
    #[command(subcommand)]
    Queue(Deferred<QueueCommand>),
    /// Pause, resume, trigger and delete the jobs, or cancel and retry the runs, that a filter selects
    #[command(subcommand)]
    Bulk(Deferred<BulkCommand>),
    /// List, show, replay and delete dead letters: messages that could not be processed
    #[command(subcommand)]
    Dlq(Deferred<DlqCommand>),
    /// List namespaces; show and set their quotas
    #[command(subcommand)]
    Namespace(Deferred<NamespaceCommand>),
    /// Show and set the rate limits of groups
    #[command(subcommand)]
    Limit(Deferred<LimitCommand>),
    /// Show and set how long, and how many, runs are kept
    #[command(subcommand)]
    Retention(Deferred<RetentionCommand>),
    /// Show who changed what
    #[command(subcommand)]
    Audit(Deferred<AuditCommand>),
    /// Import jobs from other schedulers
    #[command(subcommand)]
    Import(Deferred<ImportCommand>),
    /// Test cron expressions without a server
    #[command(subcommand)]
    Cron(Deferred<CronCommand>),
    /// Check server, executors and data, and print a hint for each problem
    Doctor(Deferred<DoctorArgs>),
    /// Say whether a server or a worker is ready; the status is 1 if it is not
    Health,
}

opaque! {
    /// Commands about jobs and their runs, and about what runs them.
    pub struct JobsCommand(Command);
}

impl JobsCommand {
    /// Runs the command with the server that `server` names.
    pub fn run(self, server: ServerArgs, out: Out) -> Running {
        Box::pin(run(self.0, server, out))
    }
}

async fn run(command: Command, server: ServerArgs, out: Out) -> Result<(), Failure> {
    let api = || Api::new(&server);
    match command {
        Command::Job(Deferred(command)) => job::run(&api()?, out, command).await,
        Command::Calendar(Deferred(command)) => calendar::run(&api()?, out, command).await,
        Command::Script(Deferred(command)) => script::run(&api()?, out, command).await,
        Command::Window(Deferred(command)) => window::run(&api()?, out, command).await,
        Command::Alarm(Deferred(command)) => alarm::run(&api()?, out, command).await,
        Command::Pause(Deferred(args)) => pause::pause(&api()?, out, &args).await,
        Command::Resume(Deferred(args)) => pause::resume(&api()?, out, &args).await,
        Command::Backfill(Deferred(command)) => backfill::run(&api()?, out, command).await,
        Command::Trigger(Deferred(args)) => trigger::run(&api()?, out, args).await,
        Command::Run(Deferred(command)) => run::run(&api()?, out, command).await,
        Command::Flow(Deferred(command)) => flow::run(&api()?, out, command).await,
        Command::Explain(Deferred(args)) => explain::run(&api()?, out, &args).await,
        Command::Forecast(Deferred(args)) => forecast::run(&api()?, out, &args).await,
        Command::Executor(Deferred(command)) => executor::run(&api()?, out, &command).await,
        Command::Events(Deferred(args)) => events::run(&api()?, out, &args).await,
        Command::Queue(Deferred(command)) => queue::run(&api()?, out, command).await,
        Command::Bulk(Deferred(command)) => bulk::run(&api()?, out, command).await,
        Command::Dlq(Deferred(command)) => dlq::run(&api()?, out, command).await,
        Command::Namespace(Deferred(command)) => {
            namespace::run(&in_no_namespace(api)?, out, command).await
        }
        Command::Limit(Deferred(command)) => limit::run(&api()?, out, command).await,
        Command::Retention(Deferred(command)) => retention::run(&api()?, out, command).await,
        Command::Audit(Deferred(command)) => audit::run(&api()?, out, command).await,
        Command::Import(Deferred(command)) => import::run(&server, out, &command).await,
        Command::Cron(Deferred(command)) => cron::run(out, command),
        Command::Doctor(Deferred(args)) => doctor::run(&server, out, &args).await,
        Command::Health => health::run(&api()?, out).await,
    }
}
