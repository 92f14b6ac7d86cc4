//! Queues: shows their depths and outstanding attempts, and drains, purges and replays them.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::Uri;
use cueline_model::{ExecutorId, GroupName, Right};
use cueline_store::admin::{EmptiedQueue, QueueDepth};

use crate::ApiState;
use crate::access::Caller;
use crate::body::Body;
use crate::problem::Problem;
use crate::query;
use crate::view::{Count, OutstandingView, QueuePage, Queues};

type ExecutorPath = Result<Path<(String, String)>, PathRejection>;

/// The most outstanding attempts that are listed. The count includes all.
const MAX_LISTED: usize = 1_000;

fn executor(path: ExecutorPath) -> Result<ExecutorId, Problem> {
    let Path((group, name)) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    crate::path::executor(&group, &name)
}

/// Lists the queues of the groups that the caller may read. Queues without a group need the right to read everything.
pub(crate) async fn list(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<Json<Queues>, Problem> {
    query::none(&uri)?;
    let mut queues = state.admin.queues().await?;
    queues.retain(|queue| is_readable(&caller, queue));
    Ok(Json(Queues { queues }))
}

fn is_readable(caller: &Caller, queue: &QueueDepth) -> bool {
    let group = queue.group.as_deref().map(str::parse::<GroupName>);
    match group {
        Some(Ok(group)) => caller.may(Right::Read, &group),
        Some(Err(_)) | None => caller.may_everywhere(Right::Read),
    }
}

/// Shows one executor's queue and its outstanding attempts.
pub(crate) async fn show(
    State(state): State<ApiState>,
    path: ExecutorPath,
    uri: Uri,
) -> Result<Json<QueuePage>, Problem> {
    query::none(&uri)?;
    let executor = executor(path)?;
    let queues = state.admin.queues().await?;
    let queue = queues.into_iter().find(|q| {
        q.group.as_deref() == Some(executor.group.as_str())
            && q.executor.as_deref() == Some(executor.name.as_str())
    });
    let outstanding = state.admin.outstanding(&executor).await?;
    if queue.is_none() && outstanding.is_empty() {
        return Err(Problem::not_found(format!(
            "executor {executor} has neither a queue nor outstanding attempts"
        )));
    }
    Ok(Json(QueuePage {
        queue,
        outstanding: outstanding.len() as u64,
        runs: outstanding
            .into_iter()
            .take(MAX_LISTED)
            .map(OutstandingView::from)
            .collect(),
    }))
}

/// Empties the queue and routes its triggers again.
pub(crate) async fn drain(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    path: ExecutorPath,
    uri: Uri,
    body: Body,
) -> Result<Json<EmptiedQueue>, Problem> {
    query::none(&uri)?;
    body.nothing()?;
    let executor = executor(path)?;
    Ok(Json(state.admin.drain(&executor, &caller.actor).await?))
}

/// Empties the queue and ends its runs `cancelled`.
pub(crate) async fn purge(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    path: ExecutorPath,
    uri: Uri,
    body: Body,
) -> Result<Json<EmptiedQueue>, Problem> {
    query::none(&uri)?;
    body.nothing()?;
    let executor = executor(path)?;
    Ok(Json(state.admin.purge(&executor, &caller.actor).await?))
}

/// Publishes the triggers of the executor's attempts again if the executor does not hold them and they have not
/// started.
pub(crate) async fn replay(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    path: ExecutorPath,
    uri: Uri,
    body: Body,
) -> Result<Json<Count>, Problem> {
    query::none(&uri)?;
    body.nothing()?;
    let executor = executor(path)?;
    let count = state.admin.replay(&executor, &caller.actor).await?;
    Ok(Json(Count { count }))
}
