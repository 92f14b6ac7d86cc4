//! Enrolment tokens: creates, lists and deletes them.

use std::fmt::Display;
use std::str::FromStr;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::{CACHE_CONTROL, HeaderName};
use axum::http::{StatusCode, Uri};
use cueline_model::{DurationMs, ExecutorName, GroupName};
use cueline_protocol::origin::EnrolmentToken;
use cueline_store::NewEnrolmentToken;
use rand::TryRng as _;

use crate::ApiState;
use crate::auth::admin_actor;
use crate::body::{Body, Fields};
use crate::namespace::{ALL, InNamespace};
use crate::openapi;
use crate::problem::Problem;
use crate::query::{self, Params};
use crate::view::{CreatedToken, TokenRef, TokenView, Tokens};

/// The most enrolments with one token.
const MAX_USES: u32 = 10_000;
/// For how long a token is valid by default.
const DEFAULT_VALID: DurationMs = DurationMs::secs(3_600);
/// Ten years. A token without an end is written `never`.
const MAX_VALID: DurationMs = DurationMs::secs(3_650 * 24 * 3_600);
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
    request_body = Option<openapi::NewEnrolmentToken>,
    responses(
        (status = 201, description = "The token with its secret.", body = CreatedToken),
        (status = 409, description = "The most tokens exist, and none of them is spent.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The token does not fit.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn create(
    State(state): State<ApiState>,
    namespace: InNamespace,
    uri: Uri,
    body: Body,
) -> Result<Secret<CreatedToken>, Problem> {
    query::none(&uri)?;
    let (secret, token) = new_token(&namespace, body)?;
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
    let valid_ms = valid_ms(&mut fields);
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
        by: admin_actor(),
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

/// `None` for a token without an end.
fn valid_ms(fields: &mut Fields) -> Option<u64> {
    let text = fields
        .text("valid", MAX_TEXT_BYTES)
        .unwrap_or_else(|| DEFAULT_VALID.to_string());
    if text == "never" {
        return None;
    }
    let range = DurationMs::secs(1)..=MAX_VALID;
    match text.parse::<DurationMs>() {
        Ok(valid) if range.contains(&valid) => Some(valid.as_millis()),
        Ok(_) => {
            fields.record(
                "valid",
                format!(
                    "{text:?} is given; give 1s to {MAX_VALID}, or never for a token without an end"
                ),
            );
            None
        }
        Err(error) => {
            fields.record(
                "valid",
                format!("{error}, or never for a token without an end"),
            );
            None
        }
    }
}

fn random<const N: usize>() -> Result<[u8; N], Problem> {
    let mut bytes = [0; N];
    rand::rngs::SysRng
        .try_fill_bytes(&mut bytes)
        .map_err(|error| {
            Problem::unavailable(format!(
                "failed to get random bytes from the system: {error}"
            ))
        })?;
    Ok(bytes)
}

/// Lists enrolment tokens, spent ones included. Those for all namespaces are only in the list of all namespaces.
#[utoipa::path(
    get,
    path = "/api/v1/enrolment-tokens",
    operation_id = "worker_key_tokens",
    tag = "worker keys",
    summary = "Lists enrolment tokens, spent ones included.",
    description = "Tokens for all namespaces are only in the list of all namespaces.",
    params(
        ("all_namespaces" = Option<openapi::AllNamespaces>, Query, description = "Whether tokens of all namespaces are listed."),
    ),
    responses(
        (status = 200, description = "The tokens, oldest first.", body = Tokens),
    )
)]
pub(crate) async fn list(
    State(state): State<ApiState>,
    namespace: InNamespace,
    uri: Uri,
) -> Result<Json<Tokens>, Problem> {
    let mut params = Params::of(&uri, &[ALL]);
    let listed = namespace.listed(&mut params);
    params.finish()?;
    let mut tokens = state.store.enrolment_tokens().await?;
    tokens.retain(|token| listed.is_none() || token.namespace == listed);
    let now = state.store.now().await?;
    let tokens = tokens.into_iter().map(TokenView::from).collect();
    Ok(Json(Tokens { tokens, now }))
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
    State(state): State<ApiState>,
    namespace: InNamespace,
    path: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Json<TokenRef>, Problem> {
    let mut params = Params::of(&uri, &[ALL]);
    let listed = namespace.listed(&mut params);
    params.finish()?;
    let Path(id) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    let tokens = state.store.enrolment_tokens().await?;
    let is_listed = tokens
        .iter()
        .any(|token| token.id == id && (listed.is_none() || token.namespace == listed));
    if is_listed
        && state
            .store
            .delete_enrolment_token(&id, &admin_actor())
            .await?
    {
        Ok(Json(TokenRef { id }))
    } else {
        Err(Problem::not_found(format!(
            "there is no enrolment token {id:?}"
        )))
    }
}
