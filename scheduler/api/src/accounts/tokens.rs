//! API tokens: lists, creates and revokes them.
//!
//! A user makes tokens of their own, which may do at most what the user may. A token of a program has no owner, and
//! outlives its creator.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::header::{CACHE_CONTROL, HeaderName};
use axum::http::{StatusCode, Uri};
use cueline_model::{AccessScope, DurationMs, Grant, GroupName, Right, Timestamp};
use cueline_store::{ErrorKind, NewApiToken, StoredApiToken, UserId, name_key};

use super::MAX_TEXT_BYTES;
use super::user_list::has_grant_for;
use crate::access::{ApiTokenText, Caller, Identity, grants};
use crate::body::Body;
use crate::idempotency::IdempotencyKey;
use crate::list::{List, Page};
use crate::namespace::NoNamespace;
use crate::openapi;
use crate::problem::Problem;
use crate::query::{self, Params};
use crate::validity::valid_ms;
use crate::view::{ApiTokenPage, ApiTokenRef, ApiTokenView, CreatedApiToken};
use crate::{ApiState, SharedState};

/// For how long a token is valid by default: 90 days.
const DEFAULT_VALID: DurationMs = DurationMs::secs(90 * 24 * 3_600);
/// Reads of the store for one page, and the tokens in each. Tokens that the list does not have fill the reads, and may
/// leave the page short.
const MAX_READS: usize = 20;
const TOKENS_IN_READ: usize = 500;

/// The answer has a secret, which no cache may keep.
type Secret<T> = (StatusCode, [(HeaderName, &'static str); 1], Json<T>);

/// The list of API tokens. Its key is the id of a token, which is random: it says nothing about a token of others.
const LIST: List = List {
    name: "API tokens",
    filters: &["name", "owner", "group", "state"],
    sorts: &["id"],
};

/// Whether a token is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenState {
    Valid,
    Expired,
    Revoked,
}

impl TokenState {
    /// The states, as filters name them.
    const NAMES: [(&str, Self); 3] = [
        ("valid", Self::Valid),
        ("expired", Self::Expired),
        ("revoked", Self::Revoked),
    ];

    fn of(token: &StoredApiToken, now: Timestamp) -> Self {
        if token.revoked_at.is_some() {
            Self::Revoked
        } else if token.expires_at.is_some_and(|at| at <= now) {
            Self::Expired
        } else {
            Self::Valid
        }
    }
}

/// Lists the caller's tokens, and those that the caller manages.
#[utoipa::path(
    get,
    path = "/api/v1/tokens",
    operation_id = "token_list",
    tag = "accounts",
    summary = "Lists the caller's API tokens, and those that the caller manages.",
    params(
        ("name" = Option<Vec<openapi::UserNameFilter>>, Query, description = "Only tokens with this name; may be repeated."),
        ("owner" = Option<Vec<openapi::FilterText>>, Query, description = "Only tokens of the user with this login name; may be repeated. Upper and lower case are the same."),
        ("group" = Option<Vec<openapi::ListedName>>, Query, description = "Only tokens with a grant for this very group, with its namespace; may be repeated."),
        ("state" = Option<Vec<openapi::ApiTokenState>>, Query, description = "Only tokens in this state; may be repeated."),
        ("sort" = Option<openapi::ApiTokenSort>, Query, description = "The order of the list."),
        ("limit" = Option<openapi::PageLimit>, Query, description = "The most entries of the response; 100 by default."),
        ("after" = Option<openapi::PageCursor>, Query, description = "The `next` of the previous page."),
    ),
    responses(
        (status = 200, description = "A page of tokens.", body = ApiTokenPage),
    )
)]
pub(crate) async fn list(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    _: NoNamespace,
    uri: Uri,
) -> Result<Json<ApiTokenPage>, Problem> {
    let mut params = Params::of(&uri, &LIST.parameters());
    let names = params.names();
    let owners = params.texts("owner");
    let owners: Vec<String> = owners.iter().map(|name| name_key(name)).collect();
    let groups = params.many("group", |text| {
        text.parse::<GroupName>().map_err(|e| e.to_string())
    });
    let states = params.words("state", &TokenState::NAMES);
    let page: Page<String> = LIST.page(&mut params);
    params.finish()?;
    let now = state.store.now().await?;
    let wanted = |token: &StoredApiToken| {
        let is_owner = |owner: &String| owners.contains(&name_key(owner));
        (is_own(&caller, token) || grants::may_see(&caller.access, &token.grants))
            && (names.is_empty() || names.iter().any(|name| name.matches(&token.name)))
            && (owners.is_empty() || token.owner.as_ref().is_some_and(is_owner))
            && has_grant_for(&groups, &token.grants)
            && (states.is_empty() || states.contains(&TokenState::of(token, now)))
    };
    let owner = only_own(&caller);
    let mut tokens = Vec::new();
    let mut after = page.after.clone();
    let mut is_last = false;
    for _ in 0..MAX_READS {
        let read = state
            .accounts
            .api_tokens(owner, after.as_deref(), TOKENS_IN_READ)
            .await?;
        is_last = read.len() < TOKENS_IN_READ;
        after = read.last().map(|token| token.id.clone()).or(after);
        tokens.extend(read.into_iter().filter(wanted));
        if is_last || tokens.len() > page.limit {
            break;
        }
    }
    let has_more = tokens.len() > page.limit;
    let cut = page.cut(&mut tokens, |token| token.id.clone());
    let scanned = after.filter(|_| !is_last && !has_more);
    Ok(Json(ApiTokenPage {
        tokens: tokens.into_iter().map(ApiTokenView::from).collect(),
        next: cut.or_else(|| scanned.map(|id| page.next(&id))),
        now,
    }))
}

