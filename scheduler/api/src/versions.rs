//! The versions of jobs: lists, shows and restores them.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::Uri;
use cueline_model::{Actor, JobName, JobSpec, Right};
use cueline_store::{Change, ErrorKind, JobVersion, Order};

use crate::ApiState;
use crate::access::{Caller, check_apply};
use crate::apply;
use crate::body::{Body, Fields};
use crate::jobs::{JobPath, job_name};
use crate::list::{List, Page};
use crate::namespace::InNamespace;
use crate::openapi;
use crate::problem::{FieldProblem, Problem};
use crate::query::{self, Params};
use crate::settle::settle;
use crate::view::{JobVersionView, JobVersions, Restored};

/// The list of a job's versions.
const LIST: List = List {
    name: "versions",
    filters: &[],
    sorts: &["-version", "version"],
};

/// Lists the versions of a job without their definitions. A deleted job has its versions until another one gets its name.
#[utoipa::path(
    get,
    path = "/api/v1/jobs/{name}/versions",
    operation_id = "job_history",
    tag = "jobs",
    summary = "Lists the versions of a job without their definitions.",
    description = "A deleted job has its versions until another one gets its name.",
    params(
        ("name" = openapi::Name, Path, description = "The name of the job."),
        ("sort" = Option<openapi::VersionSort>, Query, description = "The order of the list."),
        ("limit" = Option<openapi::PageLimit>, Query, description = "The most entries of the response; 100 by default."),
        ("after" = Option<openapi::PageCursor>, Query, description = "The `next` of the previous page."),
    ),
    responses(
        (status = 200, description = "A page of versions.", body = JobVersions),
    )
)]
pub(crate) async fn list(
    State(state): State<ApiState>,
    namespace: InNamespace,
    path: JobPath,
    uri: Uri,
) -> Result<Json<JobVersions>, Problem> {
    let job = job_name(&namespace, path)?;
    let mut params = Params::of(&uri, &LIST.parameters());
    let page: Page<u64> = LIST.page(&mut params);
    params.finish()?;
    let read = state
        .audit
        .job_versions(&job, page.order(), page.after, page.limit + 1);
    let mut versions = read.await?;
    let next = page.cut(&mut versions, |last| last.version);
    let now = state.store.now().await?;
    Ok(Json(JobVersions {
        versions: versions
            .into_iter()
            .map(|version| JobVersionView {
                definition: None,
                ..JobVersionView::from(version)
            })
            .collect(),
        next,
        now,
    }))
}

/// Shows one version with its definition.
#[utoipa::path(
    get,
    path = "/api/v1/jobs/{name}/versions/{version}",
    operation_id = "job_version",
    tag = "jobs",
    summary = "Shows one version of a job with its definition.",
    params(
        ("name" = openapi::Name, Path, description = "The name of the job."),
        ("version" = openapi::VersionNumber, Path, description = "The number of the version."),
    ),
    responses(
        (status = 200, description = "The version.", body = JobVersionView),
    )
)]
pub(crate) async fn show(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: Result<Path<(String, String)>, PathRejection>,
    uri: Uri,
) -> Result<Json<JobVersionView>, Problem> {
    query::none(&uri)?;
    let Path((job, version)) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    let job = job_name(&namespace, Ok(Path(job)))?;
    let version = number(&version)
        .map_err(|e| Problem::malformed_fields(vec![FieldProblem::new("version", e)]))?;
    Ok(Json(find(&state, &caller, &job, version).await?.into()))
}

/// Applies the definition of an earlier version as a new version. A pause of the job stays. A deleted job is created
/// again, running or paused as it was.
#[utoipa::path(
    post,
    path = "/api/v1/jobs/{name}/restore",
    operation_id = "job_restore",
    tag = "jobs",
    summary = "Applies the definition of an earlier version as a new version.",
    description = "A pause of the job stays. A deleted job is created again, running or paused as it was.",
    params(
        ("name" = openapi::Name, Path, description = "The name of the job."),
    ),
    request_body = openapi::RestoreRequest,
    responses(
        (status = 200, description = "The definition is restored.", body = Restored),
        (status = 409, description = "The present state forbids the change.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The definition does not fit any more.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn restore(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: JobPath,
    uri: Uri,
    body: Body,
) -> Result<Json<Restored>, Problem> {
    query::none(&uri)?;
    let name = job_name(&namespace, path)?;
    let mut fields = body.fields(&["version"]);
    let version = version_field(&mut fields);
    fields.finish()?;
    let found = find(&state, &caller, &name, version).await?;
    let Some(mut spec) = found.definition else {
        return Err(Problem::refused(format!(
            "version {version} of job {name} is not readable by this server; ask a newer one"
        )));
    };
    spec.enabled = match state.store.job(&name).await {
        Ok(_) => None,
        Err(error) if error.kind() == ErrorKind::NotFound => Some(found.enabled),
        Err(error) => return Err(error.into()),
    };
    check_apply(&state, &caller, std::slice::from_ref(&spec)).await?;
    apply_one(&state, &caller.actor, spec, version)
        .await
        .map(Json)
}

async fn apply_one(
    state: &ApiState,
    by: &Actor,
    spec: JobSpec,
    version: u64,
) -> Result<Restored, Problem> {
    let name = spec.name.clone();
    let applied = apply::write(state, vec![spec], by).await?;
    let applied = applied.into_iter().next();
    let applied = applied.and_then(|job| Some((job.id?, job.change)));
    let Some((id, change)) = applied else {
        return Err(Problem::unavailable(format!(
            "it is not known whether version {version} of job {name} was restored; send the request again"
        )));
    };
    if change != Change::Created {
        settle(state, &[id]).await?;
    }
    Ok(Restored {
        id,
        name,
        restored: version,
        change,
    })
}

/// The version, if the caller may read the group that the job was in. Otherwise the answer is that of an unknown version.
async fn find(
    state: &ApiState,
    caller: &Caller,
    job: &JobName,
    version: u64,
) -> Result<JobVersion, Problem> {
    let above = Some(version.saturating_add(1));
    let newest = state
        .audit
        .job_versions(job, Order::Descending, above, 1)
        .await?;
    let found = newest.into_iter().find(|found| {
        let group = found.definition.as_ref().map(|spec| &spec.group);
        found.version == version && group.is_none_or(|group| caller.may(Right::Read, group))
    });
    found.ok_or_else(|| {
        Problem::not_found(format!(
            "job {job} has no version {version}; it never had it, or the version was deleted because there were newer ones"
        ))
    })
}

fn number(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not the number of a version"))
}

/// 0 if a problem was recorded.
fn version_field(fields: &mut Fields) -> u64 {
    match fields.take("version") {
        None => fields.record("version", "missing; give the number of a version"),
        Some(value) => match value.as_u64() {
            Some(version) => return version,
            None => fields.record("version", format!("{value} is not the number of a version")),
        },
    }
    0
}
