//! Users: lists, creates, changes and deletes them, and sets their passwords.
//!
//! A caller changes a user only if all of the user's grants are within what the caller manages. Otherwise the caller could
//! set the password of somebody who may do more.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::{StatusCode, Uri};
use cueline_model::{AccessScope, Grant, GroupName, Right};
use cueline_store::{ErrorKind, Login, NameFilter, NewUser, StoreError, StoredUser, UserChange};

use super::{MAX_NAME_BYTES, MAX_TEXT_BYTES};
use crate::ApiState;
use crate::access::password::{given_password, new_password, required_new_password};
use crate::access::{Caller, grants};
use crate::body::Body;
use crate::list::{List, Page, page_of};
use crate::namespace::NoNamespace;
use crate::openapi;
use crate::problem::{FieldProblem, Problem};
use crate::query::{self, Params};
use crate::view::{UserPage, UserRef, UserView};

type UserPath = Result<Path<String>, PathRejection>;

/// Users in one read of the store. All users are read within
/// [`MAX_USERS`](cueline_store::MAX_USERS) / 1,000 reads, so a page is never short.
const USERS_IN_READ: usize = 1_000;

/// The list of users.
const LIST: List = List {
    name: "users",
    filters: &["name", "group", "state"],
    sorts: &["name", "-name", "created_at", "-created_at"],
};

/// Whether a user may log in, as filters name it.
const STATES: [(&str, bool); 2] = [("enabled", true), ("disabled", false)];

/// The time of creation, in a list that is sorted by it, and the name in lower case.
type UserKey = (i64, String);

/// Lists the users that the caller may know of.
#[utoipa::path(
    get,
    path = "/api/v1/users",
    operation_id = "user_list",
    tag = "accounts",
    params(
        ("name" = Option<Vec<openapi::UserNameFilter>>, Query, description = "Only users with this login name; may be repeated. Upper and lower case are the same."),
        ("group" = Option<Vec<openapi::ListedName>>, Query, description = "Only users with a grant for this very group, with its namespace; may be repeated."),
        ("state" = Option<Vec<openapi::UserState>>, Query, description = "Only users in this state; may be repeated."),
        ("sort" = Option<openapi::UserSort>, Query, description = "The order of the list."),
        ("limit" = Option<openapi::PageLimit>, Query, description = "The most entries of the response; 100 by default."),
        ("after" = Option<openapi::PageCursor>, Query, description = "The `next` of the previous page."),
    ),
    responses(
        (status = 200, description = "A page of users.", body = UserPage),
    )
)]
pub(crate) async fn list(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    _: NoNamespace,
    uri: Uri,
) -> Result<Json<UserPage>, Problem> {
    let mut params = Params::of(&uri, &LIST.parameters());
    let names: Vec<NameFilter> = params.names().into_iter().map(lower_case).collect();
    let groups = params.many("group", |text| {
        text.parse::<GroupName>().map_err(|e| e.to_string())
    });
    let states = params.words("state", &STATES);
    let page: Page<UserKey> = LIST.page(&mut params);
    params.finish()?;
    let wanted = |user: &StoredUser| {
        grants::may_see(&caller.access, &user.grants)
            && (states.is_empty() || states.contains(&user.enabled))
            && has_name(&names, &user.name)
            && has_grant_for(&groups, &user.grants)
    };
    let mut users = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let read = state
            .accounts
            .users(after.as_deref(), USERS_IN_READ)
            .await?;
        let is_last = read.len() < USERS_IN_READ;
        after = read.last().map(|user| user.name.clone());
        users.extend(read.into_iter().filter(wanted));
        if is_last {
            break;
        }
    }
    let by_time = page.field() == "created_at";
    let (users, next) = page_of(&page, users, |user| {
        let at = if by_time {
            user.created_at.as_millis()
        } else {
            0
        };
        (at, user.name.to_lowercase())
    });
    Ok(Json(UserPage {
        users: users.into_iter().map(UserView::from).collect(),
        next,
        now: state.store.now().await?,
    }))
}

fn lower_case(filter: NameFilter) -> NameFilter {
    match filter {
        NameFilter::Exact(name) => NameFilter::Exact(name.to_lowercase()),
        NameFilter::Prefix(start) => NameFilter::Prefix(start.to_lowercase()),
    }
}

fn has_name(wanted: &[NameFilter], name: &str) -> bool {
    let name = name.to_lowercase();
    wanted.is_empty() || wanted.iter().any(|wanted| wanted.matches(&name))
}

/// Whether one of the grants is for one of these very groups.
pub(super) fn has_grant_for(groups: &[GroupName], grants: &[Grant]) -> bool {
    let is_for = |grant: &Grant| grant.group.as_ref().is_some_and(|own| groups.contains(own));
    groups.is_empty() || grants.iter().any(is_for)
}

