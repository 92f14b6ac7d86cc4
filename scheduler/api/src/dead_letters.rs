//! Dead letters: messages that could not be read or were refused.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::Uri;
use cueline_model::{AccessScope, Namespace, Right};
use cueline_store::DeadLetterFilter;
use serde_json::Value;

use crate::access::Caller;
use crate::body::{Body, Fields, a_kind};
use crate::list::{Filters, List, Page};
use crate::namespace::{ALL, InNamespace};
use crate::openapi;
use crate::problem::{FieldProblem, Problem};
use crate::query::{self, Params};
use crate::view::{Count, DeadPage, DeadView, ReplayedDead};
use crate::{ApiState, SharedState};

/// The most dead letters in one request. With `all`, a caller repeats the request until none is left.
const MAX_AT_ONCE: usize = 1_000;

/// The list of dead letters.
const LIST: List = List {
    name: "dead letters",
    filters: &["queue", "topic", "origin", "group", "since", "until", ALL],
    sorts: &["-id", "id"],
};

/// Lists dead letters.
#[utoipa::path(
    get,
    path = "/api/v1/dead",
    operation_id = "dlq_list",
    tag = "dead letters",
    params(
        ("queue" = Option<Vec<openapi::FilterText>>, Query, description = "Only letters that were in this queue; may be repeated."),
        ("topic" = Option<Vec<openapi::FilterText>>, Query, description = "Only letters with this topic; may be repeated."),
        ("origin" = Option<Vec<openapi::FilterText>>, Query, description = "Only letters that this one refused, such as `scheduler`; may be repeated."),
        ("group" = Option<Vec<openapi::ListedName>>, Query, description = "Only letters that an executor of this group refused; may be repeated."),
        ("since" = Option<openapi::InstantText>, Query, description = "Only letters that were refused at this time or later."),
        ("until" = Option<openapi::InstantText>, Query, description = "Only letters that were refused before this time."),
        ("sort" = Option<openapi::IdSort>, Query, description = "The order of the list."),
        ("limit" = Option<openapi::PageLimit>, Query, description = "The most entries of the response; 100 by default."),
        ("after" = Option<openapi::PageCursor>, Query, description = "The `next` of the previous page."),
        ("all_namespaces" = Option<openapi::AllNamespaces>, Query, description = "Whether letters of all namespaces and of none are listed."),
    ),
    responses(
        (status = 200, description = "A page of dead letters.", body = DeadPage),
    )
)]
pub(crate) async fn list(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    uri: Uri,
) -> Result<Json<DeadPage>, Problem> {
    let mut params = Params::of(&uri, &LIST.parameters());
    let listed = namespace.listed(&mut params);
    let groups = Filters::new(&mut params, &namespace, listed.as_ref()).groups();
    let queues = params.texts("queue");
    let topics = params.texts("topic");
    let origins = params.texts("origin");
    let (since, until) = params.window();
    let page: Page<i64> = LIST.page(&mut params);
    params.finish()?;
    require(&caller, Right::Read, listed.as_ref())?;
    let filter = DeadLetterFilter {
        namespace: listed,
        queues,
        topics,
        origins,
        groups,
        since,
        until,
        order: page.order(),
        after: page.after,
        limit: page.limit + 1,
    };
    let mut letters = state.store.list_dead_letters(&filter).await?;
    let next = page.cut(&mut letters, |last| last.id);
    let now = state.store.now().await?;
    let letters = letters.into_iter().map(DeadView::from).collect();
    Ok(Json(DeadPage { letters, next, now }))
}

/// Refuses a request about the letters of the namespace, or about those of all namespaces and of none.
fn require(caller: &Caller, right: Right, listed: Option<&Namespace>) -> Result<(), Problem> {
    let scope = listed
        .cloned()
        .map_or(AccessScope::Cluster, AccessScope::Namespace);
    caller.require(right, &scope)
}

