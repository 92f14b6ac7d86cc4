//! The HTTP listener. It answers from the start; `/readyz` succeeds only after the process has a router.

use std::fs::Permissions;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use cueline_http::metrics::{self, Family};
use cueline_http::{ServerLimits, Tls, TlsFiles};
use cueline_runtime::{Activator, Stop, duty};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinHandle;
use tower::ServiceExt as _;

/// How long open requests may take after a stop was requested.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// The most connections over the socket for commands.
const MAX_COMMANDS: usize = 64;

/// A listener, and the router that answers on it later.
#[derive(Debug)]
pub(crate) struct Http {
    address: SocketAddr,
    has_tls: bool,
    stop: Stop,
    ready: Arc<OnceLock<Router>>,
    /// One for each listener, and one that reloads TLS files.
    tasks: Vec<JoinHandle<()>>,
}

impl Http {
    /// Listens on `address`, which `flag` names in errors. `/livez` succeeds, and any other path is 503.
    /// At most `max_connections` are open at a time. With `tls`, each of them begins with a handshake.
    pub(crate) async fn listen(
        flag: &str,
        address: SocketAddr,
        max_connections: usize,
        tls: Option<TlsFiles>,
    ) -> Result<Self> {
        let has_tls = tls.is_some();
        let tls = tls.map(Tls::open).transpose()?;
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("{flag} {address}: failed to listen there; is something else using the port?")
        })?;
        let address = listener.local_addr()?;
        let (stop, ready) = (Stop::new(), Arc::new(OnceLock::new()));
        let limits = ServerLimits::of_connections(max_connections);
        let router = gate(ready.clone());
        let tasks = match tls {
            None => {
                let server = cueline_http::serve(listener, router, limits, stop.clone());
                vec![tokio::spawn(server)]
            }
            Some((tls, reload)) => {
                let server = cueline_http::serve_tls(listener, tls, router, limits, stop.clone());
                let reload = duty::run(reload, Activator::new(), stop.clone());
                vec![tokio::spawn(server), tokio::spawn(reload)]
            }
        };
        Ok(Self {
            address,
            has_tls,
            stop,
            ready,
            tasks,
        })
    }

    /// Listens on a Unix socket as well, always without TLS: its data does not leave the machine. Replaces the socket that
    /// an earlier start has left behind, so the caller must own its directory.
    pub(crate) fn listen_on_socket(&mut self, socket: &Path) -> io::Result<()> {
        match std::fs::remove_file(socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(socket)?;
        std::fs::set_permissions(socket, Permissions::from_mode(0o600))?;
        let limits = ServerLimits::of_connections(MAX_COMMANDS);
        let router = gate(self.ready.clone());
        let server = cueline_http::serve_on_socket(listener, router, limits, self.stop.clone());
        self.tasks.push(tokio::spawn(server));
        Ok(())
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.has_tls { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    pub(crate) fn stopping(&self) -> Stop {
        self.stop.clone()
    }

    /// Answers with `router` from now on.
    pub(crate) fn answer_by(&self, router: Router) {
        let first = self.ready.set(router).is_ok();
        debug_assert!(first, "there is one router");
    }

    /// Refuses new requests, and waits for open ones.
    pub(crate) async fn stop(self) {
        self.stop.ask_soft();
        // All of them stop at the same time, so it does not matter which one is awaited first.
        let ended = async {
            for task in self.tasks {
                let _ = task.await;
            }
        };
        let _ = tokio::time::timeout(STOP_TIMEOUT, ended).await;
    }
}

/// Forwards requests to the router as soon as there is one.
fn gate(ready: Arc<OnceLock<Router>>) -> Router {
    Router::new().fallback(move |request: Request| {
        let router = ready.get().cloned();
        async move {
            let Some(router) = router else {
                return starting(request.uri().path());
            };
            match router.oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        }
    })
}

fn starting(path: &str) -> Response {
    if path == "/livez" {
        return "ok\n".into_response();
    }
    unavailable("the process is starting; its log shows the cause of a delay")
}

fn unavailable(detail: &str) -> Response {
    let problem = serde_json::json!({
        "type": "about:blank",
        "title": "Service Unavailable",
        "status": 503,
        "detail": detail,
    });
    (
        StatusCode::SERVICE_UNAVAILABLE,
        [(CONTENT_TYPE, "application/problem+json")],
        problem.to_string(),
    )
        .into_response()
}

/// `/livez`, `/readyz` and `/metrics` of a process without an API. It is ready while there is no `problem`, until `stop`
/// is requested. Nothing here needs a token, so `metrics` must say nothing about jobs.
pub(crate) fn health(
    stop: Stop,
    problem: impl Fn() -> Option<String> + Clone + Send + Sync + 'static,
    metrics: impl Fn() -> Vec<Family> + Clone + Send + Sync + 'static,
) -> Router {
    let scrape = move || {
        let text = metrics::text(metrics());
        async move { ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text) }
    };
    let router = Router::new().route("/livez", get(async || "ok\n"));
    router.route("/metrics", get(scrape)).route(
        "/readyz",
        get(move || {
            let stopping = stop.is_soft().then(|| "the worker is stopping".to_owned());
            let problem = stopping.or_else(&problem);
            async move {
                match problem {
                    Some(problem) => unavailable(&problem),
                    None => "ok\n".into_response(),
                }
            }
        }),
    )
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use cueline_http::metrics::Sample;

    use super::*;

    async fn get_ready(router: Router) -> (StatusCode, String) {
        answer(router, "/readyz").await
    }

    async fn answer(router: Router, path: &str) -> (StatusCode, String) {
        let request = Request::builder().uri(path).body(Body::empty());
        let answer = router.oneshot(request.expect("a request")).await;
        let (head, body) = answer.expect("an answer").into_parts();
        let body = to_bytes(body, 1_000).await.expect("a body");
        (head.status, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn a_process_with_a_problem_is_not_ready_and_says_why() {
        let stop = Stop::new();
        let (status, body) = get_ready(health(stop.clone(), || None, Vec::new)).await;
        assert_eq!((status, body.as_str()), (StatusCode::OK, "ok\n"));
        let problem = || Some("no broker lease".to_owned());
        let without_lease = health(stop.clone(), problem, Vec::new);
        let (status, body) = get_ready(without_lease).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(body.contains("no broker lease"), "{body}");
        stop.ask_soft();
        let (status, body) = get_ready(health(stop, || None, Vec::new)).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(body.contains("stopping"), "{body}");
    }

    #[tokio::test]
    async fn a_process_without_an_api_serves_metrics() {
        let metrics = || vec![Family::gauge("answer", "It.", Sample::only(42))];
        let (status, body) = answer(health(Stop::new(), || None, metrics), "/metrics").await;
        assert_eq!(status, StatusCode::OK);
        assert!(body.contains("\ncueline_answer 42\n"), "{body}");
    }
}
