//! `/metrics`: numbers of this process for Prometheus. `docs/metrics.md` lists them, and a test compares both.

mod load;
mod requests;
mod scheduler;
mod sources;

use std::sync::Arc;

use axum::extract::State;
use axum::http::{Uri, header};
use axum::response::IntoResponse;
use cueline_http::metrics::{CONTENT_TYPE, Family, text};

use crate::SharedState;
use crate::problem::Problem;
use crate::query;

use scheduler::Numbers;

pub(crate) use requests::RequestCounts;
pub(crate) use sources::Sources;

/// Returns further families of the process that serves the API. It is called at each scrape and must not wait.
pub type ProcessMetrics = Arc<dyn Fn() -> Vec<Family> + Send + Sync>;

/// The metrics of this scheduler, its store, its broker and its process.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "metrics",
    tag = "server",
    responses(
        (status = 200, description = "Metrics as OpenMetrics text.", body = String, content_type = "application/openmetrics-text"),
    )
)]
pub(crate) async fn show(
    State(state): State<SharedState>,
    uri: Uri,
) -> Result<impl IntoResponse, Problem> {
    query::none(&uri)?;
    let reading = state.sources.read(&*state.store, &*state.admin).await;
    let mut families = scheduler::families(&Numbers {
        uptime: state.started.elapsed(),
        timeouts_paused: state.admin.executor_timeouts_paused().is_some(),
        claims_paused: state.admin.claims_paused().is_some(),
        since_start: state.admin.since_start(),
        counts: state.admin.counts(),
        reading: &reading,
    });
    families.extend(load::pools(&state.store.pool_use()));
    families.extend(state.requests.families());
    families.extend((state.process_metrics)());
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text(families)))
}
