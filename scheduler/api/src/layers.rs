//! The layers around the routes. axum puts a layer around each route and fallback on its own, so there are two of them.

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use crate::problem::Problem;
use crate::{SharedState, access, large, preconditions};

/// Around all routes and fallbacks. Counts the request once it is answered, also if it was refused. Without a token, a
/// caller cannot find out which paths exist.
pub(crate) async fn outer(
    State(state): State<SharedState>,
    request: Request,
    next: Next,
) -> Response {
    // The pattern, not the path: names of jobs must not become labels of metrics.
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map(MatchedPath::as_str);
    let answer = access::check(&state, route, request, next).await;
    let response = answer.into_response();
    state.requests.add(route, response.status());
    response
}

/// Around the routes that need a right. Without one, a caller cannot take the place of a large request.
pub(crate) async fn inner(
    State(state): State<SharedState>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    preconditions::refuse_ignored(&request)?;
    large::admit(&state.large, request, next).await
}
