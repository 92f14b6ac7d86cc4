//! Requests about the server as a whole: health, index, executors, statistics.

use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::Uri;
use cueline_model::Right;
use serde_json::{Map, Value, json};

use crate::SharedState;
use crate::access::Caller;
use crate::events::executor_state;
use crate::list::{Filters, List, Page, page_of};
use crate::namespace::{ALL, InNamespace, NoNamespace, has_group};
use crate::openapi;
use crate::problem::Problem;
use crate::query::{self, Params};
use crate::view::{ExecutorState, ExecutorView, Executors, Stats};

/// The store has to answer within this time.
const READY_TIME_LIMIT: Duration = Duration::from_secs(2);

/// The paths of the API, by the names of their links.
const LINKS: &[(&str, &str)] = &[
    ("login", "/api/v1/login"),
    ("login_oidc", "/api/v1/login/oidc"),
    ("login_oidc_callback", "/api/v1/login/oidc/callback"),
    ("logout", "/api/v1/logout"),
    ("session", "/api/v1/session"),
    ("setup", "/api/v1/setup"),
    ("users", "/api/v1/users"),
    ("user", "/api/v1/users/{name}"),
    ("password", "/api/v1/users/{name}/password"),
    ("tokens", "/api/v1/tokens"),
    ("token", "/api/v1/tokens/{id}"),
    ("jobs", "/api/v1/jobs"),
    ("apply", "/api/v1/jobs/apply"),
    ("job", "/api/v1/jobs/{name}"),
    ("pause", "/api/v1/jobs/{name}/pause"),
    ("resume", "/api/v1/jobs/{name}/resume"),
    ("trigger", "/api/v1/jobs/{name}/trigger"),
    ("explain", "/api/v1/jobs/{name}/explain"),
    ("next", "/api/v1/jobs/{name}/next"),
    ("ledger", "/api/v1/jobs/{name}/ledger"),
    ("job_retention", "/api/v1/jobs/{name}/retention"),
    ("versions", "/api/v1/jobs/{name}/versions"),
    ("version", "/api/v1/jobs/{name}/versions/{version}"),
    ("restore", "/api/v1/jobs/{name}/restore"),
    ("preview", "/api/v1/preview"),
    ("calendars", "/api/v1/calendars"),
    ("apply_calendars", "/api/v1/calendars/apply"),
    ("calendar", "/api/v1/calendars/{name}"),
    ("scripts", "/api/v1/scripts"),
    ("apply_scripts", "/api/v1/scripts/apply"),
    ("script", "/api/v1/scripts/{name}"),
    ("script_versions", "/api/v1/scripts/{name}/versions"),
    (
        "script_version",
        "/api/v1/scripts/{name}/versions/{version}",
    ),
    ("restore_script", "/api/v1/scripts/{name}/restore"),
    ("windows", "/api/v1/windows"),
    ("window", "/api/v1/windows/{id}"),
    ("pauses", "/api/v1/pauses"),
    ("pause_of_jobs", "/api/v1/pauses/{id}"),
    ("backfills", "/api/v1/backfills"),
    ("job_backfills", "/api/v1/jobs/{name}/backfills"),
    ("backfill", "/api/v1/jobs/{name}/backfills/{id}"),
    ("backfill_pause", "/api/v1/jobs/{name}/backfills/{id}/pause"),
    (
        "backfill_resume",
        "/api/v1/jobs/{name}/backfills/{id}/resume",
    ),
    (
        "backfill_cancel",
        "/api/v1/jobs/{name}/backfills/{id}/cancel",
    ),
    ("forecast", "/api/v1/forecast"),
    ("runs", "/api/v1/runs"),
    ("prune", "/api/v1/runs/prune"),
    ("run", "/api/v1/runs/{id}"),
    ("explain_run", "/api/v1/runs/{id}/explain"),
    ("logs", "/api/v1/runs/{id}/logs"),
    ("log_events", "/api/v1/runs/{id}/logs/events"),
    ("cancel", "/api/v1/runs/{id}/cancel"),
    ("flows", "/api/v1/flows"),
    ("flow", "/api/v1/flows/{id}"),
    ("cancel_flow", "/api/v1/flows/{id}/cancel"),
    ("retry_flow", "/api/v1/flows/{id}/retry"),
    ("alarms", "/api/v1/alarms"),
    ("alarm_rules", "/api/v1/alarms/rules"),
    ("alarm_rule", "/api/v1/alarms/rules/{name}"),
    ("alarm_channels", "/api/v1/alarms/channels"),
    ("alarm_channel", "/api/v1/alarms/channels/{name}"),
    ("test_alarm_channel", "/api/v1/alarms/channels/{name}/test"),
    ("alarm_deliveries", "/api/v1/alarms/deliveries"),
    ("alarm_delivery", "/api/v1/alarms/deliveries/{id}"),
    ("alarm_silences", "/api/v1/alarms/silences"),
    ("alarm_silence", "/api/v1/alarms/silences/{id}"),
    ("limits", "/api/v1/limits"),
    ("group_limit", "/api/v1/limits/{group}"),
    ("retention", "/api/v1/retention"),
    ("group_retention", "/api/v1/retention/{group}"),
    ("queues", "/api/v1/queues"),
    ("queue", "/api/v1/queues/{group}/{executor}"),
    ("drain", "/api/v1/queues/{group}/{executor}/drain"),
    ("purge", "/api/v1/queues/{group}/{executor}/purge"),
    ("replay", "/api/v1/queues/{group}/{executor}/replay"),
    ("dead", "/api/v1/dead"),
    ("dead_letter", "/api/v1/dead/{id}"),
    ("replay_dead", "/api/v1/dead/replay"),
    ("delete_dead", "/api/v1/dead/delete"),
    ("enrolment_tokens", "/api/v1/enrolment-tokens"),
    ("enrolment_token", "/api/v1/enrolment-tokens/{id}"),
    ("worker_keys", "/api/v1/worker-keys"),
    (
        "revoke_worker_key",
        "/api/v1/worker-keys/{group}/{executor}/{key}/revoke",
    ),
    (
        "allow_worker_key",
        "/api/v1/worker-keys/{group}/{executor}/{key}/allow",
    ),
    ("namespaces", "/api/v1/namespaces"),
    ("quota", "/api/v1/quota"),
    ("audit", "/api/v1/audit"),
    ("events", "/api/v1/events"),
    ("executors", "/api/v1/executors"),
    ("stats", "/api/v1/stats"),
    ("openapi", "/api/openapi.json"),
    ("docs", "/api/docs"),
    ("namespace", "/api/v1/namespaces/{namespace}/…"),
];

