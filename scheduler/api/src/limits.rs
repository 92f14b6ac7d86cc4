//! The rate limits of groups.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::Uri;
use cueline_model::{AccessScope, GroupName, Right, decode};
use serde_json::Value;

use crate::SharedState;
use crate::access::Caller;
use crate::body::Body;
use crate::namespace::InNamespace;
use crate::openapi;
use crate::problem::{FieldProblem, Problem};
use crate::query;
use crate::view::{GroupRateView, LimitsPage};

type GroupPath = Result<Path<String>, PathRejection>;

fn group_name(namespace: &InNamespace, path: GroupPath) -> Result<GroupName, Problem> {
    let Path(text) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    namespace
        .group(&text)
        .map_err(|message| Problem::malformed_fields(vec![FieldProblem::new("group", message)]))
}

/// Lists the rate limits of groups.
#[utoipa::path(
    get,
    path = "/api/v1/limits",
    operation_id = "limit_list",
    tag = "limits",
    summary = "Lists the rate limits of groups.",
    description = "They are those of the groups of the namespace that the caller may read. The limits of jobs are in their definitions.",
    responses((status = 200, description = "The limits.", body = LimitsPage))
)]
pub(crate) async fn list(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    InNamespace(namespace): InNamespace,
    uri: Uri,
) -> Result<Json<LimitsPage>, Problem> {
    query::none(&uri)?;
    caller.require_somewhere(Right::Read, Some(&namespace))?;
    let rates = state.store.group_rates().await?.into_iter();
    let seen =
        rates.filter(|one| one.group.is_in(&namespace) && caller.may(Right::Read, &one.group));
    let groups = seen.map(|one| GroupRateView::new(one.group, Some(one.rate)));
    Ok(Json(LimitsPage {
        groups: groups.collect(),
    }))
}

/// Replaces the rate limit of a group.
#[utoipa::path(
    put,
    path = "/api/v1/limits/{group}",
    operation_id = "limit_set",
    tag = "limits",
    summary = "Replaces the rate limit of a group.",
    description = "At most `count` attempts of all jobs of the group are dispatched in any interval. Further ones wait. Schedulers read it every second.",
    params(("group" = openapi::Name, Path, description = "The name of the group.")),
    request_body = openapi::RateRule,
    responses(
        (status = 200, description = "The limit.", body = GroupRateView),
        (status = 409, description = "Too many groups have a limit.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The limit does not fit. `errors` names each field.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn set(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: GroupPath,
    uri: Uri,
    body: Body,
) -> Result<Json<GroupRateView>, Problem> {
    query::none(&uri)?;
    let group = group_name(&namespace, path)?;
    caller.require(Right::EditJobs, &AccessScope::Group(group.clone()))?;
    let body = Value::Object(body.given()?.into_object());
    let rate = decode::rate(&decode::Node::from(body)).map_err(|problems| {
        let errors = problems
            .into_iter()
            .map(|problem| FieldProblem::new(&problem.field, problem.message));
        Problem::unfit(errors.collect())
    })?;
    let by = &caller.actor;
    state.store.set_group_rate(&group, Some(rate), by).await?;
    Ok(Json(GroupRateView::new(group, Some(rate))))
}

/// Deletes the rate limit of a group.
#[utoipa::path(
    delete,
    path = "/api/v1/limits/{group}",
    operation_id = "limit_delete",
    tag = "limits",
    summary = "Deletes the rate limit of a group.",
    params(("group" = openapi::Name, Path, description = "The name of the group.")),
    responses((status = 200, description = "The group has no limit.", body = GroupRateView))
)]
pub(crate) async fn delete(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: GroupPath,
    uri: Uri,
) -> Result<Json<GroupRateView>, Problem> {
    query::none(&uri)?;
    let group = group_name(&namespace, path)?;
    caller.require(Right::EditJobs, &AccessScope::Group(group.clone()))?;
    let by = &caller.actor;
    state.store.set_group_rate(&group, None, by).await?;
    Ok(Json(GroupRateView::new(group, None)))
}