/// The user whose tokens are all that the caller can see. Then the store does not have to read those of others.
fn only_own(caller: &Caller) -> Option<UserId> {
    if caller.access.allows_somewhere(Right::ManageAccounts) {
        return None;
    }
    caller.user().map(|(id, _)| id)
}

fn is_own(caller: &Caller, token: &StoredApiToken) -> bool {
    let is_itself = matches!(&caller.identity, Identity::Token { id, .. } if *id == token.id);
    // Both names are as they are stored, and a user's name stays the same.
    let own = caller.user().map(|(_, name)| name);
    is_itself || (own.is_some() && token.owner.as_deref() == own)
}

/// Creates an API token. Only this answer has its secret.
#[utoipa::path(
    post,
    path = "/api/v1/tokens",
    operation_id = "token_create",
    tag = "accounts",
    params(
        ("Idempotency-Key" = Option<openapi::IdempotencyKeyHeader>, Header, description = "A second request of the same caller with the same key creates no token."),
    ),
    request_body = openapi::NewApiToken,
    responses(
        (status = 201, description = "The token with its secret.", body = CreatedApiToken),
        (status = 409, description = "The most tokens exist, or the owner is disabled. With the type `cueline:already-created`, an earlier request with the same idempotency key has created the token `id`.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The token does not fit.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn create(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    _: NoNamespace,
    uri: Uri,
    IdempotencyKey(idempotency_key): IdempotencyKey,
    body: Body,
) -> Result<Secret<CreatedApiToken>, Problem> {
    query::none(&uri)?;
    let mut fields = body.fields(&["name", "grants", "program", "valid"]);
    let name = fields.required_text("name", MAX_TEXT_BYTES);
    if !fields.has("grants") {
        fields.record("grants", "missing; give a list of grants");
    }
    let given = grants::read(&mut fields).unwrap_or_default();
    let is_of_program = fields.flag("program");
    let valid_ms = valid_ms(&mut fields, DEFAULT_VALID);
    fields.finish()?;
    let owner = caller.user().filter(|_| !is_of_program);
    check_grants(&caller, owner.is_some(), &given)?;
    let text = ApiTokenText::random()?;
    let token = NewApiToken {
        id: text.id.clone(),
        hash: text.secret.hash(),
        name,
        owner: owner.map(|(id, _)| id),
        grants: given,
        valid_ms,
        session: match &caller.identity {
            Identity::Session { secret, .. } => Some(secret.hash()),
            Identity::AdminToken | Identity::Token { .. } => None,
        },
        idempotency_key,
    };
    state
        .accounts
        .create_api_token(&token, &caller.actor)
        .await
        .map_err(|error| match error.kind() {
            // Since the request was admitted, such as by a new password.
            ErrorKind::NotFound => {
                Problem::unauthorized("the session or the user has ended; log in again")
            }
            _ => error.into(),
        })?;
    let answer = CreatedApiToken {
        token: text.to_text(),
        id: text.id,
    };
    let headers = [(CACHE_CONTROL, "no-store")];
    Ok((StatusCode::CREATED, headers, Json(answer)))
}

/// A token makes others only if it manages accounts. Otherwise a stolen one would outlive its revocation in a copy.
fn check_grants(caller: &Caller, has_owner: bool, given: &[Grant]) -> Result<(), Problem> {
    let has_session = matches!(caller.identity, Identity::Session { .. });
    if has_owner && has_session {
        return grants::check_own(caller, given);
    }
    if given.is_empty() {
        return caller.require(Right::ManageAccounts, &AccessScope::Cluster);
    }
    grants::check_given(caller, given)
}

/// Revokes an API token at once.
#[utoipa::path(
    delete,
    path = "/api/v1/tokens/{id}",
    operation_id = "token_revoke",
    tag = "accounts",
    params(
        ("id" = openapi::TokenId, Path, description = "The id of the token."),
    ),
    responses(
        (status = 200, description = "The token is revoked.", body = ApiTokenRef),
    )
)]
pub(crate) async fn revoke(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    _: NoNamespace,
    path: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Json<ApiTokenRef>, Problem> {
    query::none(&uri)?;
    let Path(id) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    let unknown = || Problem::not_found(format!("there is no API token {id:?}"));
    let token = stored(&state, &id).await?.ok_or_else(unknown)?;
    if !may_revoke(&caller, &token) {
        return Err(unknown());
    }
    let revoked = state.accounts.revoke_api_token(&id, None, &caller.actor);
    if !revoked.await? {
        return Err(unknown());
    }
    Ok(Json(ApiTokenRef { id: token.id }))
}

/// A user revokes own tokens, a token itself, and an administrator those that they manage.
fn may_revoke(caller: &Caller, token: &StoredApiToken) -> bool {
    let is_own = match &caller.identity {
        Identity::AdminToken => false,
        Identity::Token { id, .. } => *id == token.id,
        Identity::Session { .. } => is_own(caller, token),
    };
    is_own || grants::may_see(&caller.access, &token.grants)
}

/// The token with this id. The store lists tokens by id, so it is the first one after the id before.
async fn stored(state: &ApiState, id: &str) -> Result<Option<StoredApiToken>, Problem> {
    let Ok(number) = u64::from_str_radix(id, 16) else {
        return Ok(None);
    };
    let before = number.checked_sub(1).map(|number| format!("{number:016x}"));
    let found = state
        .accounts
        .api_tokens(None, before.as_deref(), 1)
        .await?;
    Ok(found.into_iter().find(|token| token.id == id))
}
