//! Enrolment tokens: creates, lists and deletes them.

use std::fmt::Display;
use std::str::FromStr;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::header::{CACHE_CONTROL, HeaderName};
use axum::http::{StatusCode, Uri};
use cueline_model::{
    AccessScope, Actor, DurationMs, ExecutorName, GroupName, Namespace, Right, Timestamp,
};
use cueline_protocol::origin::EnrolmentToken;
use cueline_store::{NewEnrolmentToken, StoredEnrolmentToken};

use crate::SharedState;
use crate::access::Caller;
use crate::body::{Body, Fields};
use crate::idempotency::IdempotencyKey;
use crate::list::{Filters, List, Page, page_of};
use crate::namespace::{ALL, InNamespace};
use crate::openapi;
use crate::problem::Problem;
use crate::query::{self, Params};
use crate::random::random;
use crate::validity::valid_ms;
use crate::view::{CreatedToken, TokenRef, TokenView, Tokens};

/// The most enrolments with one token.
const MAX_USES: u32 = 10_000;
/// For how long a token is valid by default.
const DEFAULT_VALID: DurationMs = DurationMs::secs(3_600);
/// The longest text of a field.
const MAX_TEXT_BYTES: usize = 1_000;

/// The answer has a secret, which no cache may keep.
type Secret<T> = (StatusCode, [(HeaderName, &'static str); 1], Json<T>);

/// Creates an enrolment token. Only this answer has its secret.
#[utoipa::path(
    post,
    path = "/api/v1/enrolment-tokens",
    operation_id = "worker_key_token",
    tag = "worker keys",
    params(
        ("Idempotency-Key" = Option<openapi::IdempotencyKeyHeader>, Header, description = "A second request of the same caller with the same key creates no token."),
    ),
    request_body = Option<openapi::NewEnrolmentToken>,
    responses(
        (status = 201, description = "The token with its secret.", body = CreatedToken),
        (status = 409, description = "The most tokens exist, and none of them is spent. With the type `cueline:already-created`, an earlier request with the same idempotency key has created the token `id`.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The token does not fit.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn create(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    uri: Uri,
    IdempotencyKey(idempotency_key): IdempotencyKey,
    body: Body,
) -> Result<Secret<CreatedToken>, Problem> {
    query::none(&uri)?;
    let (secret, token) = new_token(&namespace, body, caller.actor.clone())?;
    let token = NewEnrolmentToken {
        idempotency_key,
        ..token
    };
    let scope = scope(token.namespace.as_ref(), token.group.as_ref());
    caller.require(Right::ManageWorkers, &scope)?;
    if !state.store.create_enrolment_token(&token).await? {
        return Err(Problem::unavailable(
            "a token with the same random id exists; send the request again",
        ));
    }
    let answer = CreatedToken {
        id: token.id,
        token: secret.to_text(),
    };
    let headers = [(CACHE_CONTROL, "no-store")];
    Ok((StatusCode::CREATED, headers, Json(answer)))
}

/// A random token, as the request describes it.
fn new_token(
    namespace: &InNamespace,
    body: Body,
    by: Actor,
) -> Result<(EnrolmentToken, NewEnrolmentToken), Problem> {
    let mut fields = body.fields(&["group", "executor", "uses", "valid", ALL]);
    let all = fields.flag(ALL);
    let group = group(&mut fields, namespace);
    if all && (group.is_some() || !namespace.0.is_default()) {
        fields.record(
            ALL,
            "not possible for a group, nor under /namespaces/; leave it out",
        );
    }
    let executor: Option<ExecutorName> = parsed(&mut fields, "executor");
    if executor.is_some() && group.is_none() {
        fields.record(
            "executor",
            "its name is unique within a group only; give its group too",
        );
    }
    let uses = fields.number("uses", 1, 1..=i64::from(MAX_USES));
    let valid_ms = valid_ms(&mut fields, DEFAULT_VALID);
    fields.finish()?;
    let secret = EnrolmentToken::new(random()?, random()?);
    let token = NewEnrolmentToken {
        id: secret.id().to_owned(),
        verifier: secret.verifier(),
        namespace: (!all).then(|| namespace.0.clone()),
        group,
        executor,
        uses: u32::try_from(uses).unwrap_or(MAX_USES),
        valid_ms,
        by,
        idempotency_key: None,
    };
    Ok((secret, token))
}

/// The group that the token is for.
fn group(fields: &mut Fields, namespace: &InNamespace) -> Option<GroupName> {
    let text = fields.text("group", MAX_TEXT_BYTES)?;
    match namespace.group(&text) {
        Ok(group) => Some(group),
        Err(message) => {
            fields.record("group", message);
            None
        }
    }
}

/// A field whose text is parsed.
fn parsed<T>(fields: &mut Fields, name: &str) -> Option<T>
where
    T: FromStr,
    T::Err: Display,
{
    let text = fields.text(name, MAX_TEXT_BYTES)?;
    match text.parse() {
        Ok(value) => Some(value),
        Err(error) => {
            fields.record(name, error.to_string());
            None
        }
    }
}

/// The list of enrolment tokens.
const LIST: List = List {
    name: "enrolment tokens",
    filters: &["group", "state", ALL],
    sorts: &["created_at", "-created_at"],
};

/// Whether a token can enrol a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenState {
    Valid,
    Expired,
    UsedUp,
}

impl TokenState {
    /// The states, as filters name them.
    const NAMES: [(&str, Self); 3] = [
        ("valid", Self::Valid),
        ("expired", Self::Expired),
        ("used_up", Self::UsedUp),
    ];

    fn of(token: &StoredEnrolmentToken, now: Timestamp) -> Self {
        if token.uses_left == 0 {
            Self::UsedUp
        } else if token.expires_at.is_some_and(|at| at <= now) {
            Self::Expired
        } else {
            Self::Valid
        }
    }
}

/// Lists enrolment tokens whose workers the caller manages, spent ones included. Those for all namespaces are only in the
/// list of all namespaces.
#[utoipa::path(
    get,
    path = "/api/v1/enrolment-tokens",
    operation_id = "worker_key_tokens",
    tag = "worker keys",
    summary = "Lists enrolment tokens, spent ones included.",
    description = "Tokens for all namespaces are only in the list of all namespaces.",
    params(
        ("group" = Option<Vec<openapi::ListedName>>, Query, description = "Only tokens for workers of this group; may be repeated."),
        ("state" = Option<Vec<openapi::EnrolmentTokenState>>, Query, description = "Only tokens in this state; may be repeated."),
        ("sort" = Option<openapi::EnrolmentTokenSort>, Query, description = "The order of the list."),
        ("limit" = Option<openapi::PageLimit>, Query, description = "The most entries of the response; 100 by default."),
        ("after" = Option<openapi::PageCursor>, Query, description = "The `next` of the previous page."),
        ("all_namespaces" = Option<openapi::AllNamespaces>, Query, description = "Whether tokens of all namespaces are listed."),
    ),
    responses(
        (status = 200, description = "A page of tokens.", body = Tokens),
    )
)]
pub(crate) async fn list(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    uri: Uri,
) -> Result<Json<Tokens>, Problem> {
    let mut params = Params::of(&uri, &LIST.parameters());
    let listed = namespace.listed(&mut params);
    let groups = Filters::new(&mut params, &namespace, listed.as_ref()).groups();
    let states = params.words("state", &TokenState::NAMES);
    let page: Page<(i64, String)> = LIST.page(&mut params);
    params.finish()?;
    caller.require_somewhere(Right::ManageWorkers, listed.as_ref())?;
    let mut tokens = state.store.enrolment_tokens().await?;
    let now = state.store.now().await?;
    tokens.retain(|token| {
        is_listed(listed.as_ref(), token)
            && is_managed(&caller, token)
            && (groups.is_empty() || token.group.as_ref().is_some_and(|own| groups.contains(own)))
            && (states.is_empty() || states.contains(&TokenState::of(token, now)))
    });
    let (tokens, next) = page_of(&page, tokens, |token| {
        (token.created_at.as_millis(), token.id.clone())
    });
    let tokens = tokens.into_iter().map(TokenView::from).collect();
    Ok(Json(Tokens { tokens, next, now }))
}

/// Deletes an enrolment token. Keys that it has enrolled stay.
#[utoipa::path(
    delete,
    path = "/api/v1/enrolment-tokens/{id}",
    operation_id = "worker_key_delete_token",
    tag = "worker keys",
    params(
        ("id" = openapi::TokenId, Path, description = "The id of the token."),
        ("all_namespaces" = Option<openapi::AllNamespaces>, Query, description = "Whether the token may be of any namespace, or of all."),
    ),
    responses(
        (status = 200, description = "The token is deleted.", body = TokenRef),
    )
)]
pub(crate) async fn delete(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Json<TokenRef>, Problem> {
    let mut params = Params::of(&uri, &[ALL]);
    let listed = namespace.listed(&mut params);
    params.finish()?;
    let Path(id) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    let tokens = state.store.enrolment_tokens().await?;
    let found = tokens.iter().find(|token| token.id == id);
    // A token of another group or namespace gets the answer of an unknown one.
    let is_managed =
        found.is_some_and(|token| is_listed(listed.as_ref(), token) && is_managed(&caller, token));
    let by = &caller.actor;
    if is_managed && state.store.delete_enrolment_token(&id, by).await? {
        Ok(Json(TokenRef { id }))
    } else {
        Err(Problem::not_found(format!(
            "there is no enrolment token {id:?}"
        )))
    }
}

/// The workers that a token enrols: those of a group, of a namespace, or of all namespaces.
fn scope(namespace: Option<&Namespace>, group: Option<&GroupName>) -> AccessScope {
    match (namespace, group) {
        (_, Some(group)) => AccessScope::Group(group.clone()),
        (Some(namespace), None) => AccessScope::Namespace(namespace.clone()),
        (None, None) => AccessScope::Cluster,
    }
}

fn is_managed(caller: &Caller, token: &StoredEnrolmentToken) -> bool {
    let scope = scope(token.namespace.as_ref(), token.group.as_ref());
    caller.access.allows(Right::ManageWorkers, &scope)
}

/// Whether a list of this namespace has the token; `None` stands for all namespaces.
fn is_listed(listed: Option<&Namespace>, token: &StoredEnrolmentToken) -> bool {
    listed.is_none_or(|namespace| token.namespace.as_ref() == Some(namespace))
}
