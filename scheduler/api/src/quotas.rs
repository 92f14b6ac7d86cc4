//! Namespaces: list them, and show, set and delete their quotas.
//!
//! `/quota` is about the namespace of the request, as all paths of one namespace are.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::Uri;
use cueline_model::{AccessScope, Grant, GroupName, Namespace, Right};
use cueline_store::{MAX_QUOTA, NamespaceFilter, Quotas};

use crate::access::Caller;
use crate::body::{Body, Fields};
use crate::list::{List, Page};
use crate::namespace::{InNamespace, NoNamespace};
use crate::openapi;
use crate::problem::Problem;
use crate::query::{self, Params};
use crate::view::{NamespacePage, NamespaceView, QuotaPage};
use crate::{ApiState, SharedState};

/// The list of namespaces.
const LIST: List = List {
    name: "namespaces",
    filters: &[],
    sorts: &["name"],
};

/// Lists namespaces by name.
#[utoipa::path(
    get,
    path = "/api/v1/namespaces",
    operation_id = "namespace_list",
    tag = "namespaces",
    summary = "Lists namespaces by name.",
    description = "A caller who may read all namespaces sees those with jobs, waiting runs or quotas. Another caller sees those of their grants.",
    params(
        ("sort" = Option<openapi::NamespaceSort>, Query, description = "The order of the list."),
        ("limit" = Option<openapi::PageLimit>, Query, description = "The most entries of the response; 100 by default."),
        ("after" = Option<openapi::PageCursor>, Query, description = "The `next` of the previous page."),
    ),
    responses(
        (status = 200, description = "A page of namespaces.", body = NamespacePage),
    )
)]
pub(crate) async fn list(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    _: NoNamespace,
    uri: Uri,
) -> Result<Json<NamespacePage>, Problem> {
    let mut params = Params::of(&uri, &LIST.parameters());
    let page: Page<Namespace> = LIST.page(&mut params);
    params.finish()?;
    // One more than the page has tells whether there is a next page.
    let limit = page.limit + 1;
    let names =
        (!caller.may_everywhere(Right::Read)).then(|| granted(&caller, page.after.as_ref(), limit));
    let filter = NamespaceFilter {
        names: names.clone(),
        after: page.after.clone(),
        limit,
    };
    let found = state.store.namespaces(&filter).await?;
    let mut found: Vec<QuotaPage> = found.into_iter().map(QuotaPage::from).collect();
    let mut namespaces: Vec<NamespaceView> = match names {
        None => found.into_iter().map(NamespaceView::from).collect(),
        Some(names) => names
            .into_iter()
            .map(|name| {
                let place = found.iter().position(|page| page.namespace == name);
                let page = place.map(|place| found.swap_remove(place));
                visible(&caller, page.unwrap_or_else(|| QuotaPage::unused(name)))
            })
            .collect(),
    };
    let next = page.cut(&mut namespaces, |last| last.namespace.clone());
    let now = state.store.now().await?;
    Ok(Json(NamespacePage {
        namespaces,
        next,
        now,
    }))
}

/// At most `limit` namespaces after `after` of the caller's grants in which they may read something.
fn granted(caller: &Caller, after: Option<&Namespace>, limit: usize) -> Vec<Namespace> {
    let of_grant = |grant: &Grant| {
        let of_group = grant.group.as_ref().map(GroupName::namespace);
        of_group.or_else(|| grant.namespace.clone())
    };
    let grants = caller.grants.iter();
    let named: BTreeSet<Namespace> = grants
        .chain(caller.owner_grants.iter().flatten())
        .filter_map(of_grant)
        .filter(|name| after.is_none_or(|after| name > after))
        .filter(|name| caller.access.allows_somewhere_in(Right::Read, name))
        .collect();
    named.into_iter().take(limit).collect()
}

/// The numbers are about all groups of the namespace.
fn visible(caller: &Caller, page: QuotaPage) -> NamespaceView {
    let whole = AccessScope::Namespace(page.namespace.clone());
    if caller.access.allows(Right::Read, &whole) {
        return page.into();
    }
    NamespaceView {
        namespace: page.namespace,
        quotas: None,
        jobs: None,
        waiting_runs: None,
    }
}

async fn read(state: &ApiState, namespace: Namespace) -> Result<QuotaPage, Problem> {
    let filter = NamespaceFilter {
        names: Some(vec![namespace.clone()]),
        after: None,
        limit: 1,
    };
    let found = state.store.namespaces(&filter).await?;
    let found = found.into_iter().next();
    Ok(found.map_or_else(|| QuotaPage::unused(namespace), QuotaPage::from))
}

/// Shows the quotas of the namespace and its present use of them.
#[utoipa::path(
    get,
    path = "/api/v1/quota",
    operation_id = "quota_show",
    tag = "namespaces",
    responses(
        (status = 200, description = "The quotas and their use.", body = QuotaPage),
    )
)]
pub(crate) async fn show(
    State(state): State<SharedState>,
    InNamespace(namespace): InNamespace,
    uri: Uri,
) -> Result<Json<QuotaPage>, Problem> {
    query::none(&uri)?;
    read(&state, namespace).await.map(Json)
}

/// Replaces the quotas of the namespace. A quota that is left out is no limit.
#[utoipa::path(
    put,
    path = "/api/v1/quota",
    operation_id = "quota_set",
    tag = "namespaces",
    request_body = openapi::NewQuotas,
    responses(
        (status = 200, description = "The quotas and their use.", body = QuotaPage),
        (status = 409, description = "The quotas have another version, or too many namespaces have quotas.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn set(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    InNamespace(namespace): InNamespace,
    uri: Uri,
    body: Body,
) -> Result<Json<QuotaPage>, Problem> {
    query::none(&uri)?;
    let mut fields = body.given()?.fields(&[
        "max_jobs",
        "max_waiting_runs",
        "max_triggers_per_minute",
        "if_version",
    ]);
    let most = i64::try_from(MAX_QUOTA).unwrap_or(i64::MAX);
    let quotas = Quotas {
        max_jobs: number(&mut fields, "max_jobs", most),
        max_waiting_runs: number(&mut fields, "max_waiting_runs", most),
        max_triggers_per_minute: number(&mut fields, "max_triggers_per_minute", most),
    };
    let if_version = number(&mut fields, "if_version", i64::MAX);
    fields.finish()?;
    let by = &caller.actor;
    state
        .store
        .set_quotas(&namespace, &quotas, if_version, by)
        .await?;
    read(&state, namespace).await.map(Json)
}

/// A whole number from 0 to `most`, if it is given.
fn number(fields: &mut Fields, name: &str, most: i64) -> Option<u64> {
    fields
        .has(name)
        .then(|| fields.number(name, 0, 0..=most))
        .and_then(|number| u64::try_from(number).ok())
}

/// Deletes the quotas of the namespace. Its jobs and runs stay.
#[utoipa::path(
    delete,
    path = "/api/v1/quota",
    operation_id = "quota_delete",
    tag = "namespaces",
    responses(
        (status = 200, description = "The namespace has no quotas.", body = QuotaPage),
    )
)]
pub(crate) async fn delete(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    InNamespace(namespace): InNamespace,
    uri: Uri,
) -> Result<Json<QuotaPage>, Problem> {
    query::none(&uri)?;
    let none = Quotas::default();
    state
        .store
        .set_quotas(&namespace, &none, None, &caller.actor)
        .await?;
    read(&state, namespace).await.map(Json)
}
