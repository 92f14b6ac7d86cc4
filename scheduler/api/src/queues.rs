//! Queues: shows their depths and outstanding attempts, and drains, purges and replays them.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::Uri;
use cueline_model::{ExecutorId, ExecutorName, GroupName, Namespace, Right};
use cueline_store::admin::{EmptiedQueue, QueueDepth};

use crate::SharedState;
use crate::access::Caller;
use crate::body::Body;
use crate::list::{Filters, List, Page, page_of};
use crate::namespace::{ALL, InNamespace};
use crate::openapi;
use crate::problem::Problem;
use crate::query::{self, Params};
use crate::view::{Count, OutstandingView, QueuePage, Queues};

type ExecutorPath = Result<Path<(String, String)>, PathRejection>;

/// The most outstanding attempts that are listed. The count includes all.
const MAX_LISTED: usize = 1_000;

fn executor(namespace: &InNamespace, path: ExecutorPath) -> Result<ExecutorId, Problem> {
    let Path((group, name)) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    crate::path::executor(namespace, &group, &name)
}

/// The list of queues.
const LIST: List = List {
    name: "queues",
    filters: &["group", "executor", ALL],
    sorts: &["name", "-name", "ready", "-ready"],
};

/// The number of messages, in a list that is sorted by it, and the name.
type QueueKey = (u64, String);

/// Lists the queues of the namespace's executors that the caller may read. Queues of no executor are listed with those of
/// `default`, for callers who may read everything.
#[utoipa::path(
    get,
    path = "/api/v1/queues",
    operation_id = "queue_list",
    tag = "queues",
    summary = "Lists queues.",
    description = "The queues of the namespace's executors. Queues of no executor are listed with those of `default`.",
    params(
        ("group" = Option<Vec<openapi::ListedName>>, Query, description = "Only queues of executors of this group; may be repeated."),
        ("executor" = Option<Vec<openapi::Name>>, Query, description = "Only queues of executors with this name; may be repeated."),
        ("sort" = Option<openapi::QueueSort>, Query, description = "The order of the list. A queue without an answer has no ready messages."),
        ("limit" = Option<openapi::PageLimit>, Query, description = "The most entries of the response; 100 by default."),
        ("after" = Option<openapi::PageCursor>, Query, description = "The `next` of the previous page."),
        ("all_namespaces" = Option<openapi::AllNamespaces>, Query, description = "Whether queues of all namespaces are listed."),
    ),
    responses(
        (status = 200, description = "A page of queues.", body = Queues),
    )
)]
pub(crate) async fn list(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    uri: Uri,
) -> Result<Json<Queues>, Problem> {
    let mut params = Params::of(&uri, &LIST.parameters());
    let listed = namespace.listed(&mut params);
    let groups = Filters::new(&mut params, &namespace, listed.as_ref()).groups();
    let executors = params.many("executor", |text| {
        text.parse::<ExecutorName>().map_err(|e| e.to_string())
    });
    let page: Page<QueueKey> = LIST.page(&mut params);
    params.finish()?;
    caller.require_somewhere(Right::Read, listed.as_ref())?;
    let mut queues = state.admin.queues().await?;
    queues.retain(|queue| {
        is_listed(listed.as_ref(), queue)
            && is_readable(&caller, queue)
            && (groups.is_empty()
                || groups
                    .iter()
                    .any(|g| queue.group.as_deref() == Some(g.as_str())))
            && (executors.is_empty()
                || executors
                    .iter()
                    .any(|e| queue.executor.as_deref() == Some(e.as_str())))
    });
    let by_ready = page.field() == "ready";
    let (queues, next) = page_of(&page, queues, |queue| {
        let ready = queue.ready.filter(|_| by_ready);
        (ready.unwrap_or(0), queue.queue.clone())
    });
    let now = state.store.now().await?;
    Ok(Json(Queues { queues, next, now }))
}

