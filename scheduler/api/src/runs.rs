//! Runs: list, show, read logs, cancel.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use cueline_model::{JobName, RunId, RunState};
use cueline_runtime::Backoff;
use cueline_store::{CancelOutcome, RunDetail, RunFilter};
use tokio::time::Instant;

use crate::ApiState;
use crate::body::Body;
use crate::problem::{FieldProblem, Problem};
use crate::query::{self, Params};
use crate::view::{CancelAnswer, CancelResult, LogPage, RunPage};

const LONGEST_POLL_MS: i64 = 30_000;
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LONGEST_LOOK: Duration = Duration::from_millis(250);

pub(crate) type RunPath = Result<Path<String>, PathRejection>;

pub(crate) fn run_id(path: RunPath) -> Result<RunId, Problem> {
    let Path(text) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    text.parse::<i64>()
        .ok()
        .filter(|id| *id > 0)
        .map(RunId)
        .ok_or_else(|| {
            let message = format!("{text:?} is not a run's id; ids are whole numbers from 1 on");
            Problem::malformed_fields(vec![FieldProblem::new("id", message)])
        })
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
pub(crate) async fn list(
    State(state): State<ApiState>,
    uri: Uri,
) -> Result<Json<RunPage>, Problem> {
    let mut params = Params::of(&uri, &["job", "state", "before", "limit"]);
    let filter = RunFilter {
        job: params.parsed("job", |text| {
            text.parse::<JobName>().map_err(|e| e.to_string())
        }),
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
    let runs = state.store.runs(&filter).await?;
    let now = state.store.now().await?;
    let full = runs.len() >= filter.limit;
    let next = runs.last().filter(|_| full).map(|run| run.id.0);
    Ok(Json(RunPage { runs, next, now }))
}

/// Shows one run with its timeline.
pub(crate) async fn show(
    State(state): State<ApiState>,
    path: RunPath,
    uri: Uri,
) -> Result<Json<RunDetail>, Problem> {
    query::none(&uri)?;
    Ok(Json(state.store.run(run_id(path)?).await?))
}

/// Lines of a run's log. With `wait_ms`, the answer waits for new lines or the end of the run, at most for that time.
pub(crate) async fn logs(
    State(state): State<ApiState>,
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
        let run_state = state.store.run(run).await?.run.state;
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
pub(crate) async fn cancel(
    State(state): State<ApiState>,
    path: RunPath,
    uri: Uri,
    body: Body,
) -> Result<Json<CancelAnswer>, Problem> {
    query::none(&uri)?;
    body.nothing()?;
    let cancelled = state.store.cancel_run(run_id(path)?, "api").await?;
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
