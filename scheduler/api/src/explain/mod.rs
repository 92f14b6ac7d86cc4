//! Says why a job or a run does not run now: one sentence, and the command that shows more.
//!
//! The handlers read a bounded snapshot of the store in one call. `decide` finds the reason in it, and `reason` has the words.

mod decide;
mod limits;
mod reason;
#[cfg(test)]
mod tests;

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use cueline_model::{JobName, RunState};
use cueline_store::{Run, StoreError, Subject};

use crate::SharedState;
use crate::jobs::{JobPath, job_name};
use crate::namespace::InNamespace;
use crate::openapi;
use crate::problem::Problem;
use crate::query;
use crate::runs::{RunPath, run_id};
use crate::view::Explanation;
use decide::{Snapshot, of_job, of_run};
use reason::Reason;

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
    State(state): State<SharedState>,
    namespace: InNamespace,
    path: JobPath,
    uri: Uri,
) -> Result<Json<Explanation>, Problem> {
    query::none(&uri)?;
    let name = job_name(&namespace, path)?;
    let situation = state.store.situation(Subject::Job(&name)).await?;
    let day = situation.job.as_ref().map(|job| job.day.clone());
    let run = situation.run.clone();
    let snapshot = Snapshot::from(situation);
    let reason = match (&run, &snapshot.job) {
        (Some(detail), _) => of_run(&snapshot, &detail.run, &detail.timeline),
        (None, Some(job)) => of_job(&snapshot, job),
        (None, None) => return Err(StoreError::no_job(name.as_str()).into()),
    };
    let mut explanation = explanation(&name, run.as_ref().map(|detail| &detail.run), &reason);
    explanation.sentence.extend(snapshot.backfill_note());
    let unusual = [RunState::Discarded, RunState::Skipped, RunState::Covered];
    let unusual = unusual.into_iter().filter_map(|state| {
        let (_, count) = day.iter().flatten().find(|(of, _)| *of == state)?;
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
    State(state): State<SharedState>,
    namespace: InNamespace,
    path: RunPath,
    uri: Uri,
) -> Result<Json<Explanation>, Problem> {
    query::none(&uri)?;
    let id = run_id(path)?;
    let situation = state.store.situation(Subject::Run(id)).await?;
    let detail = situation.run.clone();
    // The same answer as for a run that does not exist.
    let detail = detail.filter(|detail| namespace.has(&detail.run.job));
    let detail = detail.ok_or_else(|| StoreError::no_run(id))?;
    let snapshot = Snapshot::from(situation);
    let reason = of_run(&snapshot, &detail.run, &detail.timeline);
    let name = detail.run.job.clone();
    Ok(Json(explanation(&name, Some(&detail.run), &reason)))
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
