//! Creates the first user.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use cueline_http::Peer;
use cueline_model::{ActorKind, Grant};
use cueline_store::{ErrorKind, Login, NewUser};
use tokio::time::Instant;

use super::{MAX_NAME_BYTES, MAX_TEXT_BYTES};
use crate::SharedState;
use crate::access::actor;
use crate::access::password::required_new_password;
use crate::body::Body;
use crate::namespace::NoNamespace;
use crate::openapi;
use crate::problem::Problem;
use crate::query;
use crate::view::UserView;

/// The actor in the audit log, because there is no user yet.
const BY: &str = "setup";

/// Creates the first user, who may do everything. It needs the secret that this process has printed at its start.
#[utoipa::path(
    post,
    path = "/api/v1/setup",
    operation_id = "setup",
    tag = "accounts",
    summary = "Creates the first user.",
    description = "It needs the secret that the server has printed at its start.",
    request_body = openapi::SetupRequest,
    responses(
        (status = 201, description = "The user, who may do everything.", body = UserView),
        (status = 409, description = "There is a user.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The login name does not fit.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn setup(
    State(state): State<SharedState>,
    peer: Peer,
    _: NoNamespace,
    uri: Uri,
    body: Body,
) -> Result<(StatusCode, Json<UserView>), Problem> {
    query::none(&uri)?;
    let mut fields = body.fields(&["secret", "name", "password"]);
    let secret = fields.required_text("secret", MAX_TEXT_BYTES);
    let name = fields.required_text("name", MAX_NAME_BYTES);
    let password = required_new_password(&mut fields, "password");
    fields.finish()?;
    if !state.logins.setup.admits(&secret, Instant::now()) {
        return Err(Problem::unauthorized(
            "the set-up secret is wrong, used or older than an hour; restart the server for a new one if there is no user yet",
        ));
    }
    let hash = state.logins.passwords.hash(password).await?;
    let user = NewUser {
        name,
        display_name: String::new(),
        login: Login::Password(hash),
        grants: vec![Grant::everything()],
        idempotency_key: None,
    };
    let by = actor(ActorKind::Token, BY, peer.address);
    let created = state.accounts.create_first_user(&user, &by).await;
    let has_user = match &created {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::Conflict,
    };
    if has_user {
        state.logins.setup.close();
    }
    created?;
    let user = state.accounts.user(&user.name).await?;
    Ok((StatusCode::CREATED, Json(user.into())))
}
