//! Finds out who sends a request: by the admin token, an API token, or a session.
//!
//! Nothing is cached. Each request reads its token or session, so that a revocation counts at once.

use axum::http::header::{AUTHORIZATION, COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method};
use cueline_http::Peer;
use cueline_model::{Access, ActorKind};
use cueline_store::Principal;

use super::caller::{Caller, Identity, actor};
use super::cookie;
use super::secret::{ApiTokenText, Secret};
use crate::ApiState;
use crate::problem::Problem;

/// A session that is not used for this time ends: 12 hours.
const SESSION_IDLE_MS: u64 = 12 * 3_600 * 1_000;
/// The header that requests with a session need, unless they only read.
const CSRF_HEADER: &str = "x-csrf-token";

/// Who sends the request. [`check_csrf`] has to follow, before anything is done for a session.
pub(super) async fn authenticate(state: &ApiState, parts: &Parts) -> Result<Caller, Problem> {
    let peer = parts.extensions.get::<Peer>().copied();
    let peer = peer.unwrap_or(Peer::UNKNOWN);
    if let Some(header) = parts.headers.get(AUTHORIZATION) {
        return by_token(state, header, peer).await;
    }
    let cookies = parts.headers.get_all(COOKIE).into_iter();
    let cookies = cookies.filter_map(|header| header.to_str().ok());
    if let Some(text) = cookie::session_in(cookies) {
        let secret = Secret::parse(text).ok_or_else(session_ended)?;
        return by_session(state, secret, peer).await;
    }
    Err(Problem::unauthorized(
        "the request has no Authorization header; send \"Authorization: Bearer TOKEN\"",
    ))
}

async fn by_token(state: &ApiState, header: &HeaderValue, peer: Peer) -> Result<Caller, Problem> {
    let given = header
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim());
    let Some(given) = given else {
        return Err(Problem::unauthorized(
            "the Authorization header is not of the form \"Bearer TOKEN\"",
        ));
    };
    if state.token.matches(given) {
        return Ok(Caller::admin_token(peer));
    }
    let wrong = || Problem::unauthorized("the token is wrong");
    let token = ApiTokenText::parse(given).ok_or_else(wrong)?;
    let openid_valid_ms = state.openid_tokens_valid().as_millis();
    let found = state
        .accounts
        .api_token(token.secret.hash(), openid_valid_ms)
        .await?;
    found
        .and_then(|principal| by_api_token(principal, &token.id, peer))
        .ok_or_else(wrong)
}

/// `None` if the principal is none of this token.
fn by_api_token(principal: Principal, id: &str, peer: Peer) -> Option<Caller> {
    let (found, name) = principal.token?;
    if found != id {
        return None;
    }
    let access = match &principal.owner_grants {
        Some(owner) => Access::of_token(principal.grants.clone(), owner.clone()),
        // Deny by default: the grants of an owner that are not known allow nothing.
        None if principal.user.is_some() => Access::default(),
        None => Access::new(principal.grants.clone()),
    };
    Some(Caller {
        // The id first: a long name is cut, and a token that is named "admin" is not taken for the admin token.
        actor: actor(ActorKind::Token, &format!("{found} {name}"), peer.address),
        access,
        grants: principal.grants,
        owner_grants: principal.owner_grants,
        identity: Identity::Token {
            id: found,
            name,
            owner: principal.user,
        },
        peer,
    })
}

async fn by_session(state: &ApiState, secret: Secret, peer: Peer) -> Result<Caller, Problem> {
    let found = state
        .accounts
        .session(secret.hash(), SESSION_IDLE_MS)
        .await?;
    let principal = found.ok_or_else(session_ended)?;
    let (user, name) = principal.user.ok_or_else(session_ended)?;
    Ok(Caller {
        actor: actor(ActorKind::User, &name, peer.address),
        access: Access::new(principal.grants.clone()),
        grants: principal.grants,
        owner_grants: None,
        identity: Identity::Session { secret, user, name },
        peer,
    })
}

fn session_ended() -> Problem {
    Problem::unauthorized("the session has ended; log in again")
}

/// A browser adds the cookie to requests that another site has made up. Another site does not know this header's value.
pub(super) fn check_csrf(caller: &Caller, parts: &Parts) -> Result<(), Problem> {
    let Identity::Session { secret, .. } = &caller.identity else {
        return Ok(());
    };
    if matches!(parts.method, Method::GET | Method::HEAD) {
        return Ok(());
    }
    let given = parts.headers.get(CSRF_HEADER);
    let given = given.and_then(|value| value.to_str().ok());
    if given.is_some_and(|given| secret.is_csrf(given)) {
        return Ok(());
    }
    Err(Problem::forbidden(
        "the header X-CSRF-Token is missing or wrong; GET /api/v1/session has its value",
    ))
}
