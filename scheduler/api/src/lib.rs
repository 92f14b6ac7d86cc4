//! The scheduler's REST interface.
//!
//! It writes to the store and wakes the engine through [`SchedulerAdmin`]. It must not know the engine, a broker or a
//! concrete store. The engine also polls for changes, so a lost wake-up only costs time.

mod access;
mod accounts;
mod alarms;
mod apply;
mod audit;
mod backfills;
mod body;
mod calendars;
mod dead_letters;
mod enrolment_tokens;
mod etag;
mod events;
mod explain;
mod flows;
mod forecast;
mod idempotency;
mod if_versions;
mod instant;
mod jobs;
mod large;
mod layers;
mod limits;
mod list;
pub mod metrics;
mod namespace;
mod never_fires;
mod openapi;
pub mod openid;
mod path;
mod pauses;
mod preconditions;
mod preview;
mod problem;
mod put_job;
mod query;
mod queues;
mod quotas;
mod random;
mod reference;
mod retention;
mod runs;
mod scripts;
mod settle;
mod store_ports;
mod strict_json;
mod system;
mod token;
mod validity;
mod versions;
pub mod view;
mod windows;
mod worker_keys;

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{delete, get, post, put};
use cueline_http::metrics::Family;
use cueline_model::DurationMs;
use cueline_runtime::Stop;
use cueline_store::admin::SchedulerAdmin;
use cueline_store::{Accounts, Audit, Store};
use tokio::time::Instant;
use tower::ServiceExt as _;

use access::{Logins, Refusals};
use accounts::{login, openid as openid_login, setup, tokens, user_list, users};
use events::Events;
use forecast::Forecasts;
use large::LargeRequests;
use metrics::{ProcessMetrics, RequestCounts, Sources};

pub use access::SetupSecret;
pub use events::MAX_EVENT_STREAMS;
pub use instant::{InstantError, instant};
pub use large::MAX_SMALL_BODY_BYTES;
pub use problem::{FieldProblem, Problem};
pub use reference::openapi_json;
pub use retention::ServerRetention;
pub use store_ports::StorePorts;
pub use token::AdminToken;

/// The largest accepted request body.
pub const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;

/// The state that the handlers share.
#[derive(Clone)]
pub struct ApiState {
    /// The source of truth about jobs and runs.
    pub store: Arc<dyn Store>,
    /// Users, sessions and API tokens, in the same store.
    pub accounts: Arc<dyn Accounts>,
    /// The audit log and the versions of jobs, in the same store.
    pub audit: Arc<dyn Audit>,
    /// The scheduler in this process.
    pub admin: Arc<dyn SchedulerAdmin>,
    /// A request with this token may do everything.
    pub token: AdminToken,
    /// When this process started.
    pub started: Instant,
    /// Ends waiting requests when the process is about to stop.
    pub stop: Stop,
    /// Whether `/metrics` needs no token.
    pub metrics_public: bool,
    /// What this scheduler keeps, where no rule says otherwise.
    pub retention: ServerRetention,
    /// Login by OpenID Connect; `None` without a provider.
    pub openid: Option<Arc<openid::OpenId>>,
    /// Further metrics of this process; none by default.
    pub process_metrics: ProcessMetrics,
    /// Bounds the memory and the processor time of large requests.
    large: LargeRequests,
    /// Bounds how often passwords are tried.
    logins: Arc<Logins>,
    /// Bounds the entries about requests without a right.
    refusals: Arc<Refusals>,
    events: Events,
    forecasts: Forecasts,
    requests: RequestCounts,
    sources: Sources,
}

/// The state as each route has it.
pub(crate) type SharedState = Arc<ApiState>;

impl ApiState {
    /// State for a process that starts now. Set [`stop`](Self::stop) to end waiting requests when the process stops.
    pub fn new(
        ports: impl Into<StorePorts>,
        admin: Arc<dyn SchedulerAdmin>,
        token: impl Into<AdminToken>,
    ) -> Self {
        let StorePorts {
            store,
            accounts,
            audit,
        } = ports.into();
        Self {
            store,
            accounts,
            audit,
            admin,
            token: token.into(),
            started: Instant::now(),
            stop: Stop::new(),
            metrics_public: false,
            retention: ServerRetention::default(),
            openid: None,
            process_metrics: Arc::new(Vec::<Family>::new),
            large: LargeRequests::new(),
            logins: Arc::new(Logins::new()),
            refusals: Arc::new(Refusals::default()),
            events: Events::new(MAX_EVENT_STREAMS),
            forecasts: Forecasts::default(),
            requests: RequestCounts::default(),
            sources: Sources::default(),
        }
    }

