//! The audit log: lists its entries.

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use cueline_model::Namespace;
use cueline_store::{AuditFilter, AuditResult};

use crate::ApiState;
use crate::problem::Problem;
use crate::query::Params;
use crate::view::{AuditPage, AuditView};

/// The parameters of a list.
const PARAMETERS: [&str; 9] = [
    "actor",
    "action",
    "object",
    "namespace",
    "result",
    "from",
    "to",
    "before",
    "limit",
];

/// Lists entries, newest first.
pub(crate) async fn list(
    State(state): State<ApiState>,
    uri: Uri,
) -> Result<Json<AuditPage>, Problem> {
    let filter = filter(&uri)?;
    let entries = state.audit.audit_entries(&filter).await?;
    let now = state.store.now().await?;
    let is_full = entries.len() >= filter.limit;
    Ok(Json(AuditPage {
        next: entries.last().filter(|_| is_full).map(|last| last.id),
        entries: entries.into_iter().map(AuditView::from).collect(),
        now,
    }))
}

fn filter(uri: &Uri) -> Result<AuditFilter, Problem> {
    let mut params = Params::of(uri, &PARAMETERS);
    let text = |text: &str| Ok(text.to_owned());
    let filter = AuditFilter {
        actor: params.parsed("actor", text),
        action: params.parsed("action", text),
        object: params.parsed("object", text),
        namespace: params.parsed("namespace", |text| {
            text.parse::<Namespace>().map_err(|e| e.to_string())
        }),
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