/// Creates a user.
#[utoipa::path(
    post,
    path = "/api/v1/users",
    operation_id = "user_create",
    tag = "accounts",
    request_body = openapi::NewUser,
    responses(
        (status = 201, description = "The user.", body = UserView),
        (status = 409, description = "There is a user with that name, or the most users exist.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The user does not fit.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn create(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    _: NoNamespace,
    uri: Uri,
    body: Body,
) -> Result<(StatusCode, Json<UserView>), Problem> {
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
    };
    state.accounts.create_user(&user, &caller.actor).await?;
    let user = state.accounts.user(&user.name).await?;
    Ok((StatusCode::CREATED, Json(user.into())))
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
    ),
    responses(
        (status = 200, description = "The user.", body = UserView),
    )
)]
pub(crate) async fn show(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    _: NoNamespace,
    path: UserPath,
    uri: Uri,
) -> Result<Json<UserView>, Problem> {
    query::none(&uri)?;
    let user = seen(&state, &caller, &user_name(path)?).await?;
    Ok(Json(user.into()))
}

/// Changes the fields that are given.
#[utoipa::path(
    patch,
    path = "/api/v1/users/{name}",
    operation_id = "user_change",
    tag = "accounts",
    params(
        ("name" = openapi::LoginName, Path, description = "The login name of the user."),
    ),
    request_body = openapi::UserChange,
    responses(
        (status = 200, description = "The user after the change.", body = UserView),
        (status = 409, description = "The user has another version, or is the last one who may do everything.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The change does not fit.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn change(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    _: NoNamespace,
    path: UserPath,
    uri: Uri,
    body: Body,
) -> Result<Json<UserView>, Problem> {
    query::none(&uri)?;
    let name = user_name(path)?;
    let mut fields = body.fields(&["display_name", "grants", "enabled", "if_version"]);
    let display_name = fields.text("display_name", MAX_TEXT_BYTES);
    let new_grants = grants::read(&mut fields);
    let enabled = fields.has("enabled").then(|| fields.flag("enabled"));
    let if_version = fields
        .has("if_version")
        .then(|| fields.number("if_version", 1, 1..=i64::MAX).unsigned_abs());
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
        // The rights were checked for this version.
        if_version: Some(if_version.unwrap_or(user.version)),
    };
    let accounts = &state.accounts;
    accounts
        .change_user(&user.name, &change, &caller.actor)
        .await?;
    Ok(Json(accounts.user(&user.name).await?.into()))
}

/// Deletes a user with all sessions and tokens.
#[utoipa::path(
    delete,
    path = "/api/v1/users/{name}",
    operation_id = "user_delete",
    tag = "accounts",
    params(
        ("name" = openapi::LoginName, Path, description = "The login name of the user."),
    ),
    responses(
        (status = 200, description = "The user is deleted.", body = UserRef),
        (status = 409, description = "The user is the last one who may do everything.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn delete(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    _: NoNamespace,
    path: UserPath,
    uri: Uri,
) -> Result<Json<UserRef>, Problem> {
    query::none(&uri)?;
    let user = managed(&state, &caller, &user_name(path)?).await?;
    let deleted = state.accounts.delete_user(&user.name, &caller.actor);
    deleted.await?;
    Ok(Json(UserRef { name: user.name }))
}

/// Sets a password. All sessions of the user end. For the own password, the old one is needed too.
#[utoipa::path(
    post,
    path = "/api/v1/users/{name}/password",
    operation_id = "user_password",
    tag = "accounts",
    summary = "Sets a password.",
    description = "All sessions of the user end. For the own password, the old one is needed too.",
    params(
        ("name" = openapi::LoginName, Path, description = "The login name of the user."),
    ),
    request_body = openapi::NewPassword,
    responses(
        (status = 200, description = "The password is set.", body = UserRef),
        (status = 409, description = "The user has no password to replace, or was changed meanwhile.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The change does not fit.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn set_password(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    _: NoNamespace,
    path: UserPath,
    uri: Uri,
    body: Body,
) -> Result<Json<UserRef>, Problem> {
    query::none(&uri)?;
    let name = user_name(path)?;
    let is_own = caller.is_user(&name);
    let known: &[&str] = if is_own {
        &["password", "old_password"]
    } else {
        &["password"]
    };
    let mut fields = body.fields(known);
    let password = required_new_password(&mut fields, "password");
    let old = is_own.then(|| given_password(&mut fields, "old_password"));
    fields.finish()?;
    let user = match old {
        Some(old) => own_user(&state, &caller, &name, old).await?,
        None => managed(&state, &caller, &name).await?,
    };
    let hash = state.logins.passwords.hash(password).await?;
    let change = UserChange {
        login: Some(Login::Password(hash)),
        if_version: Some(user.version),
        ..UserChange::default()
    };
    let accounts = &state.accounts;
    accounts
        .change_user(&user.name, &change, &caller.actor)
        .await?;
    Ok(Json(UserRef { name: user.name }))
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
    if grants::may_manage(&caller.access, &user.grants) {
        return Ok(user);
    }
    Err(Problem::forbidden(format!(
        "you may not change user {:?}, who may do what you may not",
        user.name
    )))
}

fn no_user(name: &str) -> Problem {
    Problem::not_found(format!("there is no user {name:?}"))
}
