//! Users: creates, shows, changes and deletes them, and sets their passwords.
//!
//! A caller changes a user only if all of the user's grants are within what the caller manages. Otherwise the caller could
//! set the password of somebody who may do more.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use cueline_model::{AccessScope, Grant, Right};
use cueline_store::{
    ErrorKind, Login, NewUser, Precondition, Revision, StoreError, StoredUser, UserChange,
};

use super::login::found;
use super::{MAX_NAME_BYTES, MAX_TEXT_BYTES};
use crate::access::password::{given_password, new_password, required_new_password};
use crate::access::{Caller, grants};
use crate::body::Body;
use crate::idempotency::IdempotencyKey;
use crate::namespace::NoNamespace;
use crate::openapi;
use crate::preconditions::{IfMatch, IfNoneMatch, Tagged, tagged};
use crate::problem::{FieldProblem, Problem};
use crate::query;
use crate::view::{PasswordSet, UserRef, UserView};
use crate::{ApiState, SharedState};

type UserPath = Result<Path<String>, PathRejection>;

/// Creates a user.
#[utoipa::path(
    post,
    path = "/api/v1/users",
    operation_id = "user_create",
    tag = "accounts",
    params(
        ("Idempotency-Key" = Option<openapi::IdempotencyKeyHeader>, Header, description = "A second request of the same caller with the same key creates no user."),
    ),
    request_body = openapi::NewUser,
    responses(
        (status = 200, description = "An earlier request with the same idempotency key created the user.", body = UserView, headers(("ETag" = String, description = "The version of the user."))),
        (status = 201, description = "The user.", body = UserView, headers(("ETag" = String, description = "The version of the user."))),
        (status = 409, description = "There is a user with that name, or the most users exist.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The user does not fit, or the idempotency key was used for another user.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn create(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    _: NoNamespace,
    uri: Uri,
    IdempotencyKey(idempotency_key): IdempotencyKey,
    body: Body,
) -> Result<(StatusCode, Tagged<UserView>), Problem> {
    query::none(&uri)?;
    let mut fields = body.fields(&["name", "display_name", "password", "grants"]);
    let name = fields.required_text("name", MAX_NAME_BYTES);
    let display_name = fields.text("display_name", MAX_TEXT_BYTES);
    let password = new_password(&mut fields, "password");
    let grants = grants::read(&mut fields).unwrap_or_default();
    fields.finish()?;
    check_grants(&caller, &grants)?;
    let login = match password {
        Some(password) => Login::Password(state.logins.passwords.hash(password).await?),
        None => Login::None,
    };
    let user = NewUser {
        name,
        display_name: display_name.unwrap_or_default(),
        login,
        grants,
        idempotency_key,
    };
    match state.accounts.create_user(&user, &caller.actor).await {
        Ok(_) => {
            let user = state.accounts.user(&user.name).await?;
            Ok((StatusCode::CREATED, shown(user)))
        }
        // The user has no secret that only the first answer has.
        Err(error) if error.kind() == ErrorKind::AlreadyCreated => {
            let user = seen(&state, &caller, &user.name).await?;
            Ok((StatusCode::OK, shown(user)))
        }
        Err(error) => Err(error.into()),
    }
}

/// A user with the tag of the present version.
fn shown(user: StoredUser) -> Tagged<UserView> {
    tagged(Revision::from(&user), user.into())
}

/// A user without grants belongs to no namespace, so only an administrator of all namespaces makes one.
fn check_grants(caller: &Caller, given: &[Grant]) -> Result<(), Problem> {
    if given.is_empty() {
        return caller.require(Right::ManageAccounts, &AccessScope::Cluster);
    }
    grants::check_given(caller, given)
}

/// Shows a user.
#[utoipa::path(
    get,
    path = "/api/v1/users/{name}",
    operation_id = "user_show",
    tag = "accounts",
    params(
        ("name" = openapi::LoginName, Path, description = "The login name of the user."),
        ("If-None-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of an earlier response."),
    ),
    responses(
        (status = 200, description = "The user.", body = UserView, headers(("ETag" = String, description = "The version of the user."))),
        (status = 304, description = "The user has the version in `If-None-Match`.", headers(("ETag" = String, description = "The version of the user."))),
    )
)]
pub(crate) async fn show(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    _: NoNamespace,
    path: UserPath,
    uri: Uri,
    if_none_match: IfNoneMatch,
) -> Result<Response, Problem> {
    query::none(&uri)?;
    let user = seen(&state, &caller, &user_name(path)?).await?;
    Ok(if_none_match.answer(Revision::from(&user), UserView::from(user)))
}

