//! Keys of workers: lists them, revokes them, and allows them again.

use std::fmt::Display;
use std::str::FromStr;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::Uri;
use cueline_model::{ExecutorId, ExecutorName, Right};
use cueline_protocol::origin::WorkerKeyId;
use cueline_store::{StoredWorkerKey, WorkerKeyState};

use crate::access::Caller;
use crate::body::Body;
use crate::list::{Filters, List, Page};
use crate::namespace::{ALL, InNamespace, has_group};
use crate::openapi;
use crate::problem::{FieldProblem, Problem};
use crate::query::{self, Params};
use crate::view::{WorkerKeyPage, WorkerKeyRef, WorkerKeyView};
use crate::{ApiState, SharedState};

type KeyPath = Result<Path<(String, String, String)>, PathRejection>;

/// The most reads of the store for one page. Keys of other groups and namespaces fill the reads, and may leave the page short.
const MAX_READS: usize = 20;

/// The list of keys. Its key is the number of a change, which is harmless.
const LIST: List = List {
    name: "worker keys",
    filters: &["group", "executor", "state", ALL],
    sorts: &["changed_at"],
};

/// Whether a key counts, as filters name it.
const STATES: [(&str, WorkerKeyState); 2] = [
    ("allowed", WorkerKeyState::Allowed),
    ("revoked", WorkerKeyState::Revoked),
];

/// Lists keys in the order of their last changes, of the groups whose workers the caller manages.
#[utoipa::path(
    get,
    path = "/api/v1/worker-keys",
    operation_id = "worker_key_list",
    tag = "worker keys",
    summary = "Lists keys in the order of their last changes.",
    params(
        ("group" = Option<Vec<openapi::ListedName>>, Query, description = "Only keys of workers of this group; may be repeated."),
        ("executor" = Option<Vec<openapi::Name>>, Query, description = "Only keys of executors with this name; may be repeated."),
        ("state" = Option<Vec<openapi::KeyStateFilter>>, Query, description = "Only keys in this state; may be repeated."),
        ("sort" = Option<openapi::KeySort>, Query, description = "The order of the list. A key that changes between two pages is listed again."),
        ("limit" = Option<openapi::PageLimit>, Query, description = "The most entries of the response; 100 by default."),
        ("after" = Option<openapi::PageCursor>, Query, description = "The `next` of the previous page."),
        ("all_namespaces" = Option<openapi::AllNamespaces>, Query, description = "Whether keys of all namespaces are listed."),
    ),
    responses(
        (status = 200, description = "A page of keys.", body = WorkerKeyPage),
    )
)]
pub(crate) async fn list(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    uri: Uri,
) -> Result<Json<WorkerKeyPage>, Problem> {
    let mut params = Params::of(&uri, &LIST.parameters());
    let listed = namespace.listed(&mut params);
    let groups = Filters::new(&mut params, &namespace, listed.as_ref()).groups();
    let executors = params.many("executor", |text| {
        text.parse::<ExecutorName>().map_err(|e| e.to_string())
    });
    let states = params.words("state", &STATES);
    let asked: Page<i64> = LIST.page(&mut params);
    params.finish()?;
    caller.require_somewhere(Right::ManageWorkers, listed.as_ref())?;
    let wanted = |key: &StoredWorkerKey| {
        let id = &key.executor;
        has_group(listed.as_ref(), &id.group)
            && caller.may(Right::ManageWorkers, &id.group)
            && (groups.is_empty() || groups.contains(&id.group))
            && (executors.is_empty() || executors.contains(&id.name))
            && (states.is_empty() || states.contains(&key.state))
    };
    let mut after = asked.after.unwrap_or(0);
    let mut keys = Vec::new();
    let mut next = None;
    for _ in 0..MAX_READS {
        // Never more than fit, so that the next page begins after the last key of this one.
        let room = asked.limit - keys.len();
        let page = state.store.worker_keys(after, room).await?;
        // A store that was restored to an earlier state has lower numbers. The list is over then.
        let is_last = page.keys.len() < room || page.version < after;
        after = page.version;
        next = (!is_last).then_some(after);
        let page = page.keys.into_iter().filter(wanted);
        keys.extend(page.map(WorkerKeyView::from));
        if is_last || keys.len() == asked.limit {
            break;
        }
    }
    let now = state.store.now().await?;
    Ok(Json(WorkerKeyPage {
        keys,
        next: next.map(|after| asked.next(&after)),
        now,
    }))
}

