//! The HTTP listener: answers from the first moment on, `/readyz` only when there is something behind it.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use cueline_runtime::Stop;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tower::ServiceExt as _;

/// How long requests under way may take to end after a stop was asked for.
const GRACE: Duration = Duration::from_secs(3);

/// A listener and what answers on it.
#[derive(Debug)]
pub(crate) struct Http {
    address: SocketAddr,
    stop: Stop,
    ready: Arc<OnceLock<Router>>,
    server: JoinHandle<()>,
}

impl Http {
    /// Listens on `address`, given by `flag`, and answers that it is alive and not ready.
    pub(crate) async fn listen(flag: &str, address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("{flag} {address}: failed to listen there; is something else using the port?")
        })?;
        let address = listener.local_addr()?;
        let (stop, ready) = (Stop::new(), Arc::new(OnceLock::new()));
        let server = tokio::spawn(serve(listener, gate(ready.clone()), stop.clone()));
        Ok(Self {
            address,
            stop,
            ready,
            server,
        })
    }

    /// Where it listens.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What is asked when it is to end.
    pub(crate) fn stopping(&self) -> Stop {
        self.stop.clone()
    }

    /// From now on `router` answers.
    pub(crate) fn answer_by(&self, router: Router) {
        let first = self.ready.set(router).is_ok();
        debug_assert!(first, "there is one router");
    }

    /// Takes no more requests, and lets those under way end.
    pub(crate) async fn stop(self) {
        self.stop.ask_soft();
        let _ = tokio::time::timeout(GRACE, self.server).await;
    }
}

async fn serve(listener: TcpListener, router: Router, stop: Stop) {
    let server =
        axum::serve(listener, router).with_graceful_shutdown(async move { stop.soft().await });
    if let Err(e) = server.await {
        tracing::error!(error = %e, "HTTP has stopped");
    }
}

/// Passes requests on to the router that is there later.
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
    unavailable("the process is starting; its log says what it waits for")
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

/// `/livez` and `/readyz` of a process that has nothing else to say: ready until it is to stop.
pub(crate) fn health(stop: Stop) -> Router {
    Router::new().route("/livez", get(async || "ok\n")).route(
        "/readyz",
        get(move || {
            let stopping = stop.is_soft();
            async move {
                if stopping {
                    unavailable("the worker is about to stop")
                } else {
                    "ok\n".into_response()
                }
            }
        }),
    )
}
