//! Flow runs: list, show with their graph, cancel, retry.

mod graph;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::Uri;
use cueline_model::{JobName, Namespace, Right, RunId, RunKind, Timestamp};
use cueline_store::{FlowRun, Run, RunFilter, StoreError};

use crate::access::{Caller, may_read_job};
use crate::body::Body;
use crate::list::{Filters, List, Page};
use crate::namespace::{ALL, InNamespace};
use crate::openapi;
use crate::problem::Problem;
use crate::query::{self, Params};
use crate::runs::{RunPath, run_id};
use crate::view::{Counts, FlowCancelled, FlowPage, FlowRef, FlowRetried, FlowView, Namespaced};
use crate::{ApiState, SharedState};
use graph::Graph;

/// What begins a flow run.
const ORIGINS: [RunKind; 4] = [
    RunKind::Schedule,
    RunKind::Manual,
    RunKind::Startup,
    RunKind::Backfill,
];

/// The most jobs with children whose flow runs are listed without a filter.
const MAX_JOBS: usize = 1_000;

const LIST: List = List {
    name: "flows",
    filters: &["job", "since", "until", ALL],
    sorts: &["-id", "id"],
};

/// Lists flow runs: fires without a parent of jobs that others run after.
#[utoipa::path(
    get,
    path = "/api/v1/flows",
    operation_id = "flow_list",
    tag = "flows",
    params(
        ("job" = Option<Vec<openapi::ListedName>>, Query, description = "Only flow runs that began with this job; may be repeated."),
        ("since" = Option<openapi::InstantText>, Query, description = "Only flow runs that began at this time or later."),
        ("until" = Option<openapi::InstantText>, Query, description = "Only flow runs that began before this time."),
        ("sort" = Option<openapi::IdSort>, Query, description = "The order of the list."),
        ("limit" = Option<openapi::PageLimit>, Query, description = "The most entries of the response; 100 by default."),
        ("after" = Option<openapi::PageCursor>, Query, description = "The `next` of the previous page."),
        ("all_namespaces" = Option<openapi::AllNamespaces>, Query, description = "Whether flow runs of all namespaces are listed."),
    ),
    responses(
        (status = 200, description = "A page of flow runs.", body = FlowPage),
        (status = 404, description = "There never was a job with this name, or the caller may not read it.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    uri: Uri,
) -> Result<Json<FlowPage>, Problem> {
    let mut params = Params::of(&uri, &LIST.parameters());
    let listed = namespace.listed(&mut params);
    let mut filters = Filters::new(&mut params, &namespace, listed.as_ref());
    let named = filters.jobs();
    let (since, until) = params.window();
    let page: Page<i64> = LIST.page(&mut params);
    params.finish()?;
    caller.require_somewhere(Right::Read, listed.as_ref())?;
    let jobs = jobs_to_list(&state, &caller, named, listed.as_ref()).await?;
    let filter = RunFilter {
        within: caller.readable(listed.as_ref()),
        namespace: listed,
        jobs,
        kinds: ORIGINS.to_vec(),
        since,
        until,
        order: page.order(),
        after: page.after.map(RunId),
        limit: page.limit,
        ..RunFilter::default()
    };
    let found = if filter.jobs.is_empty() {
        cueline_store::RunList::default()
    } else {
        state.store.list_runs(&filter).await?
    };
    let now = state.store.now().await?;
    let flows = with_states(&state, found.runs).await?;
    Ok(Json(FlowPage {
        flows,
        next: found.next.map(|last| page.next(&last.0)),
        now,
    }))
}

/// The given jobs, or all with children.
async fn jobs_to_list(
    state: &ApiState,
    caller: &Caller,
    named: Vec<JobName>,
    listed: Option<&Namespace>,
) -> Result<Vec<JobName>, Problem> {
    if named.is_empty() {
        return Ok(state.store.parent_jobs(listed, MAX_JOBS).await?);
    }
    for job in &named {
        // In the words for a job that never existed.
        if !may_read_job(state, caller, job).await? {
            return Err(StoreError::no_job(job.as_str()).into());
        }
    }
    Ok(named)
}

/// Of several shards, the first one is the flow run.
async fn with_states(state: &ApiState, runs: Vec<Run>) -> Result<Vec<FlowRef>, Problem> {
    let first: Vec<Run> = runs
        .into_iter()
        .filter(|run| run.shard.index == 0)
        .collect();
    let ids: Vec<RunId> = first.iter().map(|run| run.id).collect();
    let counted = state.store.flow_counts(&ids).await?;
    Ok(first
        .into_iter()
        .map(|run| {
            let counts = counted.iter().find(|counts| counts.id == run.id);
            let runs: Counts = counts
                .map(|counts| counts.states.iter().copied().collect())
                .unwrap_or_default();
            FlowRef {
                id: run.id,
                job: run.job,
                group: run.group,
                kind: run.kind,
                state: graph::state_of_counts(&runs),
                fire_at: run.fire_at,
                created_at: run.created_at,
                runs,
            }
        })
        .collect())
}

/// Shows a flow run with its graph and its runs. Any run of it names it.
#[utoipa::path(
    get,
    path = "/api/v1/flows/{id}",
    operation_id = "flow_show",
    tag = "flows",
    summary = "Shows a flow run with its graph and its runs.",
    description = "Any run of it names it.",
    params(
        ("id" = openapi::RunNumber, Path, description = "The number of the flow run, or of one of its runs."),
    ),
    responses(
        (status = 200, description = "The flow run.", body = FlowView),
    )
)]
pub(crate) async fn show(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: RunPath,
    uri: Uri,
) -> Result<Json<FlowView>, Problem> {
    query::none(&uri)?;
    let run = run_id(path)?;
    namespace.run(&state, run).await?;
    let flow = state.store.flow_run(run).await?;
    let now = state.store.now().await?;
    view(&caller, flow, now)
        .map(Json)
        .ok_or_else(|| StoreError::no_run(run).into())
}

