//! The fires of the next 24 hours, by minute and group, and the instants at which many jobs are due.
//!
//! One forecast is read and computed at a time. It is kept for a minute, so that repeated requests cost nothing.

mod compute;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::Uri;
use cueline_model::{GroupName, Job, JobId, Namespace, Right, Timestamp};
use cueline_store::is_within;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::access::Caller;
use crate::list::Filters;
use crate::namespace::{ALL, InNamespace};
use crate::openapi;
use crate::problem::Problem;
use crate::query::Params;
use crate::view::Forecast;
use crate::{ApiState, SharedState};

/// The most jobs that a forecast reads. The others count as left out.
const MAX_JOBS: usize = 100_000;

/// Jobs that one call of the store reads.
const PAGE: usize = 500;

/// For how long a forecast is given again.
const KEPT: Duration = Duration::from_mins(1);

/// The most forecasts that are kept, each for other jobs.
const MAX_KEPT: usize = 8;

const MINUTE_MS: i64 = 60_000;

/// The forecasts of the last minute. The lock is held while one is read and computed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Forecasts {
    kept: Arc<Mutex<Vec<Kept>>>,
}

#[derive(Debug)]
struct Kept {
    /// The jobs that it is about.
    key: String,
    at: Instant,
    forecast: Arc<Forecast>,
}

/// Forecasts the fires of the next 24 hours.
#[utoipa::path(
    get,
    path = "/api/v1/forecast",
    operation_id = "forecast",
    tag = "jobs",
    params(
        ("group" = Option<Vec<openapi::ListedName>>, Query, description = "Only jobs of this group; may be repeated."),
        ("all_namespaces" = Option<openapi::AllNamespaces>, Query, description = "Whether jobs of all namespaces are counted."),
    ),
    responses(
        (status = 200, description = "The forecast. It may be a minute old.", body = Forecast),
        (status = 422, description = "A group is in another namespace than the request.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn show(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    uri: Uri,
) -> Result<Json<Forecast>, Problem> {
    let mut params = Params::of(&uri, &["group", ALL]);
    let listed = namespace.listed(&mut params);
    let groups = Filters::new(&mut params, &namespace, listed.as_ref()).groups();
    params.finish()?;
    caller.require_somewhere(Right::Read, listed.as_ref())?;
    let within = caller.readable(listed.as_ref());
    let key = format!("{listed:?} {within:?} {groups:?}");
    let mut kept = state.forecasts.kept.lock().await;
    kept.retain(|forecast| forecast.at.elapsed() < KEPT);
    if let Some(found) = kept.iter().find(|forecast| forecast.key == key) {
        return Ok(Json(Forecast::clone(&found.forecast)));
    }
    let is_wanted = |group: &GroupName| {
        is_listed(listed.as_ref(), group)
            && is_within(within.as_deref(), group)
            && (groups.is_empty() || groups.contains(group))
    };
    let (jobs, unread) = read(&state, is_wanted).await?;
    let now = state.store.now().await?.as_millis();
    let from = Timestamp::from_millis(now - now.rem_euclid(MINUTE_MS));
    let computed = state.large.compute(move || compute::forecast(&jobs, from));
    let mut forecast = computed.await?;
    forecast.jobs += unread;
    forecast.left_out += unread;
    if kept.len() >= MAX_KEPT {
        kept.remove(0);
    }
    kept.push(Kept {
        key,
        at: Instant::now(),
        forecast: Arc::new(forecast.clone()),
    });
    Ok(Json(forecast))
}

fn is_listed(listed: Option<&Namespace>, group: &GroupName) -> bool {
    listed.is_none_or(|namespace| group.is_in(namespace))
}

/// The enabled jobs of the wanted groups, and the number of those beyond the bound.
async fn read(
    state: &ApiState,
    is_wanted: impl Fn(&GroupName) -> bool,
) -> Result<(Vec<Arc<Job>>, u64), Problem> {
    let (mut ids, mut unread): (Vec<JobId>, u64) = (Vec::new(), 0);
    let mut after = None;
    loop {
        let page = state.store.job_briefs(after, PAGE).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        for brief in &page {
            if !brief.enabled || !is_wanted(&brief.group) {
                continue;
            }
            if ids.len() < MAX_JOBS {
                ids.push(brief.id);
            } else {
                unread += 1;
            }
        }
    }
    let mut jobs = Vec::with_capacity(ids.len());
    for page in ids.chunks(PAGE) {
        jobs.extend(state.store.definitions(page).await?);
    }
    Ok((jobs, unread))
}
