//! Queues: how full they are, what an executor still has to do, and what people do about it.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use cueline_model::{ExecutorName, GroupName};

use crate::ApiState;
use crate::body::Body;
use crate::desk::Desk;
use crate::problem::{FieldProblem, Problem};
use crate::query;
use crate::view::{Count, OutstandingView, QueuePage, QueueView, Queues};

type OwnerPath = Result<Path<(String, String)>, PathRejection>;

/// So many outstanding attempts are listed; the count has them all.
const MOST_LISTED: usize = 1_000;

pub(crate) fn desk(state: &ApiState) -> Result<Arc<dyn Desk>, Problem> {
    state
        .desk
        .clone()
        .ok_or_else(|| Problem::unavailable("this server has no broker to ask"))
}

fn owner(path: OwnerPath) -> Result<(GroupName, ExecutorName), Problem> {
    let Path((group, executor)) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    let mut errors = Vec::new();
    let group = group.parse::<GroupName>().map_err(|e| {
        errors.push(FieldProblem::new("group", e.to_string()));
    });
    let executor = executor.parse::<ExecutorName>().map_err(|e| {
        errors.push(FieldProblem::new("executor", e.to_string()));
    });
    match (group, executor) {
        (Ok(group), Ok(executor)) => Ok((group, executor)),
        _ => Err(Problem::malformed_fields(errors)),
    }
}

/// All queues.
pub(crate) async fn list(State(state): State<ApiState>, uri: Uri) -> Result<Json<Queues>, Problem> {
    query::none(&uri)?;
    let mut queues: Vec<QueueView> = desk(&state)?
        .queues()
        .await?
        .into_iter()
        .map(QueueView::from)
        .collect();
    queues.sort_by(|a, b| a.queue.cmp(&b.queue));
    Ok(Json(Queues { queues }))
}

/// One executor's queue, and what the executor was given and has not finished.
pub(crate) async fn show(
    State(state): State<ApiState>,
    path: OwnerPath,
    uri: Uri,
) -> Result<Json<QueuePage>, Problem> {
    query::none(&uri)?;
    let (group, executor) = owner(path)?;
    let desk = desk(&state)?;
    let whose = Some((group.to_string(), executor.to_string()));
    let depth = desk.queues().await?.into_iter().find(|q| q.owner == whose);
    let outstanding = desk.outstanding(&group, &executor).await?;
    if depth.is_none() && outstanding.is_empty() {
        return Err(Problem::not_found(format!(
            "executor {group}/{executor} has no queue and nothing to do"
        )));
    }
    Ok(Json(QueuePage {
        queue: depth.map(QueueView::from),
        outstanding: outstanding.len() as u64,
        runs: outstanding
            .into_iter()
            .take(MOST_LISTED)
            .map(OutstandingView::from)
            .collect(),
    }))
}

/// Takes what is in the queue out of it, to be routed again.
pub(crate) async fn drain(
    State(state): State<ApiState>,
    path: OwnerPath,
    uri: Uri,
    body: Body,
) -> Result<Json<Count>, Problem> {
    query::none(&uri)?;
    body.nothing()?;
    let (group, executor) = owner(path)?;
    let count = desk(&state)?.drain(&group, &executor).await?;
    Ok(Json(Count { count }))
}

/// Takes what is in the queue out of it and ends the runs `cancelled`.
pub(crate) async fn purge(
    State(state): State<ApiState>,
    path: OwnerPath,
    uri: Uri,
    body: Body,
) -> Result<Json<Count>, Problem> {
    query::none(&uri)?;
    body.nothing()?;
    let (group, executor) = owner(path)?;
    let count = desk(&state)?.purge(&group, &executor).await?;
    Ok(Json(Count { count }))
}

/// Publishes again what the executor was given and does not hold.
pub(crate) async fn replay(
    State(state): State<ApiState>,
    path: OwnerPath,
    uri: Uri,
    body: Body,
) -> Result<Json<Count>, Problem> {
    query::none(&uri)?;
    body.nothing()?;
    let (group, executor) = owner(path)?;
    let count = desk(&state)?.replay(&group, &executor).await?;
    Ok(Json(Count { count }))
}
