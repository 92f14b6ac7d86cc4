//! The one check that each request passes: who sends it, and whether they may.

use axum::extract::Request;
use axum::http::header::ALLOW;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::authenticate::{authenticate, check_csrf};
use super::authorise::authorise;
use super::caller::Caller;
use super::refusals::Attempt;
use super::rules::{self, Found, Rule};
use crate::ApiState;
use crate::problem::{self, Problem, RefusalReason};

/// Lets a request pass if the row of its route in the table says so. `route` is `None` if there is no such path.
///
/// A refusal for want of a right is recorded in the audit log, wherever it is decided: here, or in a handler.
pub(crate) async fn check(
    state: &ApiState,
    route: Option<&str>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let (mut parts, body) = request.into_parts();
    let Some(route) = route else {
        return Err(no_such_path(state, &parts).await);
    };
    let (action, rule) = match rules::find(parts.method.as_str(), route) {
        Found::Row { action, rule } => (action, rule),
        Found::OtherMethods { allow, are_public } => {
            if !are_public {
                known(state, &parts).await?;
            }
            return Ok(no_such_method(parts, &allow).await);
        }
        Found::Nothing => {
            known(state, &parts).await?;
            return Err(Problem::forbidden(
                "this path is refused to everyone: it has no row in the table of rights",
            ));
        }
    };
    if rule == Rule::Public || (rule == Rule::Scrape && state.metrics_public) {
        return Ok(next.run(Request::from_parts(parts, body)).await);
    }
    let caller = authenticate(state, &parts).await?;
    let attempt = Attempt::of(state, &caller, (action, rule), &mut parts).await;
    let response = match admit(state, &caller, rule, &mut parts).await {
        Ok(()) => {
            parts.extensions.insert(caller);
            next.run(Request::from_parts(parts, body)).await
        }
        Err(problem) => problem.into_response(),
    };
    if response.status() == StatusCode::FORBIDDEN {
        let reason = response.extensions().get::<RefusalReason>();
        let reason = reason.map_or("", |reason| reason.0.as_str());
        state
            .refusals
            .record(&*state.audit, attempt.refused(reason))
            .await;
    }
    Ok(response)
}

async fn admit(
    state: &ApiState,
    caller: &Caller,
    rule: Rule,
    parts: &mut Parts,
) -> Result<(), Problem> {
    check_csrf(caller, parts)?;
    authorise(state, caller, rule, parts).await
}

/// Refuses a request whose sender is not known.
async fn known(state: &ApiState, parts: &Parts) -> Result<(), Problem> {
    let caller = authenticate(state, parts).await?;
    check_csrf(&caller, parts)
}

/// Without a token, a caller cannot find out which paths of the API exist.
async fn no_such_path(state: &ApiState, parts: &Parts) -> Problem {
    if is_of_the_api(&parts.uri)
        && let Err(problem) = known(state, parts).await
    {
        return problem;
    }
    problem::no_such_path(parts.uri.clone()).await
}

fn is_of_the_api(uri: &Uri) -> bool {
    let rest = uri.path().strip_prefix("/api/v1");
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

async fn no_such_method(parts: Parts, allow: &str) -> Response {
    let problem = problem::no_such_method(parts.method, parts.uri).await;
    let mut response = problem.into_response();
    if let Ok(allow) = HeaderValue::from_str(allow) {
        response.headers_mut().insert(ALLOW, allow);
    }
    response
}
