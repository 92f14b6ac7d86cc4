//! Backfills: runs for the fire times of a past window.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::{StatusCode, Uri};
use cueline_model::backfill::{
    FireCount, MAX_BACKFILL_FIRES, MAX_BACKFILL_PARALLEL, count_fires, has_past_fire_times,
};
use cueline_model::{Block, Exclusions, Job, JobName, Timestamp};
use cueline_store::{
    BackfillChange, BackfillFilter, ErrorKind, NewBackfill, Precondition, Revision,
};

use crate::access::Caller;
use crate::body::Body;
use crate::jobs::{JobPath, job_name};
use crate::namespace::InNamespace;
use crate::openapi;
use crate::problem::{FieldProblem, Problem};
use crate::query;
use crate::settle::settle;
use crate::view::{BackfillList, BackfillStarted, BackfillView};
use crate::{ApiState, SharedState};

/// The most backfills of one response. A store keeps hardly more.
const MAX_LISTED: usize = 1_000;

type BackfillPath = Result<Path<(String, String)>, PathRejection>;

/// Lists the backfills of a namespace.
#[utoipa::path(
    get,
    path = "/api/v1/backfills",
    operation_id = "backfill_list",
    tag = "backfills",
    responses((status = 200, description = "The backfills, newest first, at most 1,000.", body = BackfillList))
)]
pub(crate) async fn list(
    State(state): State<SharedState>,
    InNamespace(namespace): InNamespace,
    uri: Uri,
) -> Result<Json<BackfillList>, Problem> {
    query::none(&uri)?;
    let filter = BackfillFilter {
        namespace: Some(namespace),
        ..BackfillFilter::default()
    };
    listed(&state, filter).await
}

/// Lists the backfills of a job.
#[utoipa::path(
    get,
    path = "/api/v1/jobs/{name}/backfills",
    operation_id = "job_backfills",
    tag = "backfills",
    params(("name" = openapi::Name, Path, description = "The name of the job.")),
    responses((status = 200, description = "The backfills, newest first, at most 1,000.", body = BackfillList))
)]
pub(crate) async fn of_job(
    State(state): State<SharedState>,
    namespace: InNamespace,
    path: JobPath,
    uri: Uri,
) -> Result<Json<BackfillList>, Problem> {
    query::none(&uri)?;
    let filter = BackfillFilter {
        job: Some(job_name(&namespace, path)?),
        ..BackfillFilter::default()
    };
    listed(&state, filter).await
}

async fn listed(state: &ApiState, filter: BackfillFilter) -> Result<Json<BackfillList>, Problem> {
    let filter = BackfillFilter {
        limit: MAX_LISTED,
        ..filter
    };
    let found = state.store.backfills(&filter).await?;
    Ok(Json(BackfillList {
        backfills: found.into_iter().map(BackfillView::from).collect(),
        now: state.store.now().await?,
    }))
}

