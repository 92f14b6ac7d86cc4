//! `cueline flow …`

use clap::{Args, Subcommand};
use cueline_api::view::{
    Counts, FlowCancelled, FlowJob, FlowJobState, FlowPage, FlowRetried, FlowState, FlowView,
};
use cueline_interface::{Failure, Out, Paint, cell};
use cueline_model::{JobName, RunId, RunState};
use serde_json::{Value, json};

use crate::client::{Api, read};
use crate::human;
use crate::lists::{List, PageArgs, WindowArgs, print_next, values};
use crate::namespaces::AllNamespaces;
use crate::watch::{self, WatchArgs};

/// `cueline flow …`
#[derive(Debug, Subcommand)]
pub(crate) enum FlowCommand {
    /// List flow runs: fires of jobs that others run after, newest first
    List(Box<FlowListArgs>),
    /// Show a flow run with its graph; any run of it names it
    Show(FlowShowArgs),
    /// Cancel all live runs of a flow run; no job starts in it any more
    Cancel(FlowArg),
    /// Run a flow run again from what did not succeed
    Retry(FlowArg),
}

/// One flow run.
#[derive(Debug, Args)]
pub(crate) struct FlowArg {
    /// The id of the flow run, or of one of its runs
    #[arg(value_name = "RUN", value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) id: i64,
}

