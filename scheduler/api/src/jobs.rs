//! Jobs: list, show, pause, resume, trigger, delete.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use cueline_model::{JobId, JobName, Right, Timestamp};
use cueline_store::{
    ErrorKind, JobFilter, JobPosition, JobSort, Revision, TriggerOutcome, TriggerRequest,
};

use crate::SharedState;
use crate::access::Caller;
use crate::body::Body;
use crate::idempotency::IdempotencyKey;
use crate::list::{Filters, List, Page};
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

pub(crate) type JobPath = Result<Path<String>, PathRejection>;

pub(crate) fn job_name(namespace: &InNamespace, path: JobPath) -> Result<JobName, Problem> {
    let Path(text) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    crate::path::job_name(namespace, &text)
}

/// The list of jobs.
const LIST: List = List {
    name: "jobs",
    filters: &["name", "group", "label", "state", ALL],
    sorts: &["name", "-name", "next_fire", "-next_fire"],
};

/// A cursor has numbers only. See [`JobPosition`].
type JobKey = (Option<i64>, i64);

/// Whether the schedule of a job is running, as lists name it.
const STATES: [(&str, bool); 2] = [("active", true), ("paused", false)];

/// Lists jobs.
#[utoipa::path(
    get,
    path = "/api/v1/jobs",
    operation_id = "job_list",
    tag = "jobs",
    params(
        ("name" = Option<Vec<openapi::NameFilter>>, Query, description = "Only jobs with this name; may be repeated."),
        ("group" = Option<Vec<openapi::ListedName>>, Query, description = "Only jobs of this group; may be repeated."),
        ("label" = Option<Vec<openapi::LabelFilter>>, Query, description = "Only jobs with this label; repeated ones must all hold."),
        ("state" = Option<Vec<openapi::JobState>>, Query, description = "Only jobs in this state; may be repeated."),
        ("sort" = Option<openapi::JobSort>, Query, description = "The order of the list. Jobs without a next fire time come last."),
        ("limit" = Option<openapi::PageLimit>, Query, description = "The most entries of the response; 100 by default."),
        ("after" = Option<openapi::PageCursor>, Query, description = "The `next` of the previous page."),
        ("all_namespaces" = Option<openapi::AllNamespaces>, Query, description = "Whether jobs of all namespaces are listed."),
    ),
    responses(
        (status = 200, description = "A page of jobs.", body = JobPage),
    )
)]
pub(crate) async fn list(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    uri: Uri,
) -> Result<Json<JobPage>, Problem> {
    let mut params = Params::of(&uri, &LIST.parameters());
    let listed = namespace.listed(&mut params);
    let mut filters = Filters::new(&mut params, &namespace, listed.as_ref());
    let (names, groups) = (filters.names(), filters.groups());
    let labels = params.labels();
    let states = params.words("state", &STATES);
    let page: Page<JobKey> = LIST.page(&mut params);
    params.finish()?;
    caller.require_somewhere(Right::Read, listed.as_ref())?;
    let filter = JobFilter {
        within: caller.readable(listed.as_ref()),
        namespace: listed,
        names,
        groups,
        labels,
        // Both states are all jobs.
        enabled: states
            .first()
            .copied()
            .filter(|first| states.iter().all(|state| state == first)),
        sort: match page.field() {
            "next_fire" => JobSort::NextFire(page.order()),
            _ => JobSort::Name(page.order()),
        },
        after: page.after.map(|(next_fire, id)| JobPosition {
            next_fire: next_fire.map(Timestamp::from_millis),
            id: JobId(id),
        }),
        limit: page.limit,
    };
    let found = match state.store.list_jobs(&filter).await {
        Ok(found) => found,
        // Only `after` can be wrong: it names a job of another store.
        Err(error) if error.kind() == ErrorKind::Invalid => {
            let message = "not a `next` of this list; begin with the first page";
            return Err(Problem::unfit_fields(vec![FieldProblem::new(
                "after", message,
            )]));
        }
        Err(error) => return Err(error.into()),
    };
    let next = found.next.map(|last| {
        let next_fire = last.next_fire.map(Timestamp::as_millis);
        page.next(&(next_fire, last.id.0))
    });
    let rules = state.store.fire_rules().await?;
    let now = state.store.now().await?;
    let jobs = found.jobs.into_iter();
    Ok(Json(JobPage {
        jobs: jobs.map(|job| JobView::new(job, &rules, now)).collect(),
        next,
        now,
    }))
}

/// Shows one job.
#[utoipa::path(
    get,
    path = "/api/v1/jobs/{name}",
    operation_id = "job_show",
    tag = "jobs",
    params(
        ("name" = openapi::Name, Path, description = "The name of the job."),
        ("If-None-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of an earlier response."),
    ),
    responses(
        (status = 200, description = "The job.", body = openapi::JobView, headers(("ETag" = String, description = "The version of the job."))),
        (status = 304, description = "The job has the version in `If-None-Match`.", headers(("ETag" = String, description = "The version of the job."))),
    )
)]
pub(crate) async fn show(
    State(state): State<SharedState>,
    namespace: InNamespace,
    path: JobPath,
    uri: Uri,
    if_none_match: IfNoneMatch,
) -> Result<Response, Problem> {
    query::none(&uri)?;
    let summary = state.store.job(&job_name(&namespace, path)?).await?;
    let revision = Revision::from(&*summary.job);
    let rules = state.store.fire_rules().await?;
    let now = state.store.now().await?;
    Ok(if_none_match.answer(revision, JobView::new(summary, &rules, now)))
}

/// Deletes a job. Its runs are kept.
#[utoipa::path(
    delete,
    path = "/api/v1/jobs/{name}",
    operation_id = "job_delete",
    tag = "jobs",
    params(
        ("name" = openapi::Name, Path, description = "The name of the job."),
        ("If-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of the job."),
    ),
    responses(
        (status = 200, description = "The job is deleted.", body = JobRef),
        (status = 409, description = "The job is the parent of others.", body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "The job has another version than in `If-Match`.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn delete(
    State(state): State<SharedState>,
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
        ("If-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of the job."),
    ),
    responses(
        (status = 200, description = "The job is paused.", body = JobRef, headers(("ETag" = String, description = "The version of the job."))),
        (status = 412, description = "The job has another version than in `If-Match`.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn pause(
    State(state): State<SharedState>,
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
        ("If-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of the job."),
    ),
    responses(
        (status = 200, description = "The job is resumed.", body = JobRef, headers(("ETag" = String, description = "The version of the job."))),
        (status = 412, description = "The job has another version than in `If-Match`.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn resume(
    State(state): State<SharedState>,
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
        ("If-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of the job."),
        ("Idempotency-Key" = Option<openapi::IdempotencyKeyHeader>, Header, description = "The same as `idempotency_key` in the body."),
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
    State(state): State<SharedState>,
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
        (status = 422, description = "The window ends before it begins.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn ledger(
    State(state): State<SharedState>,
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
        return Err(Problem::unfit_fields(vec![FieldProblem::new(
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