/// Liveness: the process answers.
#[utoipa::path(
    get,
    path = "/livez",
    operation_id = "livez",
    tag = "server",
    responses(
        (status = 200, description = "The process answers.", body = String, content_type = "text/plain"),
    )
)]
pub(crate) async fn livez() -> &'static str {
    "ok\n"
}

/// Readiness: the store answers and the process is not stopping.
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "readyz",
    tag = "server",
    responses(
        (status = 200, description = "The store can be read and the server is not stopping.", body = String, content_type = "text/plain"),
    )
)]
pub(crate) async fn readyz(State(state): State<SharedState>) -> Result<&'static str, Problem> {
    if state.stop.is_soft() {
        return Err(Problem::unavailable("the server is about to stop"));
    }
    // Reads from the database. `now()` would prove nothing, because some stores use the clock of this machine.
    match tokio::time::timeout(READY_TIME_LIMIT, state.store.store_id()).await {
        Ok(Ok(_)) => Ok("ok\n"),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(Problem::unavailable("the store does not answer")),
    }
}

/// The version and the paths of the API.
#[utoipa::path(
    get,
    path = "/api/v1",
    operation_id = "index",
    tag = "server",
    responses(
        (status = 200, description = "The version and the paths.", body = openapi::Index),
    )
)]
pub(crate) async fn index(uri: Uri) -> Result<Json<Value>, Problem> {
    query::none(&uri)?;
    let path = |&(name, path): &(&str, &str)| (name.to_owned(), Value::from(path));
    let links: Map<String, Value> = LINKS.iter().map(path).collect();
    Ok(Json(json!({
        "name": "cueline",
        "version": env!("CARGO_PKG_VERSION"),
        "links": links,
    })))
}

/// The list of executors.
const EXECUTORS: List = List {
    name: "executors",
    filters: &["name", "group", "label", "state", ALL],
    sorts: &["name", "-name", "last_heartbeat_at", "-last_heartbeat_at"],
};

