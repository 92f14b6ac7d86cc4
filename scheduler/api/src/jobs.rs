//! Jobs: list, show, pause, resume, trigger, delete.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use cueline_model::{JobId, JobName, Namespace, Right};
use cueline_store::{JobSummary, Revision, TriggerOutcome, TriggerRequest};

use crate::ApiState;
use crate::access::Caller;
use crate::body::Body;
use crate::idempotency::IdempotencyKey;
use crate::namespace::{ALL, InNamespace};
use crate::openapi;
use crate::preconditions::{IfMatch, IfNoneMatch, Tagged, tagged};
use crate::problem::{FieldProblem, Problem};
use crate::query::{self, Params};
use crate::settle::settle;
use crate::view::{JobPage, JobRef, JobView, LedgerPage};

/// The longest parameter text of a trigger request. The limit is the same as for a job.
const MAX_PARAMS_BYTES: usize = 64 * 1024;
const MAX_KEY_BYTES: usize = 256;
const DAY_MS: u64 = 86_400_000;
/// Reads of the store for one page of a caller who may not read all jobs, and the jobs in each. A page is short if these
/// reads have too few jobs that the caller may read.
const MAX_READS: usize = 20;
const JOBS_IN_READ: usize = 500;

pub(crate) type JobPath = Result<Path<String>, PathRejection>;

pub(crate) fn job_name(namespace: &InNamespace, path: JobPath) -> Result<JobName, Problem> {
    let Path(text) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    crate::path::job_name(namespace, &text)
}

/// Lists jobs by name.
#[utoipa::path(
    get,
    path = "/api/v1/jobs",
    operation_id = "job_list",
    tag = "jobs",
    params(
        ("after" = Option<openapi::ListedName>, Query, description = "The last name of the previous page."),
        ("limit" = Option<openapi::PageLimit>, Query, description = "The most entries of the response; 100 by default."),
        ("all_namespaces" = Option<openapi::AllNamespaces>, Query, description = "Whether jobs of all namespaces are listed."),
    ),
    responses(
        (status = 200, description = "A page of jobs, sorted by name.", body = JobPage),
    )
)]
pub(crate) async fn list(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    uri: Uri,
) -> Result<Json<JobPage>, Problem> {
    let mut params = Params::of(&uri, &["after", "limit", ALL]);
    let listed = namespace.listed(&mut params);
    let after = params.parsed("after", |text| match &listed {
        Some(_) => namespace.job(text),
        None => text.parse::<JobName>().map_err(|e| e.to_string()),
    });
    let limit = params.limit(100);
    params.finish()?;
    caller.require_somewhere(Right::Read, listed.as_ref())?;
    let (jobs, next) = if caller.may_read_all(listed.as_ref()) {
        let jobs = state
            .store
            .jobs(listed.as_ref(), after.as_ref(), limit)
            .await?;
        let next = last_name(&jobs).filter(|_| jobs.len() >= limit);
        (jobs, next)
    } else {
        readable_jobs(&state, &caller, listed.as_ref(), after, limit).await?
    };
    let now = state.store.now().await?;
    Ok(Json(JobPage {
        next,
        jobs: jobs.into_iter().map(JobView::from).collect(),
        now,
    }))
}

fn last_name(jobs: &[JobSummary]) -> Option<JobName> {
    jobs.last().map(|last| last.job.spec.name.clone())
}

/// Jobs of the namespace after `after` that the caller may read, and where the next page begins.
async fn readable_jobs(
    state: &ApiState,
    caller: &Caller,
    listed: Option<&Namespace>,
    mut after: Option<JobName>,
    limit: usize,
) -> Result<(Vec<JobSummary>, Option<JobName>), Problem> {
    let mut jobs = Vec::new();
    for _ in 0..MAX_READS {
        let mut read = state
            .store
            .jobs(listed, after.as_ref(), JOBS_IN_READ)
            .await?;
        let is_last = read.len() < JOBS_IN_READ;
        after = last_name(&read);
        read.retain(|job| caller.may(Right::Read, &job.job.spec.group));
        jobs.extend(read);
        if jobs.len() >= limit {
            jobs.truncate(limit);
            // Where this page ends, and not where the reads did: the names of other groups' jobs stay unknown.
            let next = last_name(&jobs);
            return Ok((jobs, next));
        }
        if is_last {
            return Ok((jobs, None));
        }
    }
    Ok((jobs, after))
}