/// Revokes a key: messages that it seals are not accepted any more.
#[utoipa::path(
    post,
    path = "/api/v1/worker-keys/{group}/{executor}/{key}/revoke",
    operation_id = "worker_key_revoke",
    tag = "worker keys",
    params(
        ("group" = openapi::Name, Path, description = "The group of the executor."),
        ("executor" = openapi::Name, Path, description = "The name of the executor."),
        ("key" = openapi::KeyId, Path, description = "The id of the key."),
    ),
    responses(
        (status = 200, description = "The key is revoked.", body = WorkerKeyRef),
    )
)]
pub(crate) async fn revoke(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: KeyPath,
    uri: Uri,
    body: Body,
) -> Result<Json<WorkerKeyRef>, Problem> {
    set(
        &state,
        (&caller, &namespace),
        path,
        &uri,
        body,
        WorkerKeyState::Revoked,
    )
    .await
}

/// Allows a revoked key again.
#[utoipa::path(
    post,
    path = "/api/v1/worker-keys/{group}/{executor}/{key}/allow",
    operation_id = "worker_key_allow",
    tag = "worker keys",
    params(
        ("group" = openapi::Name, Path, description = "The group of the executor."),
        ("executor" = openapi::Name, Path, description = "The name of the executor."),
        ("key" = openapi::KeyId, Path, description = "The id of the key."),
    ),
    responses(
        (status = 200, description = "The key is allowed.", body = WorkerKeyRef),
        (status = 409, description = "The present state forbids the change.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn allow(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: KeyPath,
    uri: Uri,
    body: Body,
) -> Result<Json<WorkerKeyRef>, Problem> {
    set(
        &state,
        (&caller, &namespace),
        path,
        &uri,
        body,
        WorkerKeyState::Allowed,
    )
    .await
}

async fn set(
    state: &ApiState,
    (caller, namespace): (&Caller, &InNamespace),
    path: KeyPath,
    uri: &Uri,
    body: Body,
    to: WorkerKeyState,
) -> Result<Json<WorkerKeyRef>, Problem> {
    query::none(uri)?;
    body.nothing()?;
    let (executor, key) = key(namespace, path)?;
    let exists = state
        .store
        .set_worker_key(&executor, key.as_str(), to, &caller.actor)
        .await?;
    if !exists {
        return Err(Problem::not_found(format!(
            "executor {executor} has no key {key}"
        )));
    }
    let ExecutorId { group, name } = executor;
    Ok(Json(WorkerKeyRef {
        group,
        executor: name,
        id: key.to_string(),
        state: to.into(),
    }))
}

fn key(namespace: &InNamespace, path: KeyPath) -> Result<(ExecutorId, WorkerKeyId), Problem> {
    let Path((group, name, key)) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    let mut errors = Vec::new();
    let group = namespace.group(&group).map_err(|message| {
        errors.push(FieldProblem::new("group", message));
    });
    let name = segment(&mut errors, "executor", &name);
    let key = segment(&mut errors, "key", &key);
    match (group, name, key) {
        (Ok(group), Some(name), Some(key)) => Ok((ExecutorId { group, name }, key)),
        _ => Err(Problem::malformed_fields(errors)),
    }
}

/// A segment of the path.
fn segment<T>(errors: &mut Vec<FieldProblem>, name: &str, text: &str) -> Option<T>
where
    T: FromStr,
    T::Err: Display,
{
    match text.parse() {
        Ok(value) => Some(value),
        Err(error) => {
            errors.push(FieldProblem::new(name, format!("{text:?}: {error}")));
            None
        }
    }
}