/// Changes the fields that are given, at least one.
#[utoipa::path(
    patch,
    path = "/api/v1/users/{name}",
    operation_id = "user_change",
    tag = "accounts",
    params(
        ("name" = openapi::LoginName, Path, description = "The login name of the user."),
        ("If-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of the user."),
    ),
    request_body = openapi::UserChange,
    responses(
        (status = 200, description = "The user after the change.", body = UserView, headers(("ETag" = String, description = "The version of the user."))),
        (status = 412, description = "The user has another version than in `If-Match`.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The user has another version, or is the last one who may do everything.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The change does not fit.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn change(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    _: NoNamespace,
    path: UserPath,
    uri: Uri,
    IfMatch(condition): IfMatch,
    body: Body,
) -> Result<Tagged<UserView>, Problem> {
    query::none(&uri)?;
    let name = user_name(path)?;
    let mut fields = body.fields(&["display_name", "grants", "enabled", "if_version"]);
    let changed = ["display_name", "grants", "enabled"];
    let has_change = changed.iter().any(|name| fields.has(name));
    let display_name = fields.text("display_name", MAX_TEXT_BYTES);
    let new_grants = grants::read(&mut fields);
    let enabled = fields.has("enabled").then(|| fields.flag("enabled"));
    let if_version = fields
        .has("if_version")
        .then(|| fields.number("if_version", 1, 1..=i64::MAX).unsigned_abs());
    if !has_change {
        fields.record(
            "",
            "nothing to change; give at least one of display_name, grants and enabled",
        );
    }
    fields.finish()?;
    let user = managed(&state, &caller, &name).await?;
    if let Some(given) = &new_grants {
        check_grants(&caller, given)?;
    }
    let change = UserChange {
        display_name,
        login: None,
        grants: new_grants,
        enabled,
        revoke_tokens: false,
        if_version,
        condition: as_seen("change the user", &user, &condition)?,
    };
    let accounts = &state.accounts;
    accounts
        .change_user(&user.name, &change, &caller.actor)
        .await
        .map_err(|error| changed_meanwhile(&condition, error))?;
    Ok(shown(accounts.user(&user.name).await?))
}

/// Deletes a user with all sessions and tokens.
#[utoipa::path(
    delete,
    path = "/api/v1/users/{name}",
    operation_id = "user_delete",
    tag = "accounts",
    params(
        ("name" = openapi::LoginName, Path, description = "The login name of the user."),
        ("If-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of the user."),
    ),
    responses(
        (status = 200, description = "The user is deleted.", body = UserRef),
        (status = 412, description = "The user has another version than in `If-Match`.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The user is the last one who may do everything, or was changed meanwhile.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn delete(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    _: NoNamespace,
    path: UserPath,
    uri: Uri,
    IfMatch(condition): IfMatch,
) -> Result<Json<UserRef>, Problem> {
    query::none(&uri)?;
    let user = managed(&state, &caller, &user_name(path)?).await?;
    let seen = as_seen("delete the user", &user, &condition)?;
    let deleted = state
        .accounts
        .delete_user_if(&user.name, &seen, &caller.actor);
    deleted
        .await
        .map_err(|error| changed_meanwhile(&condition, error))?;
    Ok(Json(UserRef { name: user.name }))
}

/// Sets a password. All sessions of the user end, and the user's API tokens are revoked. For the own password, the old one
/// is needed too.
#[utoipa::path(
    post,
    path = "/api/v1/users/{name}/password",
    operation_id = "user_password",
    tag = "accounts",
    summary = "Sets a password.",
    description = "All sessions of the user end, and the user's API tokens are revoked unless `keep_tokens` is given. For the own password, the old one is needed too; without it, or with a wrong one, the response is 403.",
    params(
        ("name" = openapi::LoginName, Path, description = "The login name of the user."),
        ("If-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of the user."),
    ),
    request_body = openapi::NewPassword,
    responses(
        (status = 200, description = "The password is set.", body = PasswordSet, headers(("ETag" = String, description = "The version of the user."))),
        (status = 412, description = "The user has another version than in `If-Match`.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The user has no password to replace, or was changed meanwhile.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The change does not fit.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn set_password(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    _: NoNamespace,
    path: UserPath,
    uri: Uri,
    IfMatch(condition): IfMatch,
    body: Body,
) -> Result<Tagged<PasswordSet>, Problem> {
    query::none(&uri)?;
    let name = user_name(path)?;
    let named = found(&state, &name).await?;
    let is_own = named.is_some_and(|user| caller.is_user(user.id));
    let mut fields = body.fields(&["password", "old_password", "keep_tokens"]);
    let password = required_new_password(&mut fields, "password");
    let has_old = fields.has("old_password");
    let old = has_old.then(|| given_password(&mut fields, "old_password"));
    let keep_tokens = fields.flag("keep_tokens");
    fields.finish()?;
    let user = match (is_own, old) {
        (true, Some(old)) => own_user(&state, &caller, &name, old).await?,
        (true, None) => {
            return Err(Problem::forbidden_fields(vec![FieldProblem::new(
                "old_password",
                "missing; give the present password, because it is your own",
            )]));
        }
        (false, _) => managed(&state, &caller, &name).await?,
    };
    let hash = state.logins.passwords.hash(password).await?;
    let change = UserChange {
        login: Some(Login::Password(hash)),
        // Who had the old password, or a session, may have made some.
        revoke_tokens: !keep_tokens,
        condition: as_seen("change the user", &user, &condition)?,
        ..UserChange::default()
    };
    let changed = state
        .accounts
        .change_user(&user.name, &change, &caller.actor)
        .await
        .map_err(|error| changed_meanwhile(&condition, error))?;
    let user = StoredUser {
        version: changed.version,
        ..user
    };
    let revision = Revision::from(&user);
    let answer = PasswordSet {
        name: user.name,
        tokens_revoked: changed.tokens_revoked,
    };
    Ok(tagged(revision, answer))
}

/// The caller, who proves to know the old password. Who has got hold of a session or a token does not.
async fn own_user(
    state: &ApiState,
    caller: &Caller,
    name: &str,
    old: String,
) -> Result<StoredUser, Problem> {
    state.logins.attempt(name, caller.peer.address)?;
    let user = state.accounts.user(name).await?;
    let Login::Password(hash) = &user.login else {
        return Err(Problem::refused(format!(
            "user {:?} has no password to replace; an administrator can set one",
            user.name
        )));
    };
    let passwords = &state.logins.passwords;
    if !passwords.verify(Some(hash.clone()), old).await? {
        return Err(Problem::forbidden_fields(vec![FieldProblem::new(
            "old_password",
            "is wrong",
        )]));
    }
    state.logins.succeeded(name, caller.peer.address);
    Ok(user)
}

fn user_name(path: UserPath) -> Result<String, Problem> {
    let Path(name) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    if name.len() > MAX_NAME_BYTES {
        let message = format!("a login name has at most {MAX_NAME_BYTES} bytes");
        return Err(Problem::malformed_fields(vec![FieldProblem::new(
            "name", message,
        )]));
    }
    Ok(name)
}

/// The user, if the caller may know of them. Otherwise the answer is that of an unknown user.
async fn seen(state: &ApiState, caller: &Caller, name: &str) -> Result<StoredUser, Problem> {
    let unknown = |error: StoreError| match error.kind() {
        ErrorKind::NotFound => no_user(name),
        _ => error.into(),
    };
    let user = state.accounts.user(name).await.map_err(unknown)?;
    if grants::may_see(&caller.access, &user.grants) {
        Ok(user)
    } else {
        Err(no_user(name))
    }
}

/// The user, if the caller may change them.
async fn managed(state: &ApiState, caller: &Caller, name: &str) -> Result<StoredUser, Problem> {
    let user = seen(state, caller, name).await?;
    // Grants that this server cannot read may be all rights.
    let is_managed = if user.unreadable_grants.is_some() {
        grants::may_manage(&caller.access, &[Grant::everything()])
    } else {
        grants::may_manage(&caller.access, &user.grants)
    };
    if is_managed {
        return Ok(user);
    }
    Err(Problem::forbidden(format!(
        "you may not change user {:?}, who may do what you may not",
        user.name
    )))
}

/// The precondition of a change: rights, or the old password, were checked for the user in this state. Fails if it does not
/// meet the condition of the request. `what` completes "failed to …".
fn as_seen(
    what: &str,
    user: &StoredUser,
    of_request: &Precondition,
) -> Result<Precondition, StoreError> {
    let seen = Revision::from(user);
    of_request.require(what, &user.name, Some(seen))?;
    Ok(Precondition::OneOf(vec![seen]))
}

/// A refusal of a change with [`as_seen`]. A caller who named no version has nothing to correct.
fn changed_meanwhile(of_request: &Precondition, error: StoreError) -> Problem {
    let named_version = matches!(of_request, Precondition::OneOf(_));
    if error.kind() == ErrorKind::Precondition && !named_version {
        return Problem::refused(error.to_string());
    }
    error.into()
}

fn no_user(name: &str) -> Problem {
    Problem::not_found(format!("there is no user {name:?}"))
}
