//! Runs: list, show, read logs, cancel.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::Uri;
use cueline_model::{JobName, Right, RunId, RunState};
use cueline_runtime::Backoff;
use cueline_store::{CancelOutcome, ErrorKind, Run, RunDetail, RunFilter, StoreError};
use tokio::time::Instant;

use crate::ApiState;
use crate::access::{Caller, ReadableRuns, may_read_job};
use crate::body::Body;
use crate::namespace::{ALL, InNamespace};
use crate::openapi;
use crate::problem::Problem;
use crate::query::{self, Params};
use crate::view::{CancelAnswer, CancelResult, LogPage, Namespaced, RunPage};

const LONGEST_POLL_MS: i64 = 30_000;
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LONGEST_LOOK: Duration = Duration::from_millis(250);
/// Reads of the store for one page of a caller who may not read all runs. Runs of other groups fill the reads, and may
/// leave the page short.
const MAX_READS: usize = 20;

pub(crate) type RunPath = Result<Path<String>, PathRejection>;

pub(crate) fn run_id(path: RunPath) -> Result<RunId, Problem> {
    let Path(text) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    crate::path::run_id(&text)
}

pub(crate) fn run_state(text: &str) -> Result<RunState, String> {
    RunState::ALL
        .into_iter()
        .find(|state| state.as_str() == text)
        .ok_or_else(|| {
            let all: Vec<_> = RunState::ALL.iter().map(|state| state.as_str()).collect();
            format!(
                "{text:?} is not a run's state; the states are {}",
                all.join(", ")
            )
        })
}

/// Lists runs, newest first.
#[utoipa::path(
    get,
    path = "/api/v1/runs",
    operation_id = "run_list",
    tag = "runs",
    params(
        ("job" = Option<openapi::ListedName>, Query, description = "Only runs of this job."),
        ("state" = Option<Vec<openapi::RunState>>, Query, description = "Only runs in this state; may be repeated."),
        ("before" = Option<openapi::Before>, Query, description = "The `next` of the previous page."),
        ("limit" = Option<openapi::PageLimit>, Query, description = "The most entries of the response; 100 by default."),
        ("all_namespaces" = Option<openapi::AllNamespaces>, Query, description = "Whether runs of all namespaces are listed."),
    ),
    responses(
        (status = 200, description = "A page of runs, newest first.", body = RunPage),
        (status = 404, description = "There never was a job with this name, or the caller may not read it.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    uri: Uri,
) -> Result<Json<RunPage>, Problem> {
    let mut params = Params::of(&uri, &["job", "state", "before", "limit", ALL]);
    let listed = namespace.listed(&mut params);
    let job = params.parsed("job", |text| match &listed {
        Some(_) => namespace.job(text),
        None => text.parse::<JobName>().map_err(|e| e.to_string()),
    });
    let filter = RunFilter {
        namespace: listed,
        job,
        states: params.many("state", run_state),
        before: params
            .parsed("before", |text| {
                text.parse::<i64>()
                    .map_err(|_| format!("{text:?} is not a run's id; ids are whole numbers"))
            })
            .map(RunId),
        limit: params.limit(100),
    };
    params.finish()?;
    caller.require_somewhere(Right::Read, filter.namespace.as_ref())?;
    let (runs, next) = if caller.may_read_all(filter.namespace.as_ref()) {
        let runs = state.store.runs(&filter).await?;
        let next = runs.last().filter(|_| runs.len() >= filter.limit);
        let next = next.map(|run| run.id.0);
        (runs, next)
    } else {
        readable_runs(&state, &caller, filter).await?
    };
    let now = state.store.now().await?;
    let runs = runs.into_iter().map(|run| {
        let namespace = run.job.namespace();
        Namespaced {
            namespace,
            item: run,
        }
    });
    Ok(Json(RunPage {
        runs: runs.collect(),
        next,
        now,
    }))
}

/// Runs of the filter that the caller may read, and where the next page begins.
async fn readable_runs(
    state: &ApiState,
    caller: &Caller,
    filter: RunFilter,
) -> Result<(Vec<Run>, Option<i64>), Problem> {
    let (mut runs, mut next) = (Vec::new(), None);
    let mut readable = ReadableRuns::default();
    let mut part = filter.clone();
    for _ in 0..MAX_READS {
        // Never more than fit, so that the next page begins after the last run of this one.
        part.limit = filter.limit - runs.len();
        let read = match state.store.runs(&part).await {
            Ok(read) => read,
            // Below, an unknown job gets the answer of one that the caller may not read.
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let is_last = read.len() < part.limit;
        part.before = read.last().map(|run| run.id);
        next = part.before.filter(|_| !is_last).map(|id| id.0);
        runs.extend(readable.of(state, caller, read).await?);
        if is_last || runs.len() >= filter.limit {
            break;
        }
    }
    if let Some(job) = &filter.job
        && runs.is_empty()
        && !may_read_job(state, caller, job).await?
    {
        return Err(StoreError::no_job(job.as_str()).into());
    }
    Ok((runs, next))
}

/// Shows one run with its timeline.
#[utoipa::path(
    get,
    path = "/api/v1/runs/{id}",
    operation_id = "run_show",
    tag = "runs",
    params(
        ("id" = openapi::RunNumber, Path, description = "The id of the run."),
    ),
    responses(
        (status = 200, description = "The run.", body = openapi::RunDetail),
    )
)]
pub(crate) async fn show(
    State(state): State<ApiState>,
    namespace: InNamespace,
    path: RunPath,
    uri: Uri,
) -> Result<Json<Namespaced<RunDetail>>, Problem> {
    query::none(&uri)?;
    let item = namespace.run(&state, run_id(path)?).await?;
    Ok(Json(Namespaced {
        namespace: item.run.job.namespace(),
        item,
    }))
}

