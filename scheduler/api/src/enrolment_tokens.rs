//! Enrolment tokens: creates, lists and deletes them.

use std::fmt::Display;
use std::str::FromStr;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::header::{CACHE_CONTROL, HeaderName};
use axum::http::{StatusCode, Uri};
use cueline_model::{AccessScope, Actor, DurationMs, ExecutorName, GroupName, Right};
use cueline_protocol::origin::EnrolmentToken;
use cueline_store::NewEnrolmentToken;

use crate::ApiState;
use crate::access::Caller;
use crate::body::{Body, Fields};
use crate::problem::Problem;
use crate::query;
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
pub(crate) async fn create(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
    body: Body,
) -> Result<Secret<CreatedToken>, Problem> {
    query::none(&uri)?;
    let (secret, token) = new_token(body, caller.actor.clone())?;
    caller.require(Right::ManageWorkers, &scope(token.group.as_ref()))?;
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
fn new_token(body: Body, by: Actor) -> Result<(EnrolmentToken, NewEnrolmentToken), Problem> {
    let mut fields = body.fields(&["group", "executor", "uses", "valid"]);
    let group: Option<GroupName> = parsed(&mut fields, "group");
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
        group,
        executor,
        uses: u32::try_from(uses).unwrap_or(MAX_USES),
        valid_ms,
        by,
    };
    Ok((secret, token))
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

/// Lists enrolment tokens, spent ones included.
pub(crate) async fn list(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<Json<Tokens>, Problem> {
    query::none(&uri)?;
    let mut tokens = state.store.enrolment_tokens().await?;
    tokens.retain(|token| is_managed(&caller, token.group.as_ref()));
    let now = state.store.now().await?;
    let tokens = tokens.into_iter().map(TokenView::from).collect();
    Ok(Json(Tokens { tokens, now }))
}

/// Deletes an enrolment token. Keys that it has enrolled stay.
pub(crate) async fn delete(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Json<TokenRef>, Problem> {
    query::none(&uri)?;
    let Path(id) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    let tokens = state.store.enrolment_tokens().await?;
    let token = tokens.iter().find(|token| token.id == id);
    // A token of another group gets the answer of an unknown one.
    let is_managed = token.is_some_and(|token| is_managed(&caller, token.group.as_ref()));
    let by = &caller.actor;
    if is_managed && state.store.delete_enrolment_token(&id, by).await? {
        Ok(Json(TokenRef { id }))
    } else {
        Err(Problem::not_found(format!(
            "there is no enrolment token {id:?}"
        )))
    }
}

/// The workers that a token enrols.
fn scope(group: Option<&GroupName>) -> AccessScope {
    group.map_or(AccessScope::Cluster, |group| {
        AccessScope::Group(group.clone())
    })
}

fn is_managed(caller: &Caller, group: Option<&GroupName>) -> bool {
    caller.access.allows(Right::ManageWorkers, &scope(group))
}