    /// Makes the secret with which `POST /api/v1/setup` creates the first user. `None` if there is a user.
    ///
    /// It is valid for an hour, at this process only, and for one success. A later call replaces it.
    ///
    /// # Errors
    ///
    /// When the store fails, or when the system has no random bytes.
    pub async fn setup_secret(&self) -> Result<Option<SetupSecret>, Problem> {
        if self.accounts.has_users().await? {
            return Ok(None);
        }
        self.logins.setup.open(Instant::now()).map(Some)
    }

    /// For how long the API tokens of users of a provider count after the user's last login. Without a provider no such user
    /// logs in any more.
    pub(crate) fn openid_tokens_valid(&self) -> DurationMs {
        let openid = self.openid.as_deref();
        openid.map_or(openid::TOKENS_VALID, |openid| {
            openid.settings().tokens_valid
        })
    }

    /// Bounds the streams of events that are open at a time; [`MAX_EVENT_STREAMS`] by default. Each of them takes a
    /// connection for as long as it lasts, so the bound should be below the number of connections.
    pub fn limit_event_streams(&mut self, most: usize) {
        self.events = Events::new(most);
    }
}

/// All routes, behind one check of rights. `/livez`, `/readyz`, `/api/openapi.json` and `/api/docs` need none. `/metrics`
/// needs none with [`metrics_public`](ApiState::metrics_public). A path under `/api/v1/namespaces/{namespace}` is the one
/// under `/api/v1` for that namespace. Other paths are for the namespace `default`. Each handler has an annotation for the
/// OpenAPI document, and `reference` lists it.
///
/// Probes and scrapes need three routes. A scheduler that gets nothing else does not make the table of the others.
pub fn router(state: ApiState) -> Router {
    let state = Arc::new(state);
    let (others, of_others) = (OnceLock::new(), state.clone());
    let other = Arc::new(move || others.get_or_init(|| other_routes(&of_others)).clone());
    Router::new()
        .route("/livez", get(system::livez))
        .route("/readyz", get(system::readyz))
        .route("/metrics", get(metrics::show))
        .method_not_allowed_fallback(problem::no_such_method)
        .layer(from_fn_with_state(state.clone(), layers::outer))
        .with_state(state)
        .fallback(async move |request: Request| other().oneshot(request).await)
        .with_state(())
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn other_routes(state: &SharedState) -> Router {
    let api = Router::new()
        .route("/", get(system::index))
        .merge(accounts())
        .route("/jobs", get(jobs::list))
        .route("/jobs/apply", post(apply::apply))
        .route(
            "/jobs/{name}",
            get(jobs::show).put(put_job::replace).delete(jobs::delete),
        )
        .route("/jobs/{name}/pause", post(jobs::pause))
        .route("/jobs/{name}/resume", post(jobs::resume))
        .route("/jobs/{name}/trigger", post(jobs::trigger))
        .route("/jobs/{name}/next", get(preview::of_job))
        .route("/jobs/{name}/ledger", get(jobs::ledger))
        .route("/jobs/{name}/explain", get(explain::job))
        .route("/jobs/{name}/retention", get(retention::of_job))
        .route("/jobs/{name}/versions", get(versions::list))
        .route("/jobs/{name}/versions/{version}", get(versions::show))
        .route("/jobs/{name}/restore", post(versions::restore))
        .route("/preview", post(preview::of_definition))
        .route("/calendars", get(calendars::list))
        .route("/calendars/apply", post(calendars::apply))
        .route(
            "/calendars/{name}",
            get(calendars::show)
                .put(calendars::replace)
                .delete(calendars::delete),
        )
        .route("/scripts", get(scripts::list))
        .route("/scripts/apply", post(scripts::apply))
        .route(
            "/scripts/{name}",
            get(scripts::show)
                .put(scripts::save)
                .delete(scripts::delete),
        )
        .route("/scripts/{name}/versions", get(scripts::history))
        .route("/scripts/{name}/versions/{version}", get(scripts::version))
        .route("/scripts/{name}/restore", post(scripts::restore))
        .route("/windows", get(windows::list).post(windows::add))
        .route("/windows/{id}", delete(windows::delete))
        .route("/backfills", get(backfills::list))
        .route(
            "/jobs/{name}/backfills",
            get(backfills::of_job).post(backfills::start),
        )
        .route("/jobs/{name}/backfills/{id}", get(backfills::show))
        .route("/jobs/{name}/backfills/{id}/pause", post(backfills::pause))
        .route(
            "/jobs/{name}/backfills/{id}/resume",
            post(backfills::resume),
        )
        .route(
            "/jobs/{name}/backfills/{id}/cancel",
            post(backfills::cancel),
        )
        .route("/pauses", get(pauses::list).post(pauses::start))
        .route("/pauses/{id}", delete(pauses::end))
        .route("/alarms", get(alarms::records::list))
        .route("/alarms/rules", get(alarms::rules))
        .route(
            "/alarms/rules/{name}",
            get(alarms::rule)
                .put(alarms::put_rule)
                .delete(alarms::delete_rule),
        )
        .route("/alarms/channels", get(alarms::channels))
        .route(
            "/alarms/channels/{name}",
            get(alarms::channel)
                .put(alarms::put_channel)
                .delete(alarms::delete_channel),
        )
        .route("/alarms/channels/{name}/test", post(alarms::test_channel))
        .route(
            "/alarms/silences",
            get(alarms::silences::list).post(alarms::silences::add),
        )
        .route("/alarms/silences/{id}", delete(alarms::silences::end))
        .route("/alarms/deliveries", get(alarms::records::deliveries))
        .route("/alarms/deliveries/{id}", get(alarms::records::delivery))
        .route("/forecast", get(forecast::show))
        .route("/runs", get(runs::list))
        .route("/runs/prune", post(retention::prune))
        .route("/runs/{id}", get(runs::show))
        .route("/runs/{id}/explain", get(explain::run))
        .route("/runs/{id}/logs", get(runs::logs))
        .route("/runs/{id}/logs/events", get(events::log))
        .route("/runs/{id}/cancel", post(runs::cancel))
        .route("/flows", get(flows::list))
        .route("/flows/{id}", get(flows::show))
        .route("/flows/{id}/cancel", post(flows::cancel))
        .route("/flows/{id}/retry", post(flows::retry))
        .route("/limits", get(limits::list))
        .route("/limits/{group}", put(limits::set).delete(limits::delete))
        .route("/retention", get(retention::list))
        .route(
            "/retention/{group}",
            put(retention::set).delete(retention::delete),
        )
        .route("/queues", get(queues::list))
        .route("/queues/{group}/{executor}", get(queues::show))
        .route("/queues/{group}/{executor}/drain", post(queues::drain))
        .route("/queues/{group}/{executor}/purge", post(queues::purge))
        .route("/queues/{group}/{executor}/replay", post(queues::replay))
        .route("/dead", get(dead_letters::list))
        .route("/dead/{id}", get(dead_letters::show))
        .route("/dead/replay", post(dead_letters::replay))
        .route("/dead/delete", post(dead_letters::delete))
        .route(
            "/enrolment-tokens",
            get(enrolment_tokens::list).post(enrolment_tokens::create),
        )
        .route("/enrolment-tokens/{id}", delete(enrolment_tokens::delete))
        .route("/worker-keys", get(worker_keys::list))
        .route(
            "/worker-keys/{group}/{executor}/{key}/revoke",
            post(worker_keys::revoke),
        )
        .route(
            "/worker-keys/{group}/{executor}/{key}/allow",
            post(worker_keys::allow),
        )
        .route("/namespaces", get(quotas::list))
        .route(
            "/quota",
            get(quotas::show).put(quotas::set).delete(quotas::delete),
        )
        .route("/audit", get(audit::list))
        .route("/events", get(events::changes))
        .route("/executors", get(system::executors))
        .route("/stats", get(system::stats))
        .fallback(problem::no_such_path)
        .method_not_allowed_fallback(problem::no_such_method)
        .layer(from_fn_with_state(state.clone(), layers::inner))
        .merge(public());
    let routes = Router::new()
        .route("/api/openapi.json", get(reference::document))
        .route("/api/docs", get(reference::page))
        .nest("/api/v1", api)
        .fallback(problem::no_such_path)
        .method_not_allowed_fallback(problem::no_such_method)
        .layer(from_fn_with_state(state.clone(), layers::outer))
        .with_state(state.clone());
    namespace::route(routes).layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
}

/// The routes of sessions, users and API tokens.
fn accounts() -> Router<SharedState> {
    Router::new()
        .route("/logout", post(login::logout))
        .route("/session", get(login::session))
        .route("/users", get(user_list::list).post(users::create))
        .route(
            "/users/{name}",
            get(users::show).patch(users::change).delete(users::delete),
        )
        .route("/users/{name}/password", post(users::set_password))
        .route("/tokens", get(tokens::list).post(tokens::create))
        .route("/tokens/{id}", delete(tokens::revoke))
}

/// The routes of the API that need no token. A client without one cannot take the place of a large request, because these
/// routes take none: their bodies are small.
fn public() -> Router<SharedState> {
    Router::new()
        .route("/login", post(login::login))
        .route("/login/oidc", get(openid_login::begin))
        .route("/login/oidc/callback", get(openid_login::end))
        .route("/setup", post(setup::setup))
        .layer(DefaultBodyLimit::max(MAX_SMALL_BODY_BYTES))
        .layer(from_fn(large::refuse))
}
