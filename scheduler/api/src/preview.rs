//! Computes upcoming fire times of a job or of an unsaved definition.

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use cueline_model::preview::{Preview, preview};
use cueline_model::{JobSpec, Schedule, Timestamp};
use serde_json::{Value, json};

use crate::apply::definitions;
use crate::body::Body;
use crate::jobs::{JobPath, job_name};
use crate::namespace::InNamespace;
use crate::openapi;
use crate::problem::{FieldProblem, Problem};
use crate::query::{LIMITS, Params};
use crate::view::{LeftOutView, NextTimes};
use crate::{ApiState, SharedState};

const DEFAULT_N: i64 = 5;

/// The next fire times of a job, whether its schedule is enabled or not.
#[utoipa::path(
    get,
    path = "/api/v1/jobs/{name}/next",
    operation_id = "job_next",
    tag = "jobs",
    params(
        ("name" = openapi::Name, Path, description = "The name of the job."),
        ("n" = Option<openapi::NumberOfTimes>, Query, description = "The number of fire times; 5 by default."),
        ("from" = Option<openapi::InstantText>, Query, description = "The start; now by default."),
    ),
    responses(
        (status = 200, description = "The fire times, earliest first.", body = NextTimes),
    )
)]
pub(crate) async fn of_job(
    State(state): State<SharedState>,
    namespace: InNamespace,
    path: JobPath,
    uri: Uri,
) -> Result<Json<NextTimes>, Problem> {
    let name = job_name(&namespace, path)?;
    let mut params = Params::of(&uri, &["n", "from"]);
    let n = params.number("n", DEFAULT_N, LIMITS);
    let from = params.instant("from");
    params.finish()?;
    let job = state.store.job(&name).await?.job;
    let mut next = fire_times(&state, job.spec.clone(), n, from).await?;
    if !job.spec.is_enabled() && !next.times.is_empty() {
        next.note =
            Some("the job is paused: it fires at these times only once it is resumed".to_owned());
    }
    Ok(Json(next))
}

/// The next fire times of a definition, or of a schedule alone.
#[utoipa::path(
    post,
    path = "/api/v1/preview",
    operation_id = "preview",
    tag = "jobs",
    request_body = openapi::PreviewRequest,
    responses(
        (status = 200, description = "The fire times, earliest first.", body = NextTimes),
        (status = 422, description = "The definition does not fit. `errors` names job and field.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn of_definition(
    State(state): State<SharedState>,
    namespace: InNamespace,
    uri: Uri,
    body: Body,
) -> Result<Json<NextTimes>, Problem> {
    crate::query::none(&uri)?;
    let mut fields = body.fields(&["job", "schedule", "n", "from"]);
    let n = fields.number("n", DEFAULT_N, LIMITS);
    let from = fields.instant("from");
    let job = match (fields.take("job"), fields.take("schedule")) {
        (Some(job), None) => job,
        (None, Some(schedule)) => only(&schedule),
        (Some(_), Some(_)) => {
            fields.record("schedule", "given beside a job; give one of the two");
            Value::Null
        }
        (None, None) => {
            fields.record("schedule", "missing; give a schedule, or a job");
            Value::Null
        }
    };
    fields.finish()?;
    let specs = definitions(&state, namespace, Value::Array(vec![job])).await?;
    let Some(spec) = specs.into_iter().next() else {
        return Err(Problem::malformed("the definition contains no job"));
    };
    fire_times(&state, spec, n, from).await.map(Json)
}

/// A definition with this schedule. Its other fields do not affect the fire times.
fn only(schedule: &Value) -> Value {
    json!({ "name": "preview", "handler": { "native": "preview" }, "schedule": schedule })
}

async fn fire_times(
    state: &ApiState,
    spec: JobSpec,
    n: i64,
    from: Option<Timestamp>,
) -> Result<NextTimes, Problem> {
    let from = match from {
        Some(from) => from,
        None => state.store.now().await?,
    };
    let rules = state.store.fire_rules().await?;
    let namespace = spec.name.namespace();
    for name in spec.calendar_names() {
        if !rules.calendars.contains_key(&name) {
            let message = format!(
                "there is no calendar {:?} in the namespace {namespace}; apply it first",
                name.local()
            );
            let errors = vec![FieldProblem::new("calendars", message)];
            return Err(Problem::unfit(errors));
        }
    }
    let n = usize::try_from(n).unwrap_or(1);
    // Runs on a blocking thread, because the search for a rare date covers years.
    let found = tokio::task::spawn_blocking(move || {
        let Preview { times, left_out } = preview(&spec, &rules.of(&spec), from, n);
        let note = note(&spec, &times).map(str::to_owned);
        NextTimes {
            times,
            left_out: left_out.into_iter().map(LeftOutView::from).collect(),
            note,
        }
    });
    found
        .await
        .map_err(|_| Problem::unavailable("the fire times could not be computed"))
}

fn note(spec: &JobSpec, times: &[Timestamp]) -> Option<&'static str> {
    match &spec.schedule {
        Schedule::FixedDelay { .. } => Some(
            "computed as if each run ended at once, because the delay starts at the end of a run",
        ),
        Schedule::Manual if spec.after.is_some() => Some("it runs after its parent"),
        Schedule::Manual => Some("it never fires by itself"),
        Schedule::Startup => Some("it fires when the scheduler starts"),
        _ if times.is_empty() => Some("it never fires again"),
        _ => None,
    }
}
