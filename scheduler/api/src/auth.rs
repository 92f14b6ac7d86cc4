//! Authentication.

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::Response;
use cueline_model::{Actor, ActorKind};

use crate::ApiState;
use crate::problem::Problem;

/// Accepts requests with the admin token.
pub(crate) async fn require_token(
    State(state): State<ApiState>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let Some(header) = request.headers().get(AUTHORIZATION) else {
        return Err(Problem::unauthorized(
            "the request has no Authorization header; send \"Authorization: Bearer TOKEN\"",
        ));
    };
    let given = header
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim());
    match given {
        Some(token) if state.token.matches(token) => Ok(next.run(request).await),
        Some(_) => Err(Problem::unauthorized("the token is wrong")),
        None => Err(Problem::unauthorized(
            "the Authorization header is not of the form \"Bearer TOKEN\"",
        )),
    }
}

/// The actor of a request with the admin token.
pub(crate) fn admin_actor() -> Actor {
    Actor::new(ActorKind::Token, "admin")
}
