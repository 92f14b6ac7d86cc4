//! Runs: list, show, read logs, cancel.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::Uri;
use cueline_model::{ExecutorName, Right, RunId, RunKind, RunState};
use cueline_runtime::Backoff;
use cueline_store::{CancelOutcome, RunDetail, RunFilter, StoreError};
use tokio::time::Instant;

use crate::SharedState;
use crate::access::{Caller, may_read_job};
use crate::body::Body;
use crate::list::{Filters, List, Page};
use crate::namespace::{ALL, InNamespace};
use crate::openapi;
use crate::problem::Problem;
use crate::query::{self, Params};
use crate::view::{CancelAnswer, CancelResult, LogPage, Namespaced, RunPage};

const LONGEST_POLL_MS: i64 = 30_000;
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LONGEST_LOOK: Duration = Duration::from_millis(250);

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

/// The list of runs.
const LIST: List = List {
    name: "runs",
    filters: &[
        "job", "group", "label", "state", "kind", "executor", "since", "until", ALL,
    ],
    sorts: &["-id", "id"],
};

/// Lists runs.
#[utoipa::path(
    get,
    path = "/api/v1/runs",
    operation_id = "run_list",
    tag = "runs",
    params(
        ("job" = Option<Vec<openapi::ListedName>>, Query, description = "Only runs of this job; may be repeated."),
        ("group" = Option<Vec<openapi::ListedName>>, Query, description = "Only runs of jobs that are in this group now; may be repeated."),
        ("label" = Option<Vec<openapi::LabelFilter>>, Query, description = "Only runs of jobs that have this label now; repeated ones must all hold."),
        ("state" = Option<Vec<openapi::RunState>>, Query, description = "Only runs in this state; may be repeated."),
        ("kind" = Option<Vec<openapi::RunKind>>, Query, description = "Only runs that this has created; may be repeated."),
        ("executor" = Option<Vec<openapi::Name>>, Query, description = "Only runs whose current or last attempt an executor of this name got; may be repeated."),
        ("since" = Option<openapi::InstantText>, Query, description = "Only runs that were created at this time or later."),
        ("until" = Option<openapi::InstantText>, Query, description = "Only runs that were created before this time."),
        ("sort" = Option<openapi::IdSort>, Query, description = "The order of the list."),
        ("limit" = Option<openapi::PageLimit>, Query, description = "The most entries of the response; 100 by default."),
        ("after" = Option<openapi::PageCursor>, Query, description = "The `next` of the previous page."),
        ("all_namespaces" = Option<openapi::AllNamespaces>, Query, description = "Whether runs of all namespaces are listed."),
    ),
    responses(
        (status = 200, description = "A page of runs.", body = RunPage),
        (status = 404, description = "There never was a job with this name, or the caller may not read it.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    uri: Uri,
) -> Result<Json<RunPage>, Problem> {
    let mut params = Params::of(&uri, &LIST.parameters());
    let listed = namespace.listed(&mut params);
    let mut filters = Filters::new(&mut params, &namespace, listed.as_ref());
    let (jobs, groups) = (filters.jobs(), filters.groups());
    let labels = params.labels();
    let states = params.many("state", run_state);
    let kinds = RunKind::ALL.map(|kind| (kind.as_str(), kind));
    let kinds = params.words("kind", &kinds);
    let executors = params.many("executor", |text| {
        text.parse::<ExecutorName>().map_err(|e| e.to_string())
    });
    let (since, until) = params.window();
    let page: Page<i64> = LIST.page(&mut params);
    params.finish()?;
    caller.require_somewhere(Right::Read, listed.as_ref())?;
    let filter = RunFilter {
        within: caller.readable(listed.as_ref()),
        namespace: listed,
        jobs,
        groups,
        labels,
        states,
        kinds,
        executors,
        since,
        until,
        order: page.order(),
        after: page.after.map(RunId),
        limit: page.limit,
    };
    if filter.within.is_some() {
        for job in &filter.jobs {
            // In the words for a job that never existed.
            if !may_read_job(&state, &caller, job).await? {
                return Err(StoreError::no_job(job.as_str()).into());
            }
        }
    }
    let found = state.store.list_runs(&filter).await?;
    let now = state.store.now().await?;
    let runs = found.runs.into_iter().map(|run| {
        let namespace = run.job.namespace();
        Namespaced {
            namespace,
            item: run,
        }
    });
    Ok(Json(RunPage {
        runs: runs.collect(),
        next: found.next.map(|last| page.next(&last.0)),
        now,
    }))
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
    State(state): State<SharedState>,
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
    State(state): State<SharedState>,
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
    State(state): State<SharedState>,
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
