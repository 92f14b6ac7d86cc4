//! The audit log: lists its entries.

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::Uri;
use cueline_model::{AccessScope, Right};
use cueline_store::{AuditFilter, AuditResult};

use crate::ApiState;
use crate::access::Caller;
use crate::namespace::{ALL, InNamespace};
use crate::openapi;
use crate::problem::Problem;
use crate::query::Params;
use crate::view::{AuditPage, AuditView};

/// The parameters of a list.
const PARAMETERS: [&str; 9] = [
    "actor", "action", "object", "result", "from", "to", "before", "limit", ALL,
];

/// Lists entries about what belongs to the namespace, newest first. Entries about what belongs to no namespace are only
/// in the list of all namespaces.
#[utoipa::path(
    get,
    path = "/api/v1/audit",
    operation_id = "audit_list",
    tag = "audit log",
    summary = "Lists entries of the audit log, newest first.",
    description = "The entries about what belongs to the namespace. Entries about what belongs to no namespace, such as dead letters and users, are only in the list of all namespaces.",
    params(
        ("actor" = Option<openapi::Text>, Query, description = "Only entries of this actor, such as `user alice`."),
        ("action" = Option<openapi::Text>, Query, description = "Only entries with this action, such as `job.pause`, or of all actions on one kind of object, such as `job`."),
        ("object" = Option<openapi::Text>, Query, description = "Only entries about the object with this name or number. Names of jobs are qualified."),
        ("result" = Option<openapi::AuditResult>, Query, description = "Only entries with this result."),
        ("from" = Option<openapi::InstantText>, Query, description = "Not before this time."),
        ("to" = Option<openapi::InstantText>, Query, description = "Before this time."),
        ("before" = Option<openapi::Before>, Query, description = "The `next` of the previous page."),
        ("limit" = Option<openapi::PageLimit>, Query, description = "The most entries of the response; 100 by default."),
        ("all_namespaces" = Option<openapi::AllNamespaces>, Query, description = "Whether entries of all namespaces are listed, and those about what belongs to none."),
    ),
    responses(
        (status = 200, description = "A page of entries, newest first.", body = AuditPage),
    )
)]
pub(crate) async fn list(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    uri: Uri,
) -> Result<Json<AuditPage>, Problem> {
    let filter = filter(&namespace, &uri)?;
    // Entries are not filtered by group. So the right is needed in the whole namespace, or in all of them.
    let scope = filter.namespace.clone();
    let scope = scope.map_or(AccessScope::Cluster, AccessScope::Namespace);
    caller.require(Right::ReadAudit, &scope)?;
    let entries = state.audit.audit_entries(&filter).await?;
    let now = state.store.now().await?;
    let is_full = entries.len() >= filter.limit;
    Ok(Json(AuditPage {
        next: entries.last().filter(|_| is_full).map(|last| last.id),
        entries: entries.into_iter().map(AuditView::from).collect(),
        now,
    }))
}

fn filter(namespace: &InNamespace, uri: &Uri) -> Result<AuditFilter, Problem> {
    let mut params = Params::of(uri, &PARAMETERS);
    let text = |text: &str| Ok(text.to_owned());
    let filter = AuditFilter {
        actor: params.parsed("actor", text),
        action: params.parsed("action", text),
        object: params.parsed("object", text),
        namespace: namespace.listed(&mut params),
        result: params.parsed("result", result),
        from: params.instant("from"),
        to: params.instant("to"),
        before: params.parsed("before", |text| {
            text.parse()
                .map_err(|_| format!("{text:?} is not the number of an entry"))
        }),
        limit: params.limit(100),
    };
    params.finish()?;
    Ok(filter)
}

fn result(text: &str) -> Result<AuditResult, String> {
    [AuditResult::Done, AuditResult::Refused]
        .into_iter()
        .find(|result| result.as_str() == text)
        .ok_or_else(|| format!("{text:?} is not a result; give done or refused"))
}
