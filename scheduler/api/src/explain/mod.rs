//! Says why a job or a run does not run now: one sentence, and the command that shows more.
//!
//! The handlers read a bounded snapshot from the store. `decide` finds the reason in it, and `reason` has the words.

mod decide;
mod reason;
#[cfg(test)]
mod tests;

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use cueline_model::{JobName, RunState};
use cueline_store::{ErrorKind, JobSummary, Order, Run, RunFilter};

use crate::ApiState;
use crate::jobs::{JobPath, job_name};
use crate::namespace::InNamespace;
use crate::openapi;
use crate::problem::Problem;
use crate::query;
use crate::runs::{RunPath, run_id};
use crate::view::Explanation;
use decide::{Snapshot, of_job, of_run, waiting_run};
use reason::Reason;

/// The most live runs of a job that are looked at, oldest first. Of a longer backlog the number ahead is a lower bound.
const MAX_LIVE: usize = 1_000;

/// The most versions that are looked at to find who paused the job.
const MAX_VERSIONS: usize = 100;

/// Says why a job does not run now, or why its oldest run waits.
#[utoipa::path(
    get,
    path = "/api/v1/jobs/{name}/explain",
    operation_id = "job_explain",
    tag = "jobs",
    params(("name" = openapi::Name, Path, description = "The name of the job.")),
    responses((status = 200, description = "The reason.", body = Explanation))
)]
pub(crate) async fn job(
    State(state): State<ApiState>,
    namespace: InNamespace,
    path: JobPath,
    uri: Uri,
) -> Result<Json<Explanation>, Problem> {
    query::none(&uri)?;
    let name = job_name(&namespace, path)?;
    let summary = state.store.job(&name).await?;
    let job = summary.job.clone();
    let day = summary.day.clone();
    let mut snapshot = read(&state, &name, Some(summary)).await?;
    if !job.spec.is_enabled() {
        let order = Order::Descending;
        let versions = state.audit.job_versions(&name, order, None, MAX_VERSIONS);
        snapshot.versions = versions.await?;
    }
    let run = waiting_run(&snapshot).cloned();
    let reason = match &run {
        Some(run) => {
            let timeline = state.store.run(run.id).await?.timeline;
            of_run(&snapshot, run, &timeline)
        }
        None => of_job(&snapshot, &job),
    };
    let mut explanation = explanation(&name, run.as_ref(), &reason);
    let unusual = [RunState::Discarded, RunState::Skipped, RunState::Covered];
    let unusual = unusual.into_iter().filter_map(|state| {
        let (_, count) = day.iter().find(|(of, _)| *of == state)?;
        Some(format!("{count} {state}"))
    });
    let unusual: Vec<String> = unusual.collect();
    if !unusual.is_empty() {
        let note = format!("; {} in the last 24 h", unusual.join(", "));
        explanation.sentence.push_str(&note);
    }
    Ok(Json(explanation))
}

/// Says why a run does not run now, or how it ended.
#[utoipa::path(
    get,
    path = "/api/v1/runs/{id}/explain",
    operation_id = "run_explain",
    tag = "runs",
    params(("id" = openapi::RunNumber, Path, description = "The id of the run.")),
    responses((status = 200, description = "The reason.", body = Explanation))
)]
pub(crate) async fn run(
    State(state): State<ApiState>,
    namespace: InNamespace,
    path: RunPath,
    uri: Uri,
) -> Result<Json<Explanation>, Problem> {
    query::none(&uri)?;
    let detail = namespace.run(&state, run_id(path)?).await?;
    let name = detail.run.job.clone();
    let summary = match state.store.job(&name).await {
        Ok(summary) => Some(summary),
        // The runs of a deleted job are kept.
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error.into()),
    };
    let snapshot = read(&state, &name, summary).await?;
    let reason = of_run(&snapshot, &detail.run, &detail.timeline);
    Ok(Json(explanation(&name, Some(&detail.run), &reason)))
}

async fn read(
    state: &ApiState,
    name: &JobName,
    summary: Option<JobSummary>,
) -> Result<Snapshot, Problem> {
    let live = RunFilter {
        jobs: vec![name.clone()],
        states: RunState::ALL
            .into_iter()
            .filter(|state| !state.is_terminal())
            .collect(),
        order: Order::Ascending,
        limit: MAX_LIVE,
        ..RunFilter::default()
    };
    let live = state.store.list_runs(&live).await?.runs;
    let mut executors = state.store.executors().await?;
    let group = summary.as_ref().map(|summary| &summary.job.spec.group);
    executors.retain(|executor| Some(&executor.heartbeat.executor.group) == group);
    Ok(Snapshot {
        // Read the clock last, so that nothing is in the future.
        now: state.store.now().await?,
        next_fire: summary.as_ref().and_then(|summary| summary.next_fire),
        job: summary.map(|summary| summary.job),
        live,
        executors,
        versions: Vec::new(),
    })
}

fn explanation(job: &JobName, run: Option<&Run>, reason: &Reason) -> Explanation {
    let subject = match run {
        Some(run) => format!("run {} for {}", run.id, run.fire_at),
        None => format!("job {}", job.local()),
    };
    let waits = if run.is_some() && reason.is_waiting() {
        " is waiting"
    } else {
        ""
    };
    Explanation {
        job: job.clone(),
        run: run.map(|run| run.id),
        state: run.map(|run| run.state),
        reason: reason.word().to_owned(),
        sentence: format!("{subject}{waits}: {}", reason.text()),
        look_at: reason.look_at(job, run.map(|run| run.id.0)),
    }
}
