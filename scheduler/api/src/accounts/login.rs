//! Logs in and out, and says who is logged in.

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::header::{CACHE_CONTROL, HeaderName, SET_COOKIE};
use axum::http::{StatusCode, Uri};
use cueline_http::Peer;
use cueline_model::ActorKind;
use cueline_store::{ErrorKind, Login, StoredUser};

use super::MAX_NAME_BYTES;
use crate::access::password::given_password;
use crate::access::{Caller, Identity, Secret, actor, cookie};
use crate::body::Body;
use crate::namespace::NoNamespace;
use crate::openapi;
use crate::problem::Problem;
use crate::query;
use crate::view::{CallerKind, LoginAnswer, SessionView};
use crate::{ApiState, SharedState};

/// A session ends after 7 days, and earlier if it is not used for 12 hours.
pub(super) const SESSION_VALID_S: u64 = 7 * 24 * 3_600;
/// The actor of a login with a name that no user has. What was typed is not recorded, because it may be a password.
pub(super) const UNKNOWN_USER: &str = "unknown";
/// Why no session begins although the login was right.
pub(super) const NO_SESSION: &str = "the user is disabled, or was changed during the login";

/// The answer has a secret, which no cache may keep.
type WithCookie<T> = ([(HeaderName, String); 2], Json<T>);

/// Logs a user in by name and password.
#[utoipa::path(
    post,
    path = "/api/v1/login",
    operation_id = "login",
    tag = "accounts",
    summary = "Logs a user in by name and password.",
    description = "The response sets the cookie `cueline_session`. Requests with it need the header `X-CSRF-Token`, unless they only read.",
    request_body = openapi::LoginRequest,
    responses(
        (status = 200, description = "The user is logged in.", body = LoginAnswer, headers(("Set-Cookie" = String, description = "The session, as the cookie `cueline_session`."))),
    )
)]
pub(crate) async fn login(
    State(state): State<SharedState>,
    peer: Peer,
    _: NoNamespace,
    uri: Uri,
    body: Body,
) -> Result<WithCookie<LoginAnswer>, Problem> {
    query::none(&uri)?;
    let mut fields = body.fields(&["name", "password"]);
    let name = fields.required_text("name", MAX_NAME_BYTES);
    let password = given_password(&mut fields, "password");
    fields.finish()?;
    if let Err(problem) = state.logins.attempt(&name, peer.address) {
        refused(&state, UNKNOWN_USER, peer, "too many attempts").await;
        return Err(problem);
    }
    let user = found(&state, &name).await?;
    let hash = user.as_ref().and_then(|user| match &user.login {
        Login::Password(hash) => Some(hash.clone()),
        Login::OpenId { .. } | Login::None => None,
    });
    let is_right = state.logins.passwords.verify(hash, password).await?;
    let Some(user) = user else {
        refused(&state, UNKNOWN_USER, peer, "there is no such user").await;
        return Err(wrong());
    };
    if !is_right {
        refused(&state, &user.name, peer, "the password is wrong").await;
        return Err(wrong());
    }
    begin_session(&state, user, peer).await
}

async fn begin_session(
    state: &ApiState,
    user: StoredUser,
    peer: Peer,
) -> Result<WithCookie<LoginAnswer>, Problem> {
    let Some(secret) = new_session(state, &user, &user.login, peer).await? else {
        refused(state, &user.name, peer, NO_SESSION).await;
        return Err(wrong());
    };
    state.logins.succeeded(&user.name, peer.address);
    let cookie = cookie::set(&secret.to_text(), SESSION_VALID_S, peer.has_tls);
    let answer = LoginAnswer {
        user: user.into(),
        csrf: secret.csrf(),
    };
    Ok((with_cookie(cookie), Json(answer)))
}

/// Starts a session of the user who has proven this login. `None` if the user is disabled, or if the user was deleted or
/// the login changed just now.
pub(super) async fn new_session(
    state: &ApiState,
    user: &StoredUser,
    login: &Login,
    peer: Peer,
) -> Result<Option<Secret>, Problem> {
    let secret = Secret::random()?;
    let by = actor(ActorKind::User, &user.name, peer.address);
    let valid_ms = SESSION_VALID_S * 1_000;
    let begun = state
        .accounts
        .create_session(user.id, login, secret.hash(), valid_ms, &by)
        .await;
    match begun {
        Ok(()) => Ok(Some(secret)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The user with this login name, if there is one.
pub(super) async fn found(state: &ApiState, name: &str) -> Result<Option<StoredUser>, Problem> {
    match state.accounts.user(name).await {
        Ok(user) => Ok(Some(user)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The same words for an unknown name, a wrong password and a disabled user.
fn wrong() -> Problem {
    Problem::unauthorized("the name or the password is wrong")
}

pub(super) async fn refused(state: &ApiState, name: &str, peer: Peer, reason: &str) {
    let by = actor(ActorKind::User, name, peer.address);
    let audit = &*state.audit;
    state.logins.record_refusal(audit, by, reason).await;
}

fn with_cookie(cookie: String) -> [(HeaderName, String); 2] {
    [(SET_COOKIE, cookie), (CACHE_CONTROL, "no-store".to_owned())]
}

/// Ends the session of the request.
#[utoipa::path(
    post,
    path = "/api/v1/logout",
    operation_id = "logout",
    tag = "accounts",
    responses(
        (status = 204, description = "The session has ended."),
        (status = 409, description = "The request has a token and no session.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn logout(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    _: NoNamespace,
    uri: Uri,
    body: Body,
) -> Result<(StatusCode, [(HeaderName, String); 2]), Problem> {
    query::none(&uri)?;
    body.nothing()?;
    let Identity::Session { secret, .. } = &caller.identity else {
        return Err(Problem::refused(
            "the request has a token and no session; revoke the token to end it",
        ));
    };
    let ended = state.accounts.end_session(secret.hash(), &caller.actor);
    ended.await?;
    let cookie = cookie::clear(caller.peer.has_tls);
    Ok((StatusCode::NO_CONTENT, with_cookie(cookie)))
}

/// Says who sends the request, and what they may do.
#[utoipa::path(
    get,
    path = "/api/v1/session",
    operation_id = "session",
    tag = "accounts",
    responses(
        (status = 200, description = "The sender of the request.", body = SessionView),
    )
)]
pub(crate) async fn session(
    Extension(caller): Extension<Caller>,
    _: NoNamespace,
    uri: Uri,
) -> Result<([(HeaderName, &'static str); 1], Json<SessionView>), Problem> {
    query::none(&uri)?;
    let (kind, name, token, owner, csrf) = match caller.identity {
        Identity::AdminToken => (CallerKind::AdminToken, "admin".to_owned(), None, None, None),
        Identity::Token { id, name, owner } => {
            let owner = owner.map(|(_, name)| name);
            (CallerKind::Token, name, Some(id), owner, None)
        }
        Identity::Session { secret, name, .. } => {
            (CallerKind::User, name, None, None, Some(secret.csrf()))
        }
    };
    let view = SessionView {
        kind,
        name,
        token,
        owner,
        grants: caller.grants,
        owner_grants: caller.owner_grants,
        csrf,
    };
    Ok(([(CACHE_CONTROL, "no-store")], Json(view)))
}