/// Whether a list of this namespace has the queue; `None` stands for all namespaces.
fn is_listed(listed: Option<&Namespace>, queue: &QueueDepth) -> bool {
    match (listed, &queue.group) {
        (None, _) => true,
        (Some(namespace), None) => namespace.is_default(),
        (Some(namespace), Some(group)) => group
            .parse::<GroupName>()
            .is_ok_and(|group| group.is_in(namespace)),
    }
}

fn is_readable(caller: &Caller, queue: &QueueDepth) -> bool {
    let group = queue.group.as_deref().map(str::parse::<GroupName>);
    match group {
        Some(Ok(group)) => caller.may(Right::Read, &group),
        Some(Err(_)) | None => caller.may_everywhere(Right::Read),
    }
}

/// Shows one executor's queue and its outstanding attempts.
#[utoipa::path(
    get,
    path = "/api/v1/queues/{group}/{executor}",
    operation_id = "queue_show",
    tag = "queues",
    params(
        ("group" = openapi::Name, Path, description = "The group of the executor."),
        ("executor" = openapi::Name, Path, description = "The name of the executor."),
    ),
    responses(
        (status = 200, description = "The queue and the oldest thousand unfinished attempts.", body = QueuePage),
    )
)]
pub(crate) async fn show(
    State(state): State<SharedState>,
    namespace: InNamespace,
    path: ExecutorPath,
    uri: Uri,
) -> Result<Json<QueuePage>, Problem> {
    query::none(&uri)?;
    let executor = executor(&namespace, path)?;
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
#[utoipa::path(
    post,
    path = "/api/v1/queues/{group}/{executor}/drain",
    operation_id = "queue_drain",
    tag = "queues",
    params(
        ("group" = openapi::Name, Path, description = "The group of the executor."),
        ("executor" = openapi::Name, Path, description = "The name of the executor."),
    ),
    responses(
        (status = 200, description = "The number of triggers.", body = openapi::EmptiedQueue),
        (status = 409, description = "The present state forbids the change.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn drain(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: ExecutorPath,
    uri: Uri,
    body: Body,
) -> Result<Json<EmptiedQueue>, Problem> {
    query::none(&uri)?;
    body.nothing()?;
    let executor = executor(&namespace, path)?;
    Ok(Json(state.admin.drain(&executor, &caller.actor).await?))
}

/// Empties the queue and ends its runs `cancelled`.
#[utoipa::path(
    post,
    path = "/api/v1/queues/{group}/{executor}/purge",
    operation_id = "queue_purge",
    tag = "queues",
    params(
        ("group" = openapi::Name, Path, description = "The group of the executor."),
        ("executor" = openapi::Name, Path, description = "The name of the executor."),
    ),
    responses(
        (status = 200, description = "The number of triggers.", body = openapi::EmptiedQueue),
        (status = 409, description = "The present state forbids the change.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn purge(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: ExecutorPath,
    uri: Uri,
    body: Body,
) -> Result<Json<EmptiedQueue>, Problem> {
    query::none(&uri)?;
    body.nothing()?;
    let executor = executor(&namespace, path)?;
    Ok(Json(state.admin.purge(&executor, &caller.actor).await?))
}

/// Publishes the triggers of the executor's attempts again if the executor does not hold them and they have not
/// started.
#[utoipa::path(
    post,
    path = "/api/v1/queues/{group}/{executor}/replay",
    operation_id = "queue_replay",
    tag = "queues",
    summary = "Publishes missing triggers of an executor again.",
    description = "Only attempts that the executor does not hold and that cannot have started.",
    params(
        ("group" = openapi::Name, Path, description = "The group of the executor."),
        ("executor" = openapi::Name, Path, description = "The name of the executor."),
    ),
    responses(
        (status = 200, description = "The number of triggers that were published again.", body = Count),
        (status = 409, description = "The executor is not alive.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn replay(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: ExecutorPath,
    uri: Uri,
    body: Body,
) -> Result<Json<Count>, Problem> {
    query::none(&uri)?;
    body.nothing()?;
    let executor = executor(&namespace, path)?;
    let count = state.admin.replay(&executor, &caller.actor).await?;
    Ok(Json(Count { count }))
}
