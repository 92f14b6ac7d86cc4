//! Lists users.

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::Uri;
use cueline_model::{Grant, GroupName};
use cueline_store::{NameFilter, StoredUser, name_key};

use crate::SharedState;
use crate::access::{Caller, grants};
use crate::list::{List, Page, page_of};
use crate::namespace::NoNamespace;
use crate::openapi;
use crate::problem::Problem;
use crate::query::Params;
use crate::view::{UserPage, UserView};

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
    State(state): State<SharedState>,
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
        (at, name_key(&user.name))
    });
    Ok(Json(UserPage {
        users: users.into_iter().map(UserView::from).collect(),
        next,
        now: state.store.now().await?,
    }))
}

fn lower_case(filter: NameFilter) -> NameFilter {
    match filter {
        NameFilter::Exact(name) => NameFilter::Exact(name_key(&name)),
        NameFilter::Prefix(start) => NameFilter::Prefix(name_key(&start)),
    }
}

fn has_name(wanted: &[NameFilter], name: &str) -> bool {
    let key = name_key(name);
    wanted.is_empty() || wanted.iter().any(|wanted| wanted.matches(&key))
}

/// Whether one of the grants is for one of these very groups.
pub(super) fn has_grant_for(groups: &[GroupName], grants: &[Grant]) -> bool {
    let is_for = |grant: &Grant| grant.group.as_ref().is_some_and(|own| groups.contains(own));
    groups.is_empty() || grants.iter().any(is_for)
}
