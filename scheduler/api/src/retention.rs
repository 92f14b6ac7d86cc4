//! Retention: the rules of groups, what applies to a job, and prunes by hand.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::Uri;
use cueline_model::{
    AccessScope, DurationMs, GroupName, Retention, Right, RunId, decode, retention_of_job,
};
use cueline_store::{MAX_PRUNED_AT_ONCE, PruneRequest};
use serde_json::Value;

use crate::SharedState;
use crate::access::Caller;
use crate::body::{Body, Fields, a_kind};
use crate::jobs::{JobPath, job_name};
use crate::namespace::{ALL, InNamespace};
use crate::openapi;
use crate::problem::{FieldProblem, Problem};
use crate::query;
use crate::view::{GroupRetentionView, JobRetention, PrunedRuns, RetentionPage};

/// What the server keeps where no rule says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerRetention {
    /// Ended runs.
    pub age: DurationMs,
    /// Entries of the audit log.
    pub audit: DurationMs,
    /// Dead letters.
    pub dead_letters: DurationMs,
}

impl Default for ServerRetention {
    fn default() -> Self {
        let days = |days: u64| DurationMs::secs(days * 86_400);
        Self {
            age: days(7),
            audit: days(400),
            dead_letters: days(90),
        }
    }
}

type GroupPath = Result<Path<String>, PathRejection>;

fn group_name(namespace: &InNamespace, path: GroupPath) -> Result<GroupName, Problem> {
    let Path(text) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    namespace
        .group(&text)
        .map_err(|message| Problem::malformed_fields(vec![FieldProblem::new("group", message)]))
}

/// Shows what the server keeps, and the rules of groups.
#[utoipa::path(
    get,
    path = "/api/v1/retention",
    operation_id = "retention_list",
    tag = "retention",
    summary = "Shows what the server keeps, and the rules of groups.",
    description = "The rules are those of the groups of the namespace that the caller may read. The settings are those of the scheduler that answers.",
    responses((status = 200, description = "The settings and the rules.", body = RetentionPage))
)]
pub(crate) async fn list(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    InNamespace(namespace): InNamespace,
    uri: Uri,
) -> Result<Json<RetentionPage>, Problem> {
    query::none(&uri)?;
    caller.require_somewhere(Right::Read, Some(&namespace))?;
    let rules = state.store.retention_rules(None).await?.into_iter();
    let seen = rules
        .filter(|stored| stored.group.is_in(&namespace) && caller.may(Right::Read, &stored.group));
    let ServerRetention {
        age,
        audit,
        dead_letters,
    } = state.retention;
    Ok(Json(RetentionPage {
        age,
        audit,
        dead_letters,
        groups: seen.map(GroupRetentionView::from).collect(),
    }))
}

/// Replaces the rule of a group.
#[utoipa::path(
    put,
    path = "/api/v1/retention/{group}",
    operation_id = "retention_set",
    tag = "retention",
    summary = "Replaces the retention rule of a group.",
    description = "It applies to the jobs of the group, as far as they have no rule of their own, and to the runs that exist. What is left out, the server decides.",
    params(("group" = openapi::Name, Path, description = "The name of the group.")),
    request_body = openapi::RetentionRule,
    responses(
        (status = 200, description = "The rule.", body = GroupRetentionView),
        (status = 409, description = "Too many groups have a rule.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The rule does not fit. `errors` names each field.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn set(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: GroupPath,
    uri: Uri,
    body: Body,
) -> Result<Json<GroupRetentionView>, Problem> {
    query::none(&uri)?;
    let group = group_name(&namespace, path)?;
    caller.require(Right::EditJobs, &AccessScope::Group(group.clone()))?;
    let body = Value::Object(body.given()?.into_object());
    let rule = decode::retention(&decode::Node::from(body)).map_err(|problems| {
        let errors = problems
            .into_iter()
            .map(|problem| FieldProblem::new(&problem.field, problem.message));
        Problem::unfit(errors.collect())
    })?;
    let by = &caller.actor;
    state.store.set_retention(&group, &rule, by).await?;
    Ok(Json(GroupRetentionView::new(group, &rule)))
}

/// Deletes the rule of a group.
#[utoipa::path(
    delete,
    path = "/api/v1/retention/{group}",
    operation_id = "retention_delete",
    tag = "retention",
    summary = "Deletes the retention rule of a group.",
    params(("group" = openapi::Name, Path, description = "The name of the group.")),
    responses((status = 200, description = "The group has no rule.", body = GroupRetentionView))
)]
pub(crate) async fn delete(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: GroupPath,
    uri: Uri,
) -> Result<Json<GroupRetentionView>, Problem> {
    query::none(&uri)?;
    let group = group_name(&namespace, path)?;
    caller.require(Right::EditJobs, &AccessScope::Group(group.clone()))?;
    let (none, by) = (Retention::default(), &caller.actor);
    state.store.set_retention(&group, &none, by).await?;
    Ok(Json(GroupRetentionView::new(group, &none)))
}

