//! Pauses: nothing of the jobs in a scope starts, until a person ends the pause or its time is over.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::{StatusCode, Uri};
use cueline_model::{Namespace, decode};
use serde_json::Value;

use crate::SharedState;
use crate::access::Caller;
use crate::body::Body;
use crate::namespace::InNamespace;
use crate::openapi;
use crate::problem::{FieldProblem, Problem};
use crate::query;
use crate::view::{PauseList, PauseRef, PauseView};
use crate::windows::{Kind, change_plans, require_scope, window_id};

/// Lists the pauses of a namespace, with those of all namespaces.
#[utoipa::path(
    get,
    path = "/api/v1/pauses",
    operation_id = "pause_list",
    tag = "pauses",
    responses((status = 200, description = "The pauses that are not over, in the order in which they began.", body = PauseList))
)]
pub(crate) async fn list(
    State(state): State<SharedState>,
    InNamespace(namespace): InNamespace,
    uri: Uri,
) -> Result<Json<PauseList>, Problem> {
    query::none(&uri)?;
    let now = state.store.now().await?;
    let rules = state.store.fire_rules().await?;
    let is_listed = |own: Option<&Namespace>| own.is_none_or(|own| *own == namespace);
    let pauses = rules
        .windows
        .iter()
        .filter(|window| !window.is_over(now) && is_listed(window.spec.scope.namespace.as_ref()))
        .filter_map(|window| PauseView::new(window));
    Ok(Json(PauseList {
        pauses: pauses.collect(),
        now,
    }))
}

/// Pauses the jobs of a scope.
#[utoipa::path(
    post,
    path = "/api/v1/pauses",
    operation_id = "pause_start",
    tag = "pauses",
    description = "From now on, nothing of the jobs in the scope starts, apart from runs that are triggered by hand. Each fire time is accounted for by a skipped run with the reason. Runs that wait end as with the pause of a job. Without `until` and `for`, the pause lasts until it is ended. The response comes when no trigger from before the pause can be published any more. `all_namespaces` needs the right in all namespaces.",
    request_body = openapi::NewPause,
    responses(
        (status = 201, description = "The jobs are paused.", body = PauseRef),
        (status = 409, description = "There are too many windows and pauses.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The definition does not fit. `errors` names each field.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn start(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    InNamespace(namespace): InNamespace,
    uri: Uri,
    body: Body,
) -> Result<(StatusCode, Json<PauseRef>), Problem> {
    query::none(&uri)?;
    let body = Value::Object(body.given()?.into_object());
    let now = state.store.now().await?;
    let decoded = decode::pause(&decode::Node::from(body), &namespace, now);
    let mut spec = decoded.map_err(|problems| {
        let errors = problems
            .into_iter()
            .map(|problem| FieldProblem::new(&problem.field, problem.message));
        Problem::unfit(errors.collect())
    })?;
    require_scope(&caller, &spec)?;
    spec.owner = caller.actor.to_string();
    let id = state.store.add_window(&spec, &caller.actor).await?;
    let jobs = change_plans(&state, id).await?;
    Ok((StatusCode::CREATED, Json(PauseRef { id, jobs })))
}

/// Ends a pause; its jobs fire again.
#[utoipa::path(
    delete,
    path = "/api/v1/pauses/{id}",
    operation_id = "pause_end",
    tag = "pauses",
    params(("id" = openapi::RunNumber, Path, description = "The number of the pause.")),
    responses((status = 200, description = "The pause has ended.", body = PauseRef))
)]
pub(crate) async fn end(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    InNamespace(namespace): InNamespace,
    path: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Json<PauseRef>, Problem> {
    query::none(&uri)?;
    let id = window_id(path, Kind::Pause)?;
    let window = Kind::Pause.find(&state, id, &namespace).await?;
    require_scope(&caller, &window.spec)?;
    state.store.end_window(id, &caller.actor).await?;
    let jobs = change_plans(&state, id).await?;
    Ok(Json(PauseRef { id, jobs }))
}