/// Lines of a run's log. With `wait_ms`, the answer waits for new lines or the end of the run, at most for that time.
#[utoipa::path(
    get,
    path = "/api/v1/runs/{id}/logs",
    operation_id = "run_logs",
    tag = "runs",
    summary = "Reads the log of a run.",
    description = "With `wait_ms`, the response waits for new lines or the end of the run, at most for that time.",
    params(
        ("id" = openapi::RunNumber, Path, description = "The id of the run."),
        ("after" = Option<openapi::Cursor>, Query, description = "The `next` of the previous response; 0, the default, is the beginning."),
        ("limit" = Option<openapi::PageLimit>, Query, description = "The most entries of the response; 1,000 by default."),
        ("wait_ms" = Option<openapi::WaitMs>, Query, description = "The longest wait for new lines, in milliseconds; 0 by default."),
    ),
    responses(
        (status = 200, description = "Lines of the log.", body = LogPage),
    )
)]
pub(crate) async fn logs(
    State(state): State<ApiState>,
    namespace: InNamespace,
    path: RunPath,
    uri: Uri,
) -> Result<Json<LogPage>, Problem> {
    let mut params = Params::of(&uri, &["after", "limit", "wait_ms"]);
    let after = params.number("after", 0, 0..=i64::MAX);
    let limit = params.limit(1_000);
    let wait_ms = params.number("wait_ms", 0, 0..=LONGEST_POLL_MS);
    params.finish()?;
    let run = run_id(path)?;
    let deadline = Instant::now() + Duration::from_millis(wait_ms.unsigned_abs());
    let mut backoff = Backoff::new(FIRST_LOOK, LONGEST_LOOK);
    loop {
        // Read the state first. All lines of an ended run are stored before its end, so the read of the lines finds
        // them.
        let run_state = namespace.run(&state, run).await?.run.state;
        let lines = state.store.log_lines(run, after, limit).await?;
        let ended = run_state.is_terminal() && lines.len() < limit;
        let waited = Instant::now() >= deadline || state.stop.is_soft();
        if ended || waited || !lines.is_empty() {
            return Ok(Json(LogPage {
                next: lines.last().map_or(after, |line| line.cursor),
                lines,
                state: run_state,
                ended,
            }));
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next_wait()) => {}
            () = tokio::time::sleep_until(deadline) => {}
            () = state.stop.soft() => {}
        }
    }
}

/// Ends a run that has not been published, or sends the cancellation to its executor.
#[utoipa::path(
    post,
    path = "/api/v1/runs/{id}/cancel",
    operation_id = "run_cancel",
    tag = "runs",
    summary = "Cancels a run.",
    params(
        ("id" = openapi::RunNumber, Path, description = "The id of the run."),
    ),
    responses(
        (status = 200, description = "What the cancellation did.", body = CancelAnswer),
    )
)]
pub(crate) async fn cancel(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: RunPath,
    uri: Uri,
    body: Body,
) -> Result<Json<CancelAnswer>, Problem> {
    query::none(&uri)?;
    body.nothing()?;
    let run = run_id(path)?;
    namespace.run(&state, run).await?;
    let cancelled = state.store.cancel_run(run, &caller.actor).await?;
    state.admin.wake_cancellations();
    let (result, ended) = match cancelled {
        CancelOutcome::Cancelled => (CancelResult::Done, None),
        CancelOutcome::Requested => (CancelResult::Asked, None),
        CancelOutcome::AlreadyEnded(state) => (CancelResult::Ended, Some(state)),
    };
    Ok(Json(CancelAnswer {
        result,
        state: ended,
    }))
}
