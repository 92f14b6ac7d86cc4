//! The one check that each request passes: who sends it, and whether they may.

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::ALLOW;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::authenticate::authenticate;
use super::authorise::authorise;
use super::rules::{self, Found, Rule};
use crate::ApiState;
use crate::problem::{self, Problem};

/// Lets a request pass if its row in the table says so. It has to be around all routes and fallbacks.
pub(crate) async fn check(
    State(state): State<ApiState>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let (mut parts, body) = request.into_parts();
    let matched = parts.extensions.get::<MatchedPath>().cloned();
    let Some(route) = matched else {
        return Err(no_such_path(&state, &parts).await);
    };
    let rule = match rules::find(parts.method.as_str(), route.as_str()) {
        Found::Rule(rule) => rule,
        Found::OtherMethods { allow, are_public } => {
            if !are_public {
                authenticate(&state, &parts).await?;
            }
            return Ok(no_such_method(parts, &allow).await);
        }
        Found::Nothing => {
            authenticate(&state, &parts).await?;
            return Err(Problem::forbidden(
                "this path is refused to everyone: it has no row in the table of rights",
            ));
        }
    };
    let is_public = rule == Rule::Public || (rule == Rule::Scrape && state.metrics_public);
    if !is_public {
        let caller = authenticate(&state, &parts).await?;
        authorise(&state, &caller, rule, &mut parts).await?;
        parts.extensions.insert(caller);
    }
    Ok(next.run(Request::from_parts(parts, body)).await)
}

/// Without a token, a caller cannot find out which paths of the API exist.
async fn no_such_path(state: &ApiState, parts: &Parts) -> Problem {
    if is_of_the_api(&parts.uri)
        && let Err(problem) = authenticate(state, parts).await
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
