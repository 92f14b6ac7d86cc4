//! The OpenAPI document of all routes, and the page that shows it.
//!
//! Handlers are annotated where they are. This module lists them, and adds what follows from a path alone: refusals,
//! security, and schemas that no type of this crate gives. It must not read the store.

#![allow(
    clippy::needless_for_each,
    reason = "the derived list of handlers has such a loop"
)]

mod assemble;
mod page;
mod refusals;

use std::sync::LazyLock;

use axum::http::{Uri, header};
use axum::response::IntoResponse;
use utoipa::OpenApi;

use crate::openapi;
use crate::problem::Problem;
use crate::query;
use page::PAGE;

/// The annotated handlers. A test compares them with the routes of the router. Only schemas that are written by hand refer
/// to the types under `components`.
#[derive(OpenApi)]
#[openapi(paths(
    crate::system::livez,
    crate::system::readyz,
    crate::metrics::show,
    document,
    page,
    crate::system::index,
    crate::accounts::login::login,
    crate::accounts::openid::begin,
    crate::accounts::openid::end,
    crate::accounts::login::logout,
    crate::accounts::login::session,
    crate::accounts::setup::setup,
    crate::accounts::user_list::list,
    crate::accounts::users::create,
    crate::accounts::users::show,
    crate::accounts::users::change,
    crate::accounts::users::delete,
    crate::accounts::users::set_password,
    crate::accounts::tokens::list,
    crate::accounts::tokens::create,
    crate::accounts::tokens::revoke,
    crate::jobs::list,
    crate::apply::apply,
    crate::jobs::show,
    crate::put_job::replace,
    crate::jobs::delete,
    crate::jobs::pause,
    crate::jobs::resume,
    crate::jobs::trigger,
    crate::preview::of_job,
    crate::jobs::ledger,
    crate::explain::job,
    crate::retention::of_job,
    crate::versions::list,
    crate::versions::show,
    crate::versions::restore,
    crate::preview::of_definition,
    crate::calendars::list,
    crate::calendars::apply,
    crate::calendars::show,
    crate::calendars::replace,
    crate::calendars::delete,
    crate::scripts::list,
    crate::scripts::apply,
    crate::scripts::show,
    crate::scripts::save,
    crate::scripts::delete,
    crate::scripts::history,
    crate::scripts::version,
    crate::scripts::restore,
    crate::windows::list,
    crate::windows::add,
    crate::windows::delete,
    crate::backfills::list,
    crate::backfills::of_job,
    crate::backfills::start,
    crate::backfills::show,
    crate::backfills::pause,
    crate::backfills::resume,
    crate::backfills::cancel,
    crate::pauses::list,
    crate::pauses::start,
    crate::pauses::end,
    crate::alarms::records::list,
    crate::alarms::rules,
    crate::alarms::rule,
    crate::alarms::put_rule,
    crate::alarms::delete_rule,
    crate::alarms::channels,
    crate::alarms::channel,
    crate::alarms::put_channel,
    crate::alarms::delete_channel,
    crate::alarms::test_channel,
    crate::alarms::silences::list,
    crate::alarms::silences::add,
    crate::alarms::silences::end,
    crate::alarms::records::deliveries,
    crate::alarms::records::delivery,
    crate::forecast::show,
    crate::runs::list,
    crate::retention::prune,
    crate::runs::show,
    crate::explain::run,
    crate::runs::logs,
    crate::events::log_stream::log,
    crate::runs::cancel,
    crate::flows::list,
    crate::flows::show,
    crate::flows::cancel,
    crate::flows::retry,
    crate::limits::list,
    crate::limits::set,
    crate::limits::delete,
    crate::retention::list,
    crate::retention::set,
    crate::retention::delete,
    crate::queues::list,
    crate::queues::show,
    crate::queues::drain,
    crate::queues::purge,
    crate::queues::replay,
    crate::dead_letters::list,
    crate::dead_letters::show,
    crate::dead_letters::replay,
    crate::dead_letters::delete,
    crate::enrolment_tokens::create,
    crate::enrolment_tokens::list,
    crate::enrolment_tokens::delete,
    crate::worker_keys::list,
    crate::worker_keys::revoke,
    crate::worker_keys::allow,
    crate::quotas::list,
    crate::quotas::show,
    crate::quotas::set,
    crate::quotas::delete,
    crate::audit::list,
    crate::events::change_stream::changes,
    crate::system::executors,
    crate::system::stats,
))]
struct Annotations;

static DOCUMENT: LazyLock<String> =
    LazyLock::new(|| format!("{:#}\n", assemble::document(&Annotations::openapi())));

/// The OpenAPI 3.1 document of the API, as indented JSON with a line end. `docs/openapi.json` is a copy of it.
pub fn openapi_json() -> &'static str {
    &DOCUMENT
}

/// Returns the OpenAPI document.
#[utoipa::path(
    get,
    path = "/api/openapi.json",
    operation_id = "openapi",
    tag = "server",
    responses((status = 200, description = "The document.", body = openapi::OpenApiDocument))
)]
pub(crate) async fn document(uri: Uri) -> Result<impl IntoResponse, Problem> {
    query::none(&uri)?;
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, openapi_json()))
}

/// Shows the OpenAPI document as a page for people.
#[utoipa::path(
    get,
    path = "/api/docs",
    operation_id = "docs",
    tag = "server",
    responses((status = 200, description = "The page.", body = String, content_type = "text/html"))
)]
pub(crate) async fn page(uri: Uri) -> Result<impl IntoResponse, Problem> {
    query::none(&uri)?;
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, PAGE.policy.as_str()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, PAGE.html.as_str()))
}