/// `cueline flow list`
#[derive(Debug, Args)]
pub(crate) struct FlowListArgs {
    /// Only flow runs that began with this job; may be given several times
    #[arg(long = "job", value_name = "JOB")]
    pub(crate) jobs: Vec<JobName>,
    #[command(flatten)]
    pub(crate) window: WindowArgs,
    #[command(flatten)]
    pub(crate) all: AllNamespaces,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// `cueline flow show`
#[derive(Debug, Args)]
pub(crate) struct FlowShowArgs {
    /// The flow run.
    #[command(flatten)]
    pub(crate) run: FlowArg,
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
}

pub(crate) async fn run(api: &Api, out: Out, command: FlowCommand) -> Result<(), Failure> {
    match command {
        FlowCommand::List(args) => {
            let mut query = values("job", &args.jobs);
            query.extend(args.window.query());
            let flows = List {
                path: &["flows"],
                key: "flows",
                most: Some(50),
            };
            let page = flows.read(api, &query, args.all, &args.page).await?;
            list(out, page)
        }
        FlowCommand::Show(args) => {
            let id = args.run.id.to_string();
            let fetch = async || api.get(&["flows", &id], &[]).await;
            watch::show(out, args.watch, fetch, |flow| show(out, flow)).await
        }
        FlowCommand::Cancel(run) => cancel(api, out, run.id).await,
        FlowCommand::Retry(run) => retry(api, out, run.id).await,
    }
}

fn list(out: Out, answer: Value) -> Result<(), Failure> {
    if out.is_json() {
        return out.json(&answer);
    }
    let page: FlowPage = read(answer)?;
    let mut table = out.table(&["FLOW", "JOB", "STATE", "BEGAN", "RUNS"]);
    for flow in &page.flows {
        table.add_row(vec![
            cell(flow.id.to_string(), None),
            cell(flow.job.as_str(), None),
            cell(flow.state.as_str(), paint_of_flow(flow.state)),
            cell(human::relative(flow.created_at, page.now), None),
            cell(counted(&flow.runs), None),
        ]);
    }
    out.print_table(&table, "there are no such flow runs")?;
    print_next(out, page.next.as_deref())
}

/// The number of runs in each state: `3 succeeded, 1 failed`.
fn counted(runs: &Counts) -> String {
    let parts = runs
        .iter()
        .map(|(state, runs)| format!("{runs} {}", state.as_str().replace('_', " ")));
    parts.collect::<Vec<_>>().join(", ")
}

fn paint_of_flow(state: FlowState) -> Option<Paint> {
    Paint::of_state(match state {
        FlowState::Running => RunState::Running,
        FlowState::Succeeded => RunState::Succeeded,
        FlowState::Failed => RunState::Failed,
        FlowState::Stopped => RunState::Cancelled,
    })
}

fn paint_of_job(state: FlowJobState) -> Option<Paint> {
    match state {
        FlowJobState::Waiting | FlowJobState::NotStarted => Some(Paint::Dim),
        FlowJobState::Running => Paint::of_state(RunState::Running),
        FlowJobState::Succeeded => Paint::of_state(RunState::Succeeded),
        FlowJobState::Failed => Paint::of_state(RunState::Failed),
        FlowJobState::Stopped => Paint::of_state(RunState::Cancelled),
    }
}

fn show(out: Out, answer: Value) -> Result<(), Failure> {
    if out.is_json() {
        return out.json(&answer);
    }
    let flow: FlowView = read(answer)?;
    let took = flow.ended_at.map(|end| {
        format!(
            ", took {}",
            human::took(human::between(flow.created_at, end))
        )
    });
    out.line(&format!(
        "flow run {} of {}: {}{}",
        flow.id,
        flow.job.local(),
        flow.state.as_str(),
        took.unwrap_or_default()
    ))?;
    let mut table = out.table(&["JOB", "STATE", "AFTER", "RUNS", "WHY"]);
    for job in &flow.jobs {
        table.add_row(vec![
            cell(job.job.local(), None),
            cell(
                job.state.as_str().replace('_', " "),
                paint_of_job(job.state),
            ),
            cell(after(job), None),
            cell(runs_of(&flow, job), None),
            cell(job.reason.as_deref().unwrap_or_default(), None),
        ]);
    }
    out.print_table(&table, "its jobs are deleted")?;
    match flow.left_out {
        0 => Ok(()),
        n => out.line(&format!("{n} jobs and runs are not shown")),
    }
}

fn after(job: &FlowJob) -> String {
    let names = job.after.iter().flat_map(cueline_model::After::names);
    let names: Vec<&str> = names.map(JobName::local).collect();
    match job.after.as_ref().filter(|after| !after.waits_for_all()) {
        Some(_) if names.len() > 1 => format!("any of {}", names.join(", ")),
        _ => names.join(", "),
    }
}

/// The runs of a job: `12`, or for several shards `12 1/3 succeeded, 13 2/3 failed`.
fn runs_of(flow: &FlowView, job: &FlowJob) -> String {
    let runs = flow.runs.iter().filter(|run| run.job == job.job);
    let shown = runs.map(|run| {
        let progress = run.progress.map(|part| format!(" {:.0} %", part * 100.0));
        let progress = progress.filter(|_| run.ended_at.is_none());
        let attempt = match run.attempt {
            1 => String::new(),
            n => format!(" (attempt {n})"),
        };
        let shard = match run.shard.total {
            0 | 1 => String::new(),
            total => format!(" {}/{total} {}", run.shard.index + 1, run.state),
        };
        format!("{}{shard}{attempt}{}", run.id, progress.unwrap_or_default())
    });
    shown.collect::<Vec<_>>().join(", ")
}

fn numbers(runs: &[RunId]) -> String {
    let numbers: Vec<String> = runs.iter().map(ToString::to_string).collect();
    numbers.join(", ")
}

async fn cancel(api: &Api, out: Out, id: i64) -> Result<(), Failure> {
    let id = id.to_string();
    let path = ["flows", id.as_str(), "cancel"];
    let answer: Value = api.post(&path, &json!({})).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let answer: FlowCancelled = read(answer)?;
    if answer.ended.is_empty() && answer.asked.is_empty() {
        return out.line(&format!("no run of flow run {} is live", answer.id));
    }
    out.line(&format!("flow run {} is cancelled", answer.id))?;
    for (runs, what) in [
        (&answer.ended, "had not been started"),
        (&answer.asked, "are being stopped by their executors"),
    ] {
        if !runs.is_empty() {
            out.line(&format!("runs that {what}: {}", numbers(runs)))?;
        }
    }
    Ok(())
}

async fn retry(api: &Api, out: Out, id: i64) -> Result<(), Failure> {
    let id = id.to_string();
    let path = ["flows", id.as_str(), "retry"];
    let answer: Value = api.post(&path, &json!({})).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let answer: FlowRetried = read(answer)?;
    out.line(&format!(
        "flow run {} runs again; runs with another attempt: {}",
        answer.id,
        numbers(&answer.runs)
    ))
}
