//! Maintenance windows, in which the jobs of a scope do not fire.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::{StatusCode, Uri};
use cueline_model::exclusion::WindowTime;
use cueline_model::{MaintenanceWindow, Namespace, Right, WindowSpec, decode};
use cueline_store::{ErrorKind, MAX_REPLANNED};
use serde_json::Value;

use crate::access::Caller;
use crate::body::Body;
use crate::calendars::replanned;
use crate::namespace::InNamespace;
use crate::openapi;
use crate::problem::{FieldProblem, Problem};
use crate::query;
use crate::view::{WindowList, WindowRef, WindowView};
use crate::{ApiState, SharedState};

/// Lists the maintenance windows of a namespace, with those of all namespaces.
#[utoipa::path(
    get,
    path = "/api/v1/windows",
    operation_id = "window_list",
    tag = "windows",
    responses((status = 200, description = "The windows, in the order in which they were added.", body = WindowList))
)]
pub(crate) async fn list(
    State(state): State<SharedState>,
    InNamespace(namespace): InNamespace,
    uri: Uri,
) -> Result<Json<WindowList>, Problem> {
    query::none(&uri)?;
    let now = state.store.now().await?;
    let rules = state.store.fire_rules().await?;
    let is_listed = |own: Option<&Namespace>| own.is_none_or(|own| *own == namespace);
    let windows = rules.windows.iter();
    let windows = windows
        .filter(|window| Kind::Window.is(&window.spec) && window.ended_at.is_none())
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
    State(state): State<SharedState>,
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
    let id = state.store.add_window(&spec, &caller.actor).await?;
    let jobs = change_plans(&state, id).await?;
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
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    InNamespace(namespace): InNamespace,
    path: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Json<WindowRef>, Problem> {
    query::none(&uri)?;
    let id = window_id(path, Kind::Window)?;
    let window = Kind::Window.find(&state, id, &namespace).await?;
    require_scope(&caller, &window.spec)?;
    state.store.end_window(id, &caller.actor).await?;
    let jobs = change_plans(&state, id).await?;
    Ok(Json(WindowRef { id, jobs }))
}

/// What a number names: both kinds are numbered together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Window,
    Pause,
}

impl Kind {
    const fn noun(self) -> &'static str {
        match self {
            Self::Window => "maintenance window",
            Self::Pause => "pause",
        }
    }

    fn is(self, spec: &WindowSpec) -> bool {
        let is_pause = matches!(spec.time, WindowTime::Pause { .. });
        is_pause == (self == Self::Pause)
    }

    /// The one with that number, if the namespace or all of them have it, and nobody has ended it.
    pub(crate) async fn find(
        self,
        state: &ApiState,
        id: i64,
        namespace: &Namespace,
    ) -> Result<Arc<MaintenanceWindow>, Problem> {
        let rules = state.store.fire_rules().await?;
        let found = rules.windows.iter().find(|window| {
            let own = window.spec.scope.namespace.as_ref();
            window.id == id
                && window.ended_at.is_none()
                && self.is(&window.spec)
                && own.is_none_or(|own| own == namespace)
        });
        found
            .cloned()
            .ok_or_else(|| Problem::not_found(format!("there is no {} {id}", self.noun())))
    }
}

pub(crate) fn window_id(
    path: Result<Path<String>, PathRejection>,
    kind: Kind,
) -> Result<i64, Problem> {
    let Path(text) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    let id = text.parse::<i64>().ok().filter(|id| *id > 0);
    id.ok_or_else(|| {
        let noun = kind.noun();
        let message =
            format!("{text:?} is not the number of a {noun}; numbers are whole and from 1 on");
        Problem::malformed_fields(vec![FieldProblem::new("id", message)])
    })
}

/// How often a transaction for further jobs is tried again, after failures that may pass. Afterwards a scheduler does the
/// rest by itself.
const MAX_RETRIES: u32 = 5;

/// Changes the plans of the jobs in the scope of a window that was added or ended, and waits until no trigger from before
/// can be published any more. Returns the number of the jobs.
pub(crate) async fn change_plans(state: &ApiState, id: i64) -> Result<u64, Problem> {
    let mut jobs = Vec::new();
    let mut retries = 0;
    loop {
        match state.store.replan_window(Some(id), MAX_REPLANNED).await {
            Ok(replanned) => {
                retries = 0;
                jobs.extend(replanned.jobs);
                if replanned.is_done {
                    break;
                }
            }
            Err(error) if error.kind() == ErrorKind::Transient && retries < MAX_RETRIES => {
                retries += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
    for part in jobs.chunks(MAX_REPLANNED) {
        replanned(state, part).await?;
    }
    Ok(jobs.len() as u64)
}

/// The rule of the route is about one namespace.
pub(crate) fn require_scope(caller: &Caller, spec: &WindowSpec) -> Result<(), Problem> {
    if spec.scope.namespace.is_some() || caller.may_everywhere(Right::Operate) {
        return Ok(());
    }
    Err(Problem::forbidden(
        "a maintenance window or a pause of all namespaces needs the right to operate in all namespaces",
    ))
}
