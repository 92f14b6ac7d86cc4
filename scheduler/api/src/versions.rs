//! The versions of jobs: lists, shows and restores them.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::Uri;
use cueline_model::{JobId, JobName, Right};
use cueline_store::{ErrorKind, JobVersion, Order};

use crate::access::Caller;
use crate::apply;
use crate::body::{Body, Fields};
use crate::jobs::{JobPath, job_name};
use crate::list::{List, Page};
use crate::namespace::InNamespace;
use crate::openapi;
use crate::preconditions::{IfMatch, Tagged, tagged};
use crate::problem::{FieldProblem, Problem};
use crate::query::{self, Params};
use crate::view::{JobVersionView, JobVersions, Restored};
use crate::{ApiState, SharedState};

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
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
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
            .filter(|version| may_read(&caller, version))
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
    State(state): State<SharedState>,
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
        ("If-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of the job; a deleted job has none."),
    ),
    request_body = openapi::RestoreRequest,
    responses(
        (status = 200, description = "The definition is restored.", body = Restored, headers(("ETag" = String, description = "The version of the job."))),
        (status = 409, description = "The present state forbids the change.", body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "The job has another version than in `If-Match`.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The definition does not fit any more.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn restore(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: JobPath,
    uri: Uri,
    IfMatch(condition): IfMatch,
    body: Body,
) -> Result<Tagged<Restored>, Problem> {
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
    let specs = [spec];
    let written = apply::write_one(&state, &caller, &specs, &condition);
    let (revision, applied) = written.await?;
    let restored = Restored {
        id: JobId(revision.id),
        name,
        restored: version,
        change: applied.change,
    };
    Ok(tagged(revision, restored))
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
    let is_it = |found: &JobVersion| found.version == version && may_read(caller, found);
    let found = newest.into_iter().find(is_it);
    found.ok_or_else(|| {
        Problem::not_found(format!(
            "job {job} has no version {version}; it never had it, or the version was deleted because there were newer ones"
        ))
    })
}

/// Whether the caller may read the group that the job was in at this version.
fn may_read(caller: &Caller, version: &JobVersion) -> bool {
    let group = version.definition.as_ref().map(|spec| &spec.group);
    group.is_none_or(|group| caller.may(Right::Read, group))
}

/// The highest number that a version can have. The schema `VersionNumber` has the same bound.
const MAX_VERSION: u64 = i64::MAX.unsigned_abs();

pub(crate) fn number(text: &str) -> Result<u64, String> {
    let number = text.parse::<u64>().ok();
    let number = number.filter(|number| *number <= MAX_VERSION);
    number.ok_or_else(|| format!("{text:?} is not the number of a version"))
}

/// 0 if a problem was recorded.
pub(crate) fn version_field(fields: &mut Fields) -> u64 {
    match fields.take("version") {
        None => fields.record("version", "missing; give the number of a version"),
        Some(value) => match value.as_u64().filter(|number| *number <= MAX_VERSION) {
            Some(version) => return version,
            None => fields.record("version", format!("{value} is not the number of a version")),
        },
    }
    0
}