fn view(caller: &Caller, mut flow: FlowRun, now: Timestamp) -> Option<FlowView> {
    let (jobs, runs) = (flow.jobs.len(), flow.parts.len());
    let graph = Graph::new(&flow.jobs, &flow.parts);
    let state = graph.state();
    let mut shown_jobs = graph.jobs();
    shown_jobs.retain(|job| caller.may(Right::Read, &job.group));
    let first = flow.runs.iter().find(|run| run.id == flow.id);
    let first = first.or(flow.runs.first())?.clone();
    let is_live = flow.parts.iter().any(|part| !part.state.is_terminal());
    let ended_at = flow.runs.iter().filter_map(|run| run.ended_at).max();
    flow.runs.retain(|run| caller.may(Right::Read, &run.group));
    let left_out = (jobs - shown_jobs.len()) + (runs - flow.runs.len());
    let runs = flow.runs.into_iter().map(|run| Namespaced {
        namespace: run.job.namespace(),
        item: run,
    });
    Some(FlowView {
        id: flow.id,
        job: first.job,
        state,
        fire_at: first.fire_at,
        created_at: first.created_at,
        ended_at: ended_at.filter(|_| !is_live),
        jobs: shown_jobs,
        runs: runs.collect(),
        left_out: left_out as u64,
        now,
    })
}

/// Cancels all live runs of a flow run. No job starts in it any more.
#[utoipa::path(
    post,
    path = "/api/v1/flows/{id}/cancel",
    operation_id = "flow_cancel",
    tag = "flows",
    summary = "Cancels all live runs of a flow run.",
    description = "No job starts in it any more, unless it is retried.",
    params(
        ("id" = openapi::RunNumber, Path, description = "The number of the flow run, or of one of its runs."),
    ),
    responses(
        (status = 200, description = "What the cancellation did.", body = FlowCancelled),
    )
)]
pub(crate) async fn cancel(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: RunPath,
    uri: Uri,
    body: Body,
) -> Result<Json<FlowCancelled>, Problem> {
    let run = changed(&state, &caller, &namespace, path, &uri, body).await?;
    let cancelled = state.store.cancel_flow(run, &caller.actor).await?;
    state.admin.wake_cancellations();
    Ok(Json(FlowCancelled {
        id: cancelled.id,
        ended: cancelled.ended,
        asked: cancelled.requested,
    }))
}

/// Runs a flow run again from what did not succeed.
#[utoipa::path(
    post,
    path = "/api/v1/flows/{id}/retry",
    operation_id = "flow_retry",
    tag = "flows",
    summary = "Runs a flow run again from what did not succeed.",
    description = "Each run that ended without success gets another attempt: only the failed shards, and no job after another one that is retried. What succeeded stays, and what follows starts as usual.",
    params(
        ("id" = openapi::RunNumber, Path, description = "The number of the flow run, or of one of its runs."),
    ),
    responses(
        (status = 200, description = "The runs that get another attempt.", body = FlowRetried),
        (status = 409, description = "There is nothing to retry.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn retry(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: RunPath,
    uri: Uri,
    body: Body,
) -> Result<Json<FlowRetried>, Problem> {
    let run = changed(&state, &caller, &namespace, path, &uri, body).await?;
    let retried = state.store.retry_flow(run, &caller.actor).await?;
    state.admin.wake_claim();
    Ok(Json(FlowRetried {
        id: retried.id,
        runs: retried.runs,
    }))
}

/// The run of a request that changes its flow run. The caller needs the right in the group of each job that the flow run
/// has reached.
async fn changed(
    state: &ApiState,
    caller: &Caller,
    namespace: &InNamespace,
    path: RunPath,
    uri: &Uri,
    body: Body,
) -> Result<RunId, Problem> {
    query::none(uri)?;
    body.nothing()?;
    let run = run_id(path)?;
    namespace.run(state, run).await?;
    let flow = state.store.flow_run(run).await?;
    for part in &flow.parts {
        let group = cueline_model::AccessScope::Group(part.group.clone());
        caller.require(Right::Operate, &group)?;
    }
    Ok(run)
}
