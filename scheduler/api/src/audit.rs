//! The audit log: lists its entries.

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::Uri;
use cueline_model::{AccessScope, Right};
use cueline_store::{AuditFilter, AuditResult};

use crate::SharedState;
use crate::access::Caller;
use crate::list::{Filters, List, Page};
use crate::namespace::{ALL, InNamespace};
use crate::openapi;
use crate::problem::Problem;
use crate::query::Params;
use crate::view::{AuditPage, AuditView};

/// The list of entries.
const LIST: List = List {
    name: "audit entries",
    filters: &[
        "actor", "action", "object", "group", "result", "since", "until", ALL,
    ],
    sorts: &["-id", "id"],
};

/// The results, as filters name them.
const RESULTS: [(&str, AuditResult); 2] = [
    (AuditResult::Done.as_str(), AuditResult::Done),
    (AuditResult::Refused.as_str(), AuditResult::Refused),
];

/// Lists entries about what belongs to the namespace. Entries about what belongs to no namespace are only in the list of
/// all namespaces.
#[utoipa::path(
    get,
    path = "/api/v1/audit",
    operation_id = "audit_list",
    tag = "audit log",
    summary = "Lists entries of the audit log.",
    description = "The entries about what belongs to the namespace. Entries about what belongs to no namespace, such as users and dead letters without a verified origin, are only in the list of all namespaces.",
    params(
        ("actor" = Option<Vec<openapi::FilterText>>, Query, description = "Only entries of this actor, such as `user alice`; may be repeated."),
        ("action" = Option<Vec<openapi::FilterText>>, Query, description = "Only entries with this action, such as `job.pause`, or of all actions on one kind of object, such as `job`; may be repeated."),
        ("object" = Option<Vec<openapi::FilterText>>, Query, description = "Only entries about the object with this name or number; may be repeated. Names of jobs are qualified."),
        ("group" = Option<Vec<openapi::ListedName>>, Query, description = "Only entries about what belongs to this group; may be repeated."),
        ("result" = Option<Vec<openapi::AuditResult>>, Query, description = "Only entries with this result; may be repeated."),
        ("since" = Option<openapi::InstantText>, Query, description = "Not before this time."),
        ("until" = Option<openapi::InstantText>, Query, description = "Before this time."),
        ("sort" = Option<openapi::IdSort>, Query, description = "The order of the list."),
        ("limit" = Option<openapi::PageLimit>, Query, description = "The most entries of the response; 100 by default."),
        ("after" = Option<openapi::PageCursor>, Query, description = "The `next` of the previous page."),
        ("all_namespaces" = Option<openapi::AllNamespaces>, Query, description = "Whether entries of all namespaces are listed, and those about what belongs to none."),
    ),
    responses(
        (status = 200, description = "A page of entries.", body = AuditPage),
    )
)]
pub(crate) async fn list(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    uri: Uri,
) -> Result<Json<AuditPage>, Problem> {
    let (filter, page) = filter(&namespace, &uri)?;
    // The right counts in the whole namespace, or in all of them, so nothing has to be left out.
    let scope = filter.namespace.clone();
    let scope = scope.map_or(AccessScope::Cluster, AccessScope::Namespace);
    caller.require(Right::ReadAudit, &scope)?;
    let mut entries = state.audit.audit_entries(&filter).await?;
    let next = page.cut(&mut entries, |last| last.id);
    let now = state.store.now().await?;
    Ok(Json(AuditPage {
        entries: entries.into_iter().map(AuditView::from).collect(),
        next,
        now,
    }))
}

fn filter(namespace: &InNamespace, uri: &Uri) -> Result<(AuditFilter, Page<i64>), Problem> {
    let mut params = Params::of(uri, &LIST.parameters());
    let listed = namespace.listed(&mut params);
    let groups = Filters::new(&mut params, namespace, listed.as_ref()).groups();
    let results = params.words("result", &RESULTS);
    let (since, until) = params.window();
    let page: Page<i64> = LIST.page(&mut params);
    let filter = AuditFilter {
        after: page.after,
        order: page.order(),
        actors: params.texts("actor"),
        actions: params.texts("action"),
        objects: params.texts("object"),
        groups,
        namespace: listed,
        // Both results are all entries.
        result: results
            .first()
            .copied()
            .filter(|first| results.iter().all(|result| result == first)),
        since,
        until,
        limit: page.limit + 1,
    };
    params.finish()?;
    Ok((filter, page))
}