/// Starts a backfill, or counts its fire times.
#[utoipa::path(
    post,
    path = "/api/v1/jobs/{name}/backfills",
    operation_id = "backfill_start",
    tag = "backfills",
    description = "Creates a run for each fire time of the job's schedule in a past window, oldest first, `parallel` of them at once. With `dry_run`, it only counts. With `expected_fires`, it is refused if that is not the number of fire times.",
    params(("name" = openapi::Name, Path, description = "The name of the job.")),
    request_body = openapi::NewBackfill,
    responses(
        (status = 200, description = "The fire times were counted.", body = BackfillStarted),
        (status = 201, description = "The backfill runs.", body = BackfillStarted),
        (status = 409, description = "The job has a backfill that has not ended, or there are too many, or the number of fire times is another one.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The window or the schedule does not fit. `errors` names each field.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn start(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: JobPath,
    uri: Uri,
    body: Body,
) -> Result<(StatusCode, Json<BackfillStarted>), Problem> {
    query::none(&uri)?;
    let name = job_name(&namespace, path)?;
    let request = Requested::read(body)?;
    let job = state.store.job(&name).await?.job;
    request.check(&job, state.store.now().await?)?;
    let count = count(&state, &job, &request).await?;
    let mut started = BackfillStarted {
        dry_run: request.dry_run,
        fires: count.fires,
        excluded: count.excluded,
        backfill: None,
    };
    request.check_count(count)?;
    if request.dry_run {
        return Ok((StatusCode::OK, Json(started)));
    }
    let new = NewBackfill {
        job: name,
        // The count is of this version.
        condition: Precondition::OneOf(vec![Revision::from(&*job)]),
        from: request.from,
        to: request.to,
        parallel: request.parallel,
        include_excluded: request.include_excluded,
        total: count.fires,
        by: caller.actor,
    };
    let backfill = match state.store.start_backfill(&new).await {
        Ok(backfill) => backfill,
        Err(error) if error.kind() == ErrorKind::Precondition => {
            let message = "the job has changed while its fire times were counted; ask again";
            return Err(Problem::refused(message));
        }
        Err(error) => return Err(error.into()),
    };
    started.backfill = Some(backfill.into());
    Ok((StatusCode::CREATED, Json(started)))
}

/// What a request asks for.
#[derive(Debug, Clone)]
struct Requested {
    from: Timestamp,
    to: Timestamp,
    parallel: u32,
    include_excluded: bool,
    dry_run: bool,
    expected_fires: Option<u64>,
}

impl Requested {
    fn read(body: Body) -> Result<Self, Problem> {
        let mut fields = body.given()?.fields(&[
            "from",
            "to",
            "parallel",
            "include_excluded",
            "dry_run",
            "expected_fires",
        ]);
        for field in ["from", "to"] {
            if !fields.has(field) {
                fields.record(
                    field,
                    "missing; give an instant such as 2027-01-01T00:00:00Z",
                );
            }
        }
        let (from, to) = (fields.instant("from"), fields.instant("to"));
        let most = i64::from(MAX_BACKFILL_PARALLEL);
        let parallel = fields.number("parallel", 1, 1..=most);
        let include_excluded = fields.flag("include_excluded");
        let dry_run = fields.flag("dry_run");
        let is_expected = fields.has("expected_fires");
        let expected = fields.number("expected_fires", 0, 0..=i64::MAX);
        fields.finish()?;
        Ok(Self {
            from: from.unwrap_or_default(),
            to: to.unwrap_or_default(),
            parallel: u32::try_from(parallel).unwrap_or(1),
            include_excluded,
            dry_run,
            expected_fires: is_expected.then_some(u64::try_from(expected).unwrap_or_default()),
        })
    }

    fn check(&self, job: &Job, now: Timestamp) -> Result<(), Problem> {
        let mut errors = Vec::new();
        let (from, to) = (self.from, self.to);
        if to <= from {
            let message = format!("{to} is not after from ({from}); give a later instant");
            errors.push(FieldProblem::new("to", message));
        } else if to > now {
            let message = format!("{to} is in the future; give an instant up to now ({now})");
            errors.push(FieldProblem::new("to", message));
        }
        if !has_past_fire_times(&job.spec.schedule) {
            let message = "the job's schedule has no fire times of its own; a backfill needs `cron`, `every` or `at`";
            errors.push(FieldProblem::new("name", message));
        }
        let is_one_at_a_time = matches!(job.spec.block, Block::Discard | Block::Cover);
        if is_one_at_a_time && self.parallel > 1 {
            let message = format!(
                "{} given; the lane of a job with `discard` or `cover` ends all runs but one, so 1 is expected",
                self.parallel
            );
            errors.push(FieldProblem::new("parallel", message));
        }
        if errors.is_empty() {
            return Ok(());
        }
        Err(Problem::unfit(errors))
    }

    fn check_count(&self, count: FireCount) -> Result<(), Problem> {
        if count.is_too_many {
            let message = format!(
                "the window has more than {MAX_BACKFILL_FIRES} fire times, or too many that are excluded; give a shorter window"
            );
            return Err(Problem::unfit(vec![FieldProblem::new("from", message)]));
        }
        match self.expected_fires {
            Some(expected) if expected != count.fires => Err(Problem::refused(format!(
                "the window has {} fire times, not {expected}; the job or a calendar has changed",
                count.fires
            ))),
            _ => Ok(()),
        }
    }
}

async fn count(state: &ApiState, job: &Job, request: &Requested) -> Result<FireCount, Problem> {
    let exclusions = if request.include_excluded {
        Exclusions::default()
    } else {
        let rules = state.store.fire_rules().await?;
        rules.of(&job.spec).without_pauses()
    };
    let (spec, from, to) = (job.spec.clone(), request.from, request.to);
    // On a blocking thread, because it visits each fire time.
    let counted = tokio::task::spawn_blocking(move || count_fires(&spec, &exclusions, from, to));
    counted
        .await
        .map_err(|_| Problem::unavailable("the fire times could not be counted"))
}

/// Shows one backfill with the numbers of its runs.
#[utoipa::path(
    get,
    path = "/api/v1/jobs/{name}/backfills/{id}",
    operation_id = "backfill_show",
    tag = "backfills",
    params(
        ("name" = openapi::Name, Path, description = "The name of the job."),
        ("id" = openapi::RunNumber, Path, description = "The number of the backfill."),
    ),
    responses((status = 200, description = "The backfill.", body = BackfillView))
)]
pub(crate) async fn show(
    State(state): State<SharedState>,
    namespace: InNamespace,
    path: BackfillPath,
    uri: Uri,
) -> Result<Json<BackfillView>, Problem> {
    query::none(&uri)?;
    let (name, id) = backfill_of(&namespace, path)?;
    Ok(Json(found(&state, &name, id).await?))
}