/// Shows what is kept of the runs of a job.
#[utoipa::path(
    get,
    path = "/api/v1/jobs/{name}/retention",
    operation_id = "job_retention",
    tag = "jobs",
    summary = "Shows what is kept of the runs of a job, and what says so.",
    params(("name" = openapi::Name, Path, description = "The name of the job.")),
    responses((status = 200, description = "What applies to the job.", body = JobRetention))
)]
pub(crate) async fn of_job(
    State(state): State<SharedState>,
    namespace: InNamespace,
    path: JobPath,
    uri: Uri,
) -> Result<Json<JobRetention>, Problem> {
    query::none(&uri)?;
    let name = job_name(&namespace, path)?;
    let job = state.store.job(&name).await?.job;
    let of_group = state.store.retention_rules(Some(&job.spec.group)).await?;
    let of_group = of_group.first().map_or_else(Retention::default, |g| g.rule);
    let of = retention_of_job(&job.spec.retention, &of_group, state.retention.age);
    Ok(Json(JobRetention::new(name, &of)))
}

/// Deletes ended runs with their logs and timelines.
#[utoipa::path(
    post,
    path = "/api/v1/runs/prune",
    operation_id = "run_prune",
    tag = "runs",
    summary = "Deletes ended runs with their logs and timelines.",
    description = "It needs the right to edit jobs in the group of each job. Runs that do not exist, and those where the right is missing, are left out of the answer.",
    request_body = openapi::RunSelection,
    responses((status = 200, description = "What was deleted.", body = PrunedRuns))
)]
pub(crate) async fn prune(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    InNamespace(namespace): InNamespace,
    uri: Uri,
    body: Body,
) -> Result<Json<PrunedRuns>, Problem> {
    query::none(&uri)?;
    let mut fields = body.fields(&["runs", ALL]);
    let all_namespaces = fields.flag(ALL);
    if all_namespaces && !namespace.is_default() {
        let message = format!("not possible under /namespaces/{namespace}; leave that out");
        fields.record(ALL, message);
    }
    let runs = run_ids(&mut fields);
    fields.finish()?;
    let of = (!all_namespaces).then_some(namespace);
    caller.require_somewhere(Right::EditJobs, of.as_ref())?;
    let request = PruneRequest {
        runs,
        within: caller.limited(Right::EditJobs, of.as_ref()),
        namespace: of,
    };
    let pruned = state.store.prune_runs(&request, &caller.actor).await?;
    Ok(Json(pruned.into()))
}

/// The field `runs`: a list of ids.
fn run_ids(fields: &mut Fields) -> Vec<RunId> {
    let list = match fields.take("runs") {
        Some(Value::Array(list)) => list,
        Some(other) => {
            let message = format!("{} is given; give a list of run ids", a_kind(&other));
            fields.record("runs", message);
            return Vec::new();
        }
        None => {
            fields.record("runs", "missing; give a list of run ids");
            return Vec::new();
        }
    };
    if list.len() > MAX_PRUNED_AT_ONCE {
        let message = format!(
            "{} are given; give at most {MAX_PRUNED_AT_ONCE} at once",
            list.len()
        );
        fields.record("runs", message);
        return Vec::new();
    }
    let mut runs = Vec::with_capacity(list.len());
    for value in list {
        match value.as_i64().filter(|id| *id > 0) {
            Some(id) => runs.push(RunId(id)),
            None => fields.record("runs", format!("{value} is not a run's id")),
        }
    }
    runs
}
