//! Login by OpenID Connect: sends the browser to the provider, and ends the login when it comes back.

use axum::extract::{Query, State};
use axum::http::header::{CACHE_CONTROL, COOKIE, HeaderName, LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::AppendHeaders;
use cueline_http::Peer;
use cueline_store::Login;

use super::login::{NO_SESSION, SESSION_VALID_S, UNKNOWN_USER, new_session, refused};
use super::openid_user::account;
use super::refusal::Refusal;
use crate::access::cookie;
use crate::namespace::NoNamespace;
use crate::openapi;
use crate::openid::{LoginFailure, OpenId, Pending, StateError, VALID_S};
use crate::problem::Problem;
use crate::query;
use crate::{ApiState, SharedState};

/// The cookie of a login that has begun.
const COOKIE_NAME: &str = "cueline_login";
/// Only the routes of the login get it.
const COOKIE_PATH: &str = "/api/v1/login/oidc";
/// The longest code, state or error that a provider may send, in bytes.
const MAX_VALUE_BYTES: usize = 4_096;

/// To where the browser goes, and the cookies that it gets. No cache may keep it.
type Redirect = (StatusCode, AppendHeaders<Vec<(HeaderName, String)>>);

/// Sends the browser to the provider.
#[utoipa::path(
    get,
    path = "/api/v1/login/oidc",
    operation_id = "login_oidc",
    tag = "accounts",
    summary = "Sends a browser to the identity provider.",
    description = "It is for browsers: a person logs in at the provider, which sends the browser back to `/api/v1/login/oidc/callback`.",
    responses(
        (status = 303, description = "The provider is at `Location`.", headers(
            ("Location" = String, description = "The URL of the provider's login."),
            ("Set-Cookie" = String, description = "The login that has begun, as the cookie `cueline_login`. It is valid for 10 minutes."),
        )),
        (status = 404, description = "The server has no identity provider.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn begin(
    State(state): State<SharedState>,
    _: NoNamespace,
    uri: Uri,
) -> Result<Redirect, Problem> {
    query::none(&uri)?;
    let openid = provider(&state)?;
    let pending = Pending::begin()?;
    let now = state.store.now().await?;
    let url = openid.provider().login_url(&pending, now).await;
    let url = url.map_err(|failure| not_available(&failure))?;
    let cookie = login_cookie(&pending.to_cookie(), VALID_S, openid);
    Ok(redirect(url.into(), vec![cookie]))
}

/// The provider has sent the browser back: verifies whom it has logged in, and starts a session.
#[utoipa::path(
    get,
    path = "/api/v1/login/oidc/callback",
    operation_id = "login_oidc_callback",
    tag = "accounts",
    summary = "Ends a login at the identity provider.",
    description = "The provider sends the browser here. The request needs the cookie `cueline_login`.",
    params(
        ("state" = openapi::ProviderValue, Query, description = "The state that the login has begun with."),
        ("code" = Option<openapi::ProviderValue>, Query, description = "The code for the ID token. It is required unless `error` is given."),
        ("error" = Option<openapi::ProviderValue>, Query, description = "Why the provider refuses the login."),
        ("iss" = Option<openapi::ProviderValue>, Query, description = "The issuer, if the provider names it (RFC 9207)."),
        ("others" = Option<openapi::ProviderParameters>, Query, style = Form, explode, description = "Any other parameters, each under its own name. They are ignored, as RFC 6749 requires."),
    ),
    responses(
        (status = 303, description = "The user is logged in.", headers(
            ("Location" = String, description = "`/`."),
            ("Set-Cookie" = String, description = "The session, as the cookie `cueline_session`. A second header removes the cookie `cueline_login`."),
        )),
        (status = 401, description = "Another browser has begun the login, it took more than 10 minutes, or the provider refuses it or sends no valid ID token.", body = Problem, content_type = "application/problem+json", headers(
            ("WWW-Authenticate" = String),
        )),
        (status = 403, description = "The user is disabled. Or there is no user, and the login creates none.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "The server has no identity provider.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "Another user has the name of the new user, or the last administrator would lose their rights.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn end(
    State(state): State<SharedState>,
    peer: Peer,
    _: NoNamespace,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Redirect, Problem> {
    let openid = provider(&state)?;
    if let Err(problem) = state.logins.attempt_from(peer.address) {
        refused(&state, UNKNOWN_USER, peer, "too many attempts").await;
        return Err(problem);
    }
    match finish(&state, openid, peer, &headers, &uri).await {
        Ok(redirect) => {
            state.logins.succeeded_from(peer.address);
            Ok(redirect)
        }
        Err(refusal) => {
            refused(&state, &refusal.name, peer, &refusal.reason).await;
            Err(*refusal.problem)
        }
    }
}

async fn finish(
    state: &ApiState,
    openid: &OpenId,
    peer: Peer,
    headers: &HeaderMap,
    uri: &Uri,
) -> Result<Redirect, Refusal> {
    let answer = Answer::of(uri)?;
    let now = state.store.now().await?;
    let pending = pending(headers)?;
    pending
        .check_state(&answer.state, now)
        .map_err(wrong_state)?;
    if answer
        .issuer
        .is_some_and(|issuer| issuer != openid.settings().issuer)
    {
        // RFC 9207: another provider has sent the browser here.
        let reason = "the answer is from another issuer";
        return Err(Refusal::of_unknown(reason, Problem::unauthorized(reason)));
    }
    let code = answer.code.map_err(|error| {
        let reason = format!("the provider refuses the login: {error}");
        Refusal::of_unknown(&reason, Problem::unauthorized(&reason))
    })?;
    let identity = openid.provider().identity(code, &pending, now).await;
    let identity = identity.map_err(|failure| match &failure {
        LoginFailure::Unavailable(reason) => Refusal::of_unknown(reason, not_available(&failure)),
        LoginFailure::Refused(reason) => {
            tracing::warn!(%reason, "login by OpenID Connect refused; check the provider's client if this continues");
            let answer = "the provider's answer is not valid; the audit log has the reason";
            Refusal::of_unknown(reason, Problem::unauthorized(answer))
        }
    })?;
    let user = account(state, openid, peer, &identity).await?;
    let login = Login::OpenId {
        issuer: openid.settings().issuer.clone(),
        subject: identity.subject.clone(),
    };
    let Some(secret) = new_session(state, &user, &login, peer).await? else {
        // Since the last look.
        let problem = Problem::forbidden(NO_SESSION);
        return Err(Refusal::of_user(&user.name, NO_SESSION, problem));
    };
    let session = cookie::set(
        &secret.to_text(),
        SESSION_VALID_S,
        peer.has_tls || openid.has_tls(),
    );
    let ended = login_cookie("", 0, openid);
    Ok(redirect("/".to_owned(), vec![session, ended]))
}

/// What the provider has sent with the browser. Unknown parameters are ignored, as RFC 6749 requires.
struct Answer {
    state: String,
    issuer: Option<String>,
    /// The code, or the name of an error.
    code: Result<String, String>,
}

impl Answer {
    fn of(uri: &Uri) -> Result<Self, Refusal> {
        let malformed = |reason: &str| Refusal::of_unknown(reason, Problem::malformed(reason));
        let pairs = Query::<Vec<(String, String)>>::try_from_uri(uri);
        let Query(pairs) = pairs.map_err(|_| malformed("the parameters cannot be read"))?;
        let one = |wanted: &str| {
            let mut values = pairs.iter().filter(|(name, _)| name == wanted);
            let value = values.next().map(|(_, value)| value.clone());
            if values.next().is_some() {
                return Err(malformed("a parameter is given more than once"));
            }
            if value.as_ref().is_some_and(|v| v.len() > MAX_VALUE_BYTES) {
                return Err(malformed("a parameter is too long"));
            }
            Ok(value)
        };
        let code = match (one("error")?, one("code")?) {
            (Some(error), _) => Err(error_name(&error)),
            (None, Some(code)) => Ok(code),
            (None, None) => return Err(malformed("the parameter code is missing")),
        };
        Ok(Self {
            state: one("state")?.ok_or_else(|| malformed("the parameter state is missing"))?,
            issuer: one("iss")?,
            code,
        })
    }
}

/// Only what a name of an error may contain: other text could say anything to whom reads it.
fn error_name(error: &str) -> String {
    let is_plain = |c: char| c.is_ascii_lowercase() || c == '_';
    if error.len() <= 64 && error.chars().all(is_plain) {
        error.to_owned()
    } else {
        "unknown error".to_owned()
    }
}

fn pending(headers: &HeaderMap) -> Result<Pending, Refusal> {
    let cookies = headers.get_all(COOKIE).into_iter();
    let cookies = cookies.filter_map(|header| header.to_str().ok());
    let found = cookie::value_in(COOKIE_NAME, cookies).and_then(Pending::of_cookie);
    found.ok_or_else(|| wrong_state(StateError::Other))
}

fn wrong_state(error: StateError) -> Refusal {
    let reason = match error {
        StateError::Other => "this browser has not begun this login",
        StateError::Expired => "the login was begun more than 10 minutes ago",
    };
    let answer = format!("{reason}; begin again at {COOKIE_PATH}");
    Refusal::of_unknown(reason, Problem::unauthorized(&answer))
}

fn provider(state: &ApiState) -> Result<&OpenId, Problem> {
    state.openid.as_deref().ok_or_else(|| {
        Problem::not_found(
            "this server has no identity provider; log in by POST /api/v1/login, or set oidc_issuer",
        )
    })
}

fn not_available(failure: &LoginFailure) -> Problem {
    tracing::warn!(error = %failure, "the identity provider cannot be used; check it and the settings oidc_…");
    Problem::unavailable(
        "the identity provider cannot be used just now; the server's log has the reason",
    )
}

/// The provider sends the browser back by a link of another site, so the cookie is `SameSite=Lax`.
fn login_cookie(value: &str, valid_s: u64, openid: &OpenId) -> String {
    let secure = if openid.has_tls() { "; Secure" } else { "" };
    format!(
        "{COOKIE_NAME}={value}; Path={COOKIE_PATH}; Max-Age={valid_s}; HttpOnly; SameSite=Lax{secure}"
    )
}

fn redirect(to: String, cookies: Vec<String>) -> Redirect {
    let mut headers = vec![(LOCATION, to), (CACHE_CONTROL, "no-store".to_owned())];
    headers.extend(cookies.into_iter().map(|cookie| (SET_COOKIE, cookie)));
    (StatusCode::SEE_OTHER, AppendHeaders(headers))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(query: &str) -> Result<Answer, String> {
        let uri = format!("{COOKIE_PATH}/callback?{query}");
        let uri = uri.parse().expect("a URL");
        Answer::of(&uri).map_err(|refusal| refusal.reason)
    }

    #[test]
    fn an_answer_has_a_state_and_a_code_or_an_error() {
        let good = answer("code=a%2Fb&state=s&session_state=x&iss=y").expect("an answer");
        assert_eq!(good.code, Ok("a/b".to_owned()));
        assert_eq!(
            (good.state.as_str(), good.issuer.as_deref()),
            ("s", Some("y"))
        );
        let denied = answer("error=access_denied&error_description=x&state=s");
        let denied = denied.expect("an answer");
        assert_eq!(denied.code, Err("access_denied".to_owned()));
        let strange = answer("error=%3Cb%3Eread+this&code=c&state=s").expect("an answer");
        assert_eq!(strange.code, Err("unknown error".to_owned()));
        let long = format!("code={}&state=s", "x".repeat(MAX_VALUE_BYTES + 1));
        for bad in [
            "",
            "code=c",
            "state=s",
            "code=c&code=d&state=s",
            long.as_str(),
        ] {
            assert!(answer(bad).is_err(), "{bad}");
        }
    }
}