/// Pauses a backfill: it creates no runs for now.
#[utoipa::path(
    post,
    path = "/api/v1/jobs/{name}/backfills/{id}/pause",
    operation_id = "backfill_pause",
    tag = "backfills",
    params(
        ("name" = openapi::Name, Path, description = "The name of the job."),
        ("id" = openapi::RunNumber, Path, description = "The number of the backfill."),
    ),
    responses(
        (status = 200, description = "The backfill is paused.", body = BackfillView),
        (status = 409, description = "It has ended.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn pause(
    state: State<SharedState>,
    caller: Extension<Caller>,
    namespace: InNamespace,
    path: BackfillPath,
    uri: Uri,
    body: Body,
) -> Result<Json<BackfillView>, Problem> {
    let change = BackfillChange::Pause;
    changed(state, caller, namespace, path, uri, body, change).await
}

/// Resumes a backfill.
#[utoipa::path(
    post,
    path = "/api/v1/jobs/{name}/backfills/{id}/resume",
    operation_id = "backfill_resume",
    tag = "backfills",
    params(
        ("name" = openapi::Name, Path, description = "The name of the job."),
        ("id" = openapi::RunNumber, Path, description = "The number of the backfill."),
    ),
    responses(
        (status = 200, description = "The backfill goes on.", body = BackfillView),
        (status = 409, description = "It has ended.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn resume(
    state: State<SharedState>,
    caller: Extension<Caller>,
    namespace: InNamespace,
    path: BackfillPath,
    uri: Uri,
    body: Body,
) -> Result<Json<BackfillView>, Problem> {
    let change = BackfillChange::Resume;
    changed(state, caller, namespace, path, uri, body, change).await
}

/// Cancels a backfill and its runs.
#[utoipa::path(
    post,
    path = "/api/v1/jobs/{name}/backfills/{id}/cancel",
    operation_id = "backfill_cancel",
    tag = "backfills",
    description = "Runs that wait end at once. The cancellation of the others is requested.",
    params(
        ("name" = openapi::Name, Path, description = "The name of the job."),
        ("id" = openapi::RunNumber, Path, description = "The number of the backfill."),
    ),
    responses(
        (status = 200, description = "The backfill is cancelled.", body = BackfillView),
        (status = 409, description = "It has finished.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn cancel(
    state: State<SharedState>,
    caller: Extension<Caller>,
    namespace: InNamespace,
    path: BackfillPath,
    uri: Uri,
    body: Body,
) -> Result<Json<BackfillView>, Problem> {
    let change = BackfillChange::Cancel;
    changed(state, caller, namespace, path, uri, body, change).await
}

async fn changed(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: BackfillPath,
    uri: Uri,
    body: Body,
    change: BackfillChange,
) -> Result<Json<BackfillView>, Problem> {
    query::none(&uri)?;
    body.nothing()?;
    let (name, id) = backfill_of(&namespace, path)?;
    found(&state, &name, id).await?;
    let changed = state.store.change_backfill(id, change, &caller.actor);
    let changed = changed.await?;
    if change == BackfillChange::Cancel {
        state.admin.wake_cancellations();
        let job = state.store.job(&name).await?.job.id;
        settle(&state, &[job]).await?;
    }
    Ok(Json(changed.into()))
}

fn backfill_of(namespace: &InNamespace, path: BackfillPath) -> Result<(JobName, i64), Problem> {
    let Path((name, text)) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    let name = crate::path::job_name(namespace, &name)?;
    let id = text.parse::<i64>().ok().filter(|id| *id > 0);
    let id = id.ok_or_else(|| {
        let message =
            format!("{text:?} is not the number of a backfill; numbers are whole and from 1 on");
        Problem::malformed_fields(vec![FieldProblem::new("id", message)])
    })?;
    Ok((name, id))
}

/// The backfill, if it is one of this job. The right was checked for the job.
async fn found(state: &ApiState, job: &JobName, id: i64) -> Result<BackfillView, Problem> {
    let missing = || Problem::not_found(format!("job {:?} has no backfill {id}", job.local()));
    let detail = state.store.backfill(id).await?;
    if detail.backfill.job != *job {
        return Err(missing());
    }
    Ok(detail.into())
}
