//! What has raised alarms, and the deliveries of messages.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use cueline_model::{JobName, RuleName};
use cueline_store::AlarmFilter;

use crate::SharedState;
use crate::list::{List, Page};
use crate::namespace::InNamespace;
use crate::openapi;
use crate::path::number;
use crate::problem::Problem;
use crate::query::{self, Params};
use crate::view::{AlarmPage, AlarmView, DeliveryPage, DeliveryView};

type NumberPath = Result<Path<String>, PathRejection>;

/// The list of alarms.
const ALARMS: List = List {
    name: "alarms",
    filters: &["rule", "job"],
    sorts: &["-id"],
};

/// The list of deliveries.
const DELIVERIES: List = List {
    name: "deliveries",
    filters: &["rule"],
    sorts: &["-id"],
};

/// Reads the filters of both lists.
fn filter(params: &mut Params, namespace: &InNamespace, with_jobs: bool) -> AlarmFilter {
    let rule = params.parsed("rule", |text| {
        RuleName::in_namespace(&namespace.0, text).map_err(|error| error.to_string())
    });
    let job = with_jobs.then(|| {
        params.parsed("job", |text| {
            JobName::in_namespace(&namespace.0, text).map_err(|error| error.to_string())
        })
    });
    AlarmFilter {
        namespace: namespace.0.clone(),
        rule,
        job: job.flatten(),
        ..AlarmFilter::default()
    }
}

/// Lists alarms, newest first.
#[utoipa::path(
    get,
    path = "/api/v1/alarms",
    operation_id = "alarm_list",
    tag = "alarms",
    params(
        ("rule" = Option<openapi::Name>, Query, description = "Only alarms of this rule."),
        ("job" = Option<openapi::Name>, Query, description = "Only alarms about this job."),
        ("sort" = Option<openapi::AlarmSort>, Query, description = "The order of the list."),
        ("limit" = Option<openapi::PageLimit>, Query, description = "The most entries of the response; 100 by default."),
        ("after" = Option<openapi::PageCursor>, Query, description = "The `next` of the previous page."),
    ),
    responses((status = 200, description = "A page of alarms.", body = AlarmPage))
)]
pub(crate) async fn list(
    State(state): State<SharedState>,
    namespace: InNamespace,
    uri: Uri,
) -> Result<Json<AlarmPage>, Problem> {
    let mut params = Params::of(&uri, &ALARMS.parameters());
    let filter = filter(&mut params, &namespace, true);
    let page: Page<i64> = ALARMS.page(&mut params);
    params.finish()?;
    let filter = AlarmFilter {
        before: page.after,
        limit: page.limit + 1,
        ..filter
    };
    let mut alarms = state.store.alarm_events(&filter).await?;
    let next = page.cut(&mut alarms, |last| last.id);
    let alarms = alarms.into_iter().map(AlarmView::from).collect();
    Ok(Json(AlarmPage { alarms, next }))
}

/// Lists deliveries of alarms, newest first.
#[utoipa::path(
    get,
    path = "/api/v1/alarms/deliveries",
    operation_id = "alarm_delivery_list",
    tag = "alarms",
    params(
        ("rule" = Option<openapi::Name>, Query, description = "Only deliveries of this rule."),
        ("sort" = Option<openapi::AlarmSort>, Query, description = "The order of the list."),
        ("limit" = Option<openapi::PageLimit>, Query, description = "The most entries of the response; 100 by default."),
        ("after" = Option<openapi::PageCursor>, Query, description = "The `next` of the previous page."),
    ),
    responses((status = 200, description = "A page of deliveries.", body = DeliveryPage))
)]
pub(crate) async fn deliveries(
    State(state): State<SharedState>,
    namespace: InNamespace,
    uri: Uri,
) -> Result<Json<DeliveryPage>, Problem> {
    let mut params = Params::of(&uri, &DELIVERIES.parameters());
    let filter = filter(&mut params, &namespace, false);
    let page: Page<i64> = DELIVERIES.page(&mut params);
    params.finish()?;
    let filter = AlarmFilter {
        before: page.after,
        limit: page.limit + 1,
        ..filter
    };
    let mut deliveries = state.store.alarm_deliveries(&filter).await?;
    let next = page.cut(&mut deliveries, |last| last.id);
    let deliveries = deliveries.into_iter().map(DeliveryView::from).collect();
    Ok(Json(DeliveryPage { deliveries, next }))
}

/// Shows one delivery of an alarm.
#[utoipa::path(
    get,
    path = "/api/v1/alarms/deliveries/{id}",
    operation_id = "alarm_delivery_show",
    tag = "alarms",
    params(("id" = openapi::RunNumber, Path, description = "The number of the delivery.")),
    responses((status = 200, description = "The delivery.", body = DeliveryView))
)]
pub(crate) async fn delivery(
    State(state): State<SharedState>,
    namespace: InNamespace,
    path: NumberPath,
    uri: Uri,
) -> Result<Json<DeliveryView>, Problem> {
    query::none(&uri)?;
    let id = number(path, "delivery")?;
    let filter = AlarmFilter {
        namespace: namespace.0.clone(),
        before: Some(id.saturating_add(1)),
        limit: 1,
        ..AlarmFilter::default()
    };
    let found = state.store.alarm_deliveries(&filter).await?;
    let found = found.into_iter().find(|delivery| delivery.id == id);
    let found = found.ok_or_else(|| Problem::not_found(format!("there is no delivery {id}")))?;
    Ok(Json(found.into()))
}
