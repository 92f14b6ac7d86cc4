//! Maintenance windows, in which the jobs of a scope do not fire.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::{StatusCode, Uri};
use cueline_model::{Namespace, Right, WindowSpec, decode};
use serde_json::Value;

use crate::ApiState;
use crate::access::Caller;
use crate::body::Body;
use crate::calendars::replanned;
use crate::namespace::InNamespace;
use crate::openapi;
use crate::problem::{FieldProblem, Problem};
use crate::query;
use crate::view::{WindowList, WindowRef, WindowView};

/// Lists the maintenance windows of a namespace, with those of all namespaces.
#[utoipa::path(
    get,
    path = "/api/v1/windows",
    operation_id = "window_list",
    tag = "windows",
    responses((status = 200, description = "The windows, in the order in which they were added.", body = WindowList))
)]
pub(crate) async fn list(
    State(state): State<ApiState>,
    InNamespace(namespace): InNamespace,
    uri: Uri,
) -> Result<Json<WindowList>, Problem> {
    query::none(&uri)?;
    let now = state.store.now().await?;
    let rules = state.store.fire_rules().await?;
    let is_listed = |own: Option<&Namespace>| own.is_none_or(|own| *own == namespace);
    let windows = rules.windows.iter();
    let windows = windows
        .filter(|window| is_listed(window.spec.scope.namespace.as_ref()))
        .map(|window| WindowView::new(window, now));
    Ok(Json(WindowList {
        windows: windows.collect(),
        now,
    }))
}

/// Adds a maintenance window.
#[utoipa::path(
    post,
    path = "/api/v1/windows",
    operation_id = "window_add",
    tag = "windows",
    description = "While it is open, the jobs in its scope do not fire; each fire time is accounted for by a skipped run with its reason. Without `owner`, the caller is the owner. `all_namespaces` needs the right in all namespaces.",
    request_body = openapi::NewWindow,
    responses(
        (status = 201, description = "The window is there.", body = WindowRef),
        (status = 409, description = "There are too many windows.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The definition does not fit. `errors` names each field.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn add(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    InNamespace(namespace): InNamespace,
    uri: Uri,
    body: Body,
) -> Result<(StatusCode, Json<WindowRef>), Problem> {
    query::none(&uri)?;
    let body = Value::Object(body.given()?.into_object());
    let mut spec = decode::window(&decode::Node::from(body), &namespace).map_err(|problems| {
        let errors = problems
            .into_iter()
            .map(|problem| FieldProblem::new(&problem.field, problem.message));
        Problem::unfit(errors.collect())
    })?;
    require_scope(&caller, &spec)?;
    if spec.owner.is_empty() {
        spec.owner.clone_from(&caller.actor.name);
    }
    let (id, jobs) = state.store.add_window(&spec, &caller.actor).await?;
    replanned(&state, &jobs).await?;
    let jobs = jobs.len() as u64;
    Ok((StatusCode::CREATED, Json(WindowRef { id, jobs })))
}

/// Deletes a maintenance window; its jobs fire again.
#[utoipa::path(
    delete,
    path = "/api/v1/windows/{id}",
    operation_id = "window_delete",
    tag = "windows",
    params(("id" = openapi::RunNumber, Path, description = "The number of the window.")),
    responses(
        (status = 200, description = "The window is deleted.", body = WindowRef),
    )
)]
pub(crate) async fn delete(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    InNamespace(namespace): InNamespace,
    path: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Json<WindowRef>, Problem> {
    query::none(&uri)?;
    let Path(text) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    let id = text.parse::<i64>().ok().filter(|id| *id > 0);
    let id = id.ok_or_else(|| {
        let message =
            format!("{text:?} is not the number of a window; numbers are whole and from 1 on");
        Problem::malformed_fields(vec![FieldProblem::new("id", message)])
    })?;
    let missing = || Problem::not_found(format!("there is no maintenance window {id}"));
    let rules = state.store.fire_rules().await?;
    let window = rules.windows.iter().find(|window| window.id == id);
    let window = window.ok_or_else(missing)?;
    let own = window.spec.scope.namespace.as_ref();
    if own.is_some_and(|own| *own != namespace) {
        return Err(missing());
    }
    require_scope(&caller, &window.spec)?;
    let jobs = state.store.delete_window(id, &caller.actor).await?;
    replanned(&state, &jobs).await?;
    let jobs = jobs.len() as u64;
    Ok(Json(WindowRef { id, jobs }))
}

/// The rule of the route is about one namespace.
fn require_scope(caller: &Caller, spec: &WindowSpec) -> Result<(), Problem> {
    if spec.scope.namespace.is_some() || caller.may_everywhere(Right::Operate) {
        return Ok(());
    }
    Err(Problem::forbidden(
        "a maintenance window of all namespaces needs the right to operate in all namespaces",
    ))
}