/// Shows one dead letter.
#[utoipa::path(
    get,
    path = "/api/v1/dead/{id}",
    operation_id = "dlq_show",
    tag = "dead letters",
    params(
        ("id" = openapi::LetterNumber, Path, description = "The number of the dead letter."),
        ("all_namespaces" = Option<openapi::AllNamespaces>, Query, description = "Whether it may be of any namespace, or of none."),
    ),
    responses(
        (status = 200, description = "The dead letter.", body = DeadView),
    )
)]
pub(crate) async fn show(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Json<DeadView>, Problem> {
    let mut params = Params::of(&uri, &[ALL]);
    let listed = namespace.listed(&mut params);
    params.finish()?;
    require(&caller, Right::Read, listed.as_ref())?;
    let Path(text) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    let id: i64 = text.parse().map_err(|_| {
        let message = format!("{text:?} is not a dead letter's number");
        Problem::malformed_fields(vec![FieldProblem::new("id", message)])
    })?;
    let found = state.store.dead_letters_by_id(&[id]).await?;
    let letter = found
        .into_iter()
        .find(|letter| listed.is_none() || letter.namespace == listed);
    letter
        .map(|letter| Json(DeadView::from(letter)))
        .ok_or_else(|| Problem::not_found(format!("there is no dead letter {id}")))
}

/// The dead letters that a request selects by `ids` or `all`, at most a thousand, and the namespace that they have to be of.
/// Without a namespace, the caller has the right in all of them.
async fn chosen(
    state: &ApiState,
    caller: &Caller,
    InNamespace(namespace): InNamespace,
    body: Body,
) -> Result<(Option<Namespace>, Vec<i64>), Problem> {
    let mut fields = body.fields(&["ids", "all", ALL]);
    let all_namespaces = fields.flag(ALL);
    if all_namespaces && !namespace.is_default() {
        let message = format!("not possible under /namespaces/{namespace}; leave that out");
        fields.record(ALL, message);
    }
    let of = (!all_namespaces).then_some(namespace);
    let all = fields.flag("all");
    let ids = ids(&mut fields);
    if all == ids.is_some() {
        fields.record("ids", "give either ids, a list of numbers, or all: true");
    }
    fields.finish()?;
    require(caller, Right::Operate, of.as_ref())?;
    if let Some(ids) = ids {
        return Ok((of, ids));
    }
    let page = state
        .store
        .dead_letters(of.as_ref(), None, MAX_AT_ONCE)
        .await?;
    let ids = page.into_iter().rev().map(|l| l.id).collect();
    Ok((of, ids))
}

fn ids(fields: &mut Fields) -> Option<Vec<i64>> {
    let list = match fields.take("ids")? {
        Value::Array(list) => list,
        other => {
            fields.record(
                "ids",
                format!("{} is given; give a list of numbers", a_kind(&other)),
            );
            return Some(Vec::new());
        }
    };
    if list.len() > MAX_AT_ONCE {
        let message = format!(
            "{} are given; give at most {MAX_AT_ONCE} at once",
            list.len()
        );
        fields.record("ids", message);
        return Some(Vec::new());
    }
    let mut ids = Vec::with_capacity(list.len());
    for value in list {
        match value.as_i64() {
            Some(id) => ids.push(id),
            None => fields.record("ids", format!("{value} is not a dead letter's number")),
        }
    }
    Some(ids)
}

/// Puts dead letters back into the queues that they came from.
#[utoipa::path(
    post,
    path = "/api/v1/dead/replay",
    operation_id = "dlq_replay",
    tag = "dead letters",
    request_body = openapi::DeadLetterSelection,
    responses(
        (status = 200, description = "The result for each letter.", body = ReplayedDead),
        (status = 409, description = "The present state forbids the change.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn replay(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    uri: Uri,
    body: Body,
) -> Result<Json<ReplayedDead>, Problem> {
    query::none(&uri)?;
    let (of, ids) = chosen(&state, &caller, namespace, body).await?;
    let letters = state
        .admin
        .replay_dead_letters(of.as_ref(), &ids, &caller.actor)
        .await?;
    let done = letters.iter().filter(|l| l.refused.is_none()).count() as u64;
    Ok(Json(ReplayedDead {
        count: done,
        letters,
    }))
}

/// Deletes dead letters.
#[utoipa::path(
    post,
    path = "/api/v1/dead/delete",
    operation_id = "dlq_delete",
    tag = "dead letters",
    request_body = openapi::DeadLetterSelection,
    responses(
        (status = 200, description = "The number of deleted letters.", body = Count),
    )
)]
pub(crate) async fn delete(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    uri: Uri,
    body: Body,
) -> Result<Json<Count>, Problem> {
    query::none(&uri)?;
    let (of, ids) = chosen(&state, &caller, namespace, body).await?;
    let count = state
        .store
        .delete_dead_letters(of.as_ref(), &ids, &caller.actor)
        .await?;
    Ok(Json(Count { count }))
}