/// Shows one job.
#[utoipa::path(
    get,
    path = "/api/v1/jobs/{name}",
    operation_id = "job_show",
    tag = "jobs",
    params(
        ("name" = openapi::Name, Path, description = "The name of the job."),
        ("If-None-Match" = Option<String>, Header, description = "The `ETag` of an earlier response."),
    ),
    responses(
        (status = 200, description = "The job.", body = openapi::JobView, headers(("ETag" = String, description = "The version of the job."))),
        (status = 304, description = "The job has the version in `If-None-Match`.", headers(("ETag" = String, description = "The version of the job."))),
    )
)]
pub(crate) async fn show(
    State(state): State<ApiState>,
    namespace: InNamespace,
    path: JobPath,
    uri: Uri,
    if_none_match: IfNoneMatch,
) -> Result<Response, Problem> {
    query::none(&uri)?;
    let summary = state.store.job(&job_name(&namespace, path)?).await?;
    let revision = Revision::from(&*summary.job);
    Ok(if_none_match.answer(revision, JobView::from(summary)))
}

/// Deletes a job. Its runs are kept.
#[utoipa::path(
    delete,
    path = "/api/v1/jobs/{name}",
    operation_id = "job_delete",
    tag = "jobs",
    params(
        ("name" = openapi::Name, Path, description = "The name of the job."),
        ("If-Match" = Option<String>, Header, description = "The `ETag` of the job."),
    ),
    responses(
        (status = 200, description = "The job is deleted.", body = JobRef),
        (status = 409, description = "The job is the parent of others.", body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "The job has another version than in `If-Match`.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn delete(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: JobPath,
    uri: Uri,
    IfMatch(condition): IfMatch,
) -> Result<Json<JobRef>, Problem> {
    query::none(&uri)?;
    let name = job_name(&namespace, path)?;
    let deleted = state.store.delete_job_if(&name, &condition, &caller.actor);
    let id = deleted.await?;
    settle(&state, &[id]).await?;
    Ok(Json(JobRef { id, name }))
}

/// Pauses a job's schedule.
#[utoipa::path(
    post,
    path = "/api/v1/jobs/{name}/pause",
    operation_id = "job_pause",
    tag = "jobs",
    params(
        ("name" = openapi::Name, Path, description = "The name of the job."),
        ("If-Match" = Option<String>, Header, description = "The `ETag` of the job."),
    ),
    responses(
        (status = 200, description = "The job is paused.", body = JobRef, headers(("ETag" = String, description = "The version of the job."))),
        (status = 412, description = "The job has another version than in `If-Match`.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn pause(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: JobPath,
    uri: Uri,
    IfMatch(condition): IfMatch,
    body: Body,
) -> Result<Tagged<JobRef>, Problem> {
    query::none(&uri)?;
    body.nothing()?;
    let name = job_name(&namespace, path)?;
    let by = &caller.actor;
    let paused = state.store.set_job_enabled_if(&name, false, &condition, by);
    let revision = paused.await?;
    let id = JobId(revision.id);
    settle(&state, &[id]).await?;
    Ok(tagged(revision, JobRef { id, name }))
}

/// Resumes a job's schedule.
#[utoipa::path(
    post,
    path = "/api/v1/jobs/{name}/resume",
    operation_id = "job_resume",
    tag = "jobs",
    params(
        ("name" = openapi::Name, Path, description = "The name of the job."),
        ("If-Match" = Option<String>, Header, description = "The `ETag` of the job."),
    ),
    responses(
        (status = 200, description = "The job is resumed.", body = JobRef, headers(("ETag" = String, description = "The version of the job."))),
        (status = 412, description = "The job has another version than in `If-Match`.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn resume(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: JobPath,
    uri: Uri,
    IfMatch(condition): IfMatch,
    body: Body,
) -> Result<Tagged<JobRef>, Problem> {
    query::none(&uri)?;
    body.nothing()?;
    let name = job_name(&namespace, path)?;
    let by = &caller.actor;
    let resumed = state.store.set_job_enabled_if(&name, true, &condition, by);
    let revision = resumed.await?;
    state.admin.wake_claim();
    let id = JobId(revision.id);
    Ok(tagged(revision, JobRef { id, name }))
}

/// Runs a job now, or at a given instant.
#[utoipa::path(
    post,
    path = "/api/v1/jobs/{name}/trigger",
    operation_id = "trigger",
    tag = "jobs",
    params(
        ("name" = openapi::Name, Path, description = "The name of the job."),
        ("If-Match" = Option<String>, Header, description = "The `ETag` of the job."),
        ("Idempotency-Key" = Option<String>, Header, description = "The same as `idempotency_key` in the body."),
    ),
    request_body = Option<openapi::TriggerRequest>,
    responses(
        (status = 200, description = "An earlier request with the same idempotency key created these runs.", body = openapi::Triggered),
        (status = 202, description = "The runs are created.", body = openapi::Triggered),
        (status = 409, description = "The present state forbids the change.", body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "The job has another version than in `If-Match`.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The request does not fit the job, or the idempotency key was used with other parameters.", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "A quota of the namespace is reached.", body = Problem, content_type = "application/problem+json"),
    )
)]
#[expect(clippy::too_many_arguments, reason = "each is one part of the request")]
pub(crate) async fn trigger(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: JobPath,
    uri: Uri,
    IfMatch(condition): IfMatch,
    key: IdempotencyKey,
    body: Body,
) -> Result<(StatusCode, Json<TriggerOutcome>), Problem> {
    query::none(&uri)?;
    let job = job_name(&namespace, path)?;
    let mut fields = body.fields(&["params", "idempotency_key", "run_at"]);
    let params = fields.params("params", MAX_PARAMS_BYTES);
    let idempotency_key = fields.text("idempotency_key", MAX_KEY_BYTES);
    if idempotency_key.as_deref() == Some("") {
        fields.record("idempotency_key", "is empty; give a text, or leave it out");
    }
    let idempotency_key = key.or_field(&mut fields, "idempotency_key", idempotency_key);
    let run_at = fields.instant("run_at");
    fields.finish()?;
    let request = TriggerRequest {
        job,
        params,
        idempotency_key,
        run_at,
        by: caller.actor,
        condition,
    };
    let triggered = state.admin.trigger(request).await?;
    let status = if triggered.duplicate {
        StatusCode::OK
    } else {
        StatusCode::ACCEPTED
    };
    Ok((status, Json(triggered)))
}

/// Lists the expected fire times of a past window with their runs. The default window is the last 24 hours.
#[utoipa::path(
    get,
    path = "/api/v1/jobs/{name}/ledger",
    operation_id = "job_ledger",
    tag = "jobs",
    params(
        ("name" = openapi::Name, Path, description = "The name of the job."),
        ("from" = Option<openapi::InstantText>, Query, description = "The start of the window, inclusive; a day before its end by default."),
        ("to" = Option<openapi::InstantText>, Query, description = "The end of the window, exclusive; now by default."),
        ("limit" = Option<openapi::PageLimit>, Query, description = "The most entries of the response; 1,000 by default."),
    ),
    responses(
        (status = 200, description = "The fire times, earliest first.", body = LedgerPage),
    )
)]
pub(crate) async fn ledger(
    State(state): State<ApiState>,
    namespace: InNamespace,
    path: JobPath,
    uri: Uri,
) -> Result<Json<LedgerPage>, Problem> {
    let name = job_name(&namespace, path)?;
    let mut params = Params::of(&uri, &["from", "to", "limit"]);
    let (from, to) = (params.instant("from"), params.instant("to"));
    let limit = params.limit(1_000);
    params.finish()?;
    let to = match to {
        Some(to) => to,
        None => state.store.now().await?,
    };
    let from = from.unwrap_or_else(|| to.minus_ms(DAY_MS));
    // An empty window has no fire times. One that ends before it begins is a mistake.
    if from > to {
        let message = format!("{from} is after {to}, where the window ends");
        return Err(Problem::malformed_fields(vec![FieldProblem::new(
            "from", message,
        )]));
    }
    let entries = state.store.ledger(&name, from, to, limit).await?;
    let more = entries.len() >= limit;
    Ok(Json(LedgerPage {
        from,
        to,
        entries,
        more,
    }))
}
