//! A real server over a real store, and a client that returns whole answers.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cueline_api::{ApiState, StorePorts, router};
use cueline_http::ServerLimits;
use cueline_runtime::Stop;
use cueline_store::Store;
use cueline_store_sqlite::{SqliteOptions, SqliteStore};
use reqwest::{Method, RequestBuilder, StatusCode, header};
use serde_json::Value;

use crate::fake_admin::FakeAdmin;

pub(crate) const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// Long enough for the slowest machine. No test waits for all of it.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

pub(crate) struct Server {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) ports: StorePorts,
    /// The secret that creates the first user.
    pub(crate) setup_secret: String,
    pub(crate) admin: Arc<FakeAdmin>,
    pub(crate) stop: Stop,
    pub(crate) address: SocketAddr,
    base: String,
    http: reqwest::Client,
    _folder: tempfile::TempDir,
}

/// The status, content type and body of an answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) content_type: String,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// The body of a successful answer.
    #[track_caller]
    pub(crate) fn good(self) -> Value {
        assert!(self.status.is_success(), "{self:?}");
        self.json()
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with(ServerLimits::of_connections(100)).await
    }

    pub(crate) async fn with(limits: ServerLimits) -> Self {
        Self::with_state(limits, |_| {}).await
    }

    pub(crate) async fn with_public_metrics() -> Self {
        let limits = ServerLimits::of_connections(100);
        Self::with_state(limits, |state| state.metrics_public = true).await
    }

    pub(crate) async fn with_state(
        limits: ServerLimits,
        change: impl FnOnce(&mut ApiState),
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("store.db");
        let store = SqliteStore::open(&path, SqliteOptions::default())
            .await
            .expect("a store");
        let ports = StorePorts::from(Arc::new(store));
        let store = ports.store.clone();
        let admin = Arc::new(FakeAdmin::new(store.clone()));
        let mut state = ApiState::new(ports.clone(), admin.clone(), TOKEN.to_owned());
        change(&mut state);
        let secret = state.setup_secret().await.expect("a store");
        let setup_secret = secret.expect("no users").expose().to_owned();
        let stop = state.stop.clone();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("an address");
        let base = format!("http://{address}");
        // The state's stop ends waiting requests. The server itself ends with the test.
        let serving = cueline_http::serve(listener, router(state), limits, Stop::new());
        tokio::spawn(serving);
        cueline_runtime::tls::install_provider();
        Self {
            store,
            ports,
            setup_secret,
            admin,
            stop,
            address,
            base,
            http: reqwest::Client::builder()
                .no_proxy()
                .build()
                .expect("a client"),
            _folder: folder,
        }
    }

    /// A request without a token.
    pub(crate) fn bare(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base))
    }

    /// A request with this API token.
    pub(crate) async fn by(
        &self,
        token: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Answer {
        let request = self.bare(method, path).bearer_auth(token);
        self.send(match body {
            Some(body) => request.json(body),
            None => request,
        })
        .await
    }

    /// A new API token of a program with these grants.
    pub(crate) async fn token_with(&self, grants: &Value) -> String {
        let body = serde_json::json!({ "name": "a test", "grants": grants });
        let created = self.post("/tokens", &body).await.good();
        created["token"].as_str().expect("a token").to_owned()
    }

    pub(crate) async fn send(&self, request: RequestBuilder) -> Answer {
        let answer = request.send().await.expect("an answer");
        Answer {
            status: answer.status(),
            content_type: answer
                .headers()
                .get(header::CONTENT_TYPE)
                .map(|v| v.to_str().unwrap_or_default().to_owned())
                .unwrap_or_default(),
            text: answer.text().await.expect("a body"),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        let request = self.bare(Method::GET, &format!("/api/v1{path}"));
        self.send(request.bearer_auth(TOKEN)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        let request = self.bare(Method::POST, &format!("/api/v1{path}"));
        self.send(request.bearer_auth(TOKEN).json(body)).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Answer {
        let request = self.bare(Method::PUT, &format!("/api/v1{path}"));
        self.send(request.bearer_auth(TOKEN).json(body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        let request = self.bare(Method::DELETE, &format!("/api/v1{path}"));
        self.send(request.bearer_auth(TOKEN)).await
    }
}

/// Repeats the request until `done`, at most until the deadline.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut done: impl FnMut() -> F) {
    let asked = async {
        while !done().await {
            tokio::task::yield_now().await;
        }
    };
    assert!(
        tokio::time::timeout(DEADLINE, asked).await.is_ok(),
        "not in time: {what}"
    );
}