/// The last heartbeat, in a list that is sorted by it, the group and the name.
type ExecutorKey = (i64, String, String);

/// Lists the executors of the groups that the caller may read, including silent ones.
#[utoipa::path(
    get,
    path = "/api/v1/executors",
    operation_id = "executor_list",
    tag = "server",
    summary = "Lists the executors in the store, including silent ones.",
    params(
        ("name" = Option<Vec<openapi::UserNameFilter>>, Query, description = "Only executors with this name; may be repeated."),
        ("group" = Option<Vec<openapi::ListedName>>, Query, description = "Only executors of this group; may be repeated."),
        ("label" = Option<Vec<openapi::LabelFilter>>, Query, description = "Only executors that announce this label; repeated ones must all hold."),
        ("state" = Option<Vec<openapi::ExecutorStateFilter>>, Query, description = "Only executors in this state; may be repeated."),
        ("sort" = Option<openapi::ExecutorSort>, Query, description = "The order of the list."),
        ("limit" = Option<openapi::PageLimit>, Query, description = "The most entries of the response; 100 by default."),
        ("after" = Option<openapi::PageCursor>, Query, description = "The `next` of the previous page."),
        ("all_namespaces" = Option<openapi::AllNamespaces>, Query, description = "Whether executors of all namespaces are listed."),
    ),
    responses(
        (status = 200, description = "A page of executors.", body = Executors),
    )
)]
pub(crate) async fn executors(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    uri: Uri,
) -> Result<Json<Executors>, Problem> {
    let mut params = Params::of(&uri, &EXECUTORS.parameters());
    let listed = namespace.listed(&mut params);
    let names = params.names();
    let groups = Filters::new(&mut params, &namespace, listed.as_ref()).groups();
    let labels = params.labels();
    let states = ExecutorState::ALL.map(|state| (state.as_str(), state));
    let states = params.words("state", &states);
    let page: Page<ExecutorKey> = EXECUTORS.page(&mut params);
    params.finish()?;
    caller.require_somewhere(Right::Read, listed.as_ref())?;
    let mut executors = state.store.executors().await?;
    // Read the clock after the list, so that no heartbeat is in the future.
    let now = state.store.now().await?;
    executors.retain(|executor| {
        let id = &executor.heartbeat.executor;
        has_group(listed.as_ref(), &id.group)
            && caller.may(Right::Read, &id.group)
            && (groups.is_empty() || groups.contains(&id.group))
            && (names.is_empty() || names.iter().any(|name| name.matches(id.name.as_str())))
            && labels
                .iter()
                .all(|label| label.matches(&executor.heartbeat.labels))
            && (states.is_empty() || states.contains(&executor_state(executor, now)))
    });
    let by_heartbeat = page.field() == "last_heartbeat_at";
    let (executors, next) = page_of(&page, executors, |executor| {
        let id = &executor.heartbeat.executor;
        let at = if by_heartbeat {
            executor.last_heartbeat_at.as_millis()
        } else {
            0
        };
        (at, id.group.to_string(), id.name.to_string())
    });
    let executors = executors
        .into_iter()
        .map(|executor| ExecutorView {
            namespace: executor.heartbeat.executor.group.namespace(),
            silent_ms: u64::try_from(now.since_ms(executor.last_heartbeat_at)).unwrap_or(0),
            executor,
        })
        .collect();
    Ok(Json(Executors {
        executors,
        next,
        now,
    }))
}

/// Statistics of the store and of this server.
#[utoipa::path(
    get,
    path = "/api/v1/stats",
    operation_id = "stats",
    tag = "server",
    responses(
        (status = 200, description = "The numbers.", body = Stats),
    )
)]
pub(crate) async fn stats(
    State(state): State<SharedState>,
    _: NoNamespace,
    uri: Uri,
) -> Result<Json<Stats>, Problem> {
    query::none(&uri)?;
    let numbers = state.store.stats().await?;
    let now = state.store.now().await?;
    let uptime_ms = u64::try_from(state.started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let timeouts_paused = state.admin.executor_timeouts_paused();
    let claims_paused = state.admin.claims_paused();
    let since_start = state.admin.since_start();
    Ok(Json(Stats::new(
        numbers,
        uptime_ms,
        now,
        timeouts_paused,
        claims_paused,
        since_start,
    )))
}
