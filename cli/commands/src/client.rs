//! The commands' client of the API.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cueline_api::Problem;
use cueline_interface::Failure;
use cueline_interface::url::{is_loopback, is_readable_on_the_way};
use cueline_model::Namespace;
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::context::chosen::{ChosenServer, NAME_ANOTHER};
use crate::context::server_args::ServerArgs;
use crate::keys;
use crate::namespaces::AllNamespaces;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than the server's own longest wait, 30 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(45);
/// Longer than the server's longest stream, 10 min.
const STREAM_TIMEOUT: Duration = Duration::from_mins(11);

/// Advice for a user whose server or command lacks a certificate.
const CHECK_CERTIFICATES: &str = "if a private authority signed its certificate, give that authority's with --ca-file; \
     if it asks for a certificate, give --client-cert and --client-key";

/// The problem of a token that a request whose answer was lost has created.
const ALREADY_CREATED: &str = "cueline:already-created";

const LOST_SECRET: &str = "its secret was in the answer that was lost; revoke or delete it by its id, and create another one";

/// A server.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    http: reqwest::Client,
    /// The address that the user knows.
    base: Url,
    /// Where the requests go: to `base`, or over the socket, which has no TLS.
    target: Url,
    token: Option<String>,
    token_from: String,
    /// Whose paths the requests name.
    namespace: Namespace,
    /// The socket of this user's server, if the requests go there and not to `base`.
    socket: Option<PathBuf>,
    session: Option<Session>,
    /// Whether secrets may be sent over http to another machine.
    insecure_http: bool,
}

/// A session, which a login by a password begins.
#[derive(Clone)]
pub(crate) struct Session {
    /// The cookie, as `NAME=VALUE`.
    pub(crate) cookie: String,
    /// The value of the header `X-CSRF-Token`.
    pub(crate) csrf: String,
}

/// Without the secrets.
impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session(…)")
    }
}

impl Api {
    /// The server that the user means, see [`ChosenServer::of`].
    pub(crate) fn new(named: &ServerArgs) -> Result<Self, Failure> {
        Self::to(ChosenServer::of(named)?)
    }

    /// A chosen server.
    pub(crate) fn to(server: ChosenServer) -> Result<Self, Failure> {
        let target = match &server.socket {
            Some(_) => without_tls(&server.url),
            None => server.url.clone(),
        };
        Ok(Self {
            http: http(&target, server.socket.as_deref(), &server.args)?,
            base: server.url,
            target,
            token: server.token,
            token_from: server.token_from,
            namespace: server.namespace,
            socket: server.socket,
            session: None,
            insecure_http: server.insecure_http,
        })
    }

    /// The namespace that the command is about.
    pub(crate) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The same server, asked for the jobs, groups and runs of this namespace.
    pub(crate) fn in_namespace(&self, namespace: &Namespace) -> Self {
        Self {
            namespace: namespace.clone(),
            ..self.clone()
        }
    }

    /// The same server, asked for what belongs to no namespace, such as users. It refuses such requests in other namespaces
    /// than `default`.
    pub(crate) fn in_no_namespace(&self) -> Self {
        self.in_namespace(&Namespace::default())
    }

    /// The same server. Requests have the session in place of a token.
    pub(crate) fn in_session(&self, session: Session) -> Self {
        Self {
            token: None,
            session: Some(session),
            ..self.clone()
        }
    }

    /// Lists what `path` has of the namespace, or of all namespaces.
    pub(crate) async fn list(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        all: AllNamespaces,
    ) -> Result<Value, Failure> {
        if !all.all_namespaces {
            return self.get(path, query).await;
        }
        let mut query = query.to_vec();
        query.push(("all_namespaces", "true".to_owned()));
        self.in_no_namespace().get(path, &query).await
    }

    /// The server's address.
    pub(crate) fn url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Refuses to send a secret where others could read it on the way: over http to another machine.
    pub(crate) fn refuse_readable(&self, what: &str) -> Result<(), Failure> {
        if self.socket.is_some() || self.insecure_http || !is_readable_on_the_way(&self.base) {
            return Ok(());
        }
        Err(Failure::bad_input(format!(
            "url: others could read {what} on the way to {}; use https",
            self.url()
        )))
    }

    /// Sends a GET request for `path`, given as its segments.
    pub(crate) async fn get(
        &self,
        path: &[&str],
        query: &[(&str, String)],
    ) -> Result<Value, Failure> {
        self.ask(Method::GET, path, query, None).await
    }

    /// `POST`s a body.
    pub(crate) async fn post(&self, path: &[&str], body: &Value) -> Result<Value, Failure> {
        self.ask(Method::POST, path, &[], Some(body)).await
    }

    /// Sends a request that changes nothing unless the object has this entity tag, if one is given.
    pub(crate) async fn change_if(
        &self,
        method: Method,
        path: &[&str],
        body: Option<&Value>,
        etag: Option<String>,
    ) -> Result<Value, Failure> {
        let mut request = self.request(method, path, &[]);
        if let Some(body) = body {
            request = request.json(body);
        }
        if let Some(etag) = etag {
            request = request.header("if-match", etag);
        }
        let response = request.send().await;
        self.read_sent(response).await
    }

    /// `POST`s a body that creates something, with a new idempotency key. If the connection ends before the answer, the
    /// request is sent once more with the same key, so that nothing is created twice.
    pub(crate) async fn create(&self, path: &[&str], body: &Value) -> Result<Value, Failure> {
        let key = keys::random_key()?;
        self.post_twice(path, body, Some(&key)).await
    }

    /// As [`create`](Self::create). Without `key`, the body has one.
    pub(crate) async fn post_twice(
        &self,
        path: &[&str],
        body: &Value,
        key: Option<&str>,
    ) -> Result<Value, Failure> {
        let request = || {
            let request = self.request(Method::POST, path, &[]).json(body);
            match key {
                Some(key) => request.header("idempotency-key", format!("\"{key}\"")),
                None => request,
            }
        };
        let sent = match request().send().await {
            Err(error) if is_answer_lost(&error) => request().send().await,
            sent => sent,
        };
        self.read_sent(sent).await
    }

    /// The answer, or why there is none.
    pub(crate) fn sent(&self, sent: reqwest::Result<Response>) -> Result<Response, Failure> {
        sent.map_err(|error| self.unreachable(&error))
    }

    async fn read_sent(&self, sent: reqwest::Result<Response>) -> Result<Value, Failure> {
        let response = self.sent(sent)?;
        if response.status().is_success() {
            self.read_json(response).await
        } else {
            Err(self.refusal(response).await)
        }
    }

    /// Sends a PUT request with a body.
    pub(crate) async fn put(&self, path: &[&str], body: &Value) -> Result<Value, Failure> {
        self.ask(Method::PUT, path, &[], Some(body)).await
    }

    /// Sends a PATCH request with a body.
    pub(crate) async fn patch(&self, path: &[&str], body: &Value) -> Result<Value, Failure> {
        self.ask(Method::PATCH, path, &[], Some(body)).await
    }

    /// `DELETE`s.
    pub(crate) async fn delete(&self, path: &[&str]) -> Result<Value, Failure> {
        self.ask(Method::DELETE, path, &[], None).await
    }

    /// `DELETE`s what a [`list`](Self::list) with the same namespaces has.
    pub(crate) async fn delete_listed(
        &self,
        path: &[&str],
        all: AllNamespaces,
    ) -> Result<Value, Failure> {
        if !all.all_namespaces {
            return self.delete(path).await;
        }
        let query = [("all_namespaces", "true".to_owned())];
        self.in_no_namespace()
            .ask(Method::DELETE, path, &query, None)
            .await
    }

    /// Fails with the server's answer if it is not ready.
    pub(crate) async fn ready(&self) -> Result<(), Failure> {
        let mut url = self.target.clone();
        url.set_path("/readyz");
        let response = self
            .http
            .get(url)
            .send()
            .await
            .map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() {
            Ok(())
        } else {
            Err(self.refusal(response).await)
        }
    }

    async fn ask(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        let response = self.send(method, path, query, body).await?;
        if response.status() == StatusCode::NO_CONTENT {
            return Ok(Value::Null);
        }
        self.read_json(response).await
    }

    /// Reads the body of an answer.
    pub(crate) async fn read_json(&self, response: Response) -> Result<Value, Failure> {
        response.json().await.map_err(|error| {
            Failure::failed(format!(
                "failed to read the answer of {}: {}",
                self.url(),
                innermost(&error)
            ))
        })
    }

    /// Sends a request. An answer without success is a failure; its body is read into the message.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> Result<Response, Failure> {
        let mut request = self.request(method, path, query);
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request
            .send()
            .await
            .map_err(|error| self.unreachable(&error))?;
        if !response.status().is_success() {
            return Err(self.refusal(response).await);
        }
        Ok(response)
    }

    /// Opens a stream of events, after the event with this id if the server still has what follows it.
    pub(crate) async fn stream(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        last_event: Option<&str>,
    ) -> Result<Response, Failure> {
        let mut request = self.request(Method::GET, path, query);
        request = request.timeout(STREAM_TIMEOUT);
        if let Some(id) = last_event {
            request = request.header("Last-Event-ID", id);
        }
        let response = request
            .send()
            .await
            .map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() {
            Ok(response)
        } else {
            Err(self.refusal(response).await)
        }
    }

    /// A request that is not sent yet.
    pub(crate) fn request(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
    ) -> RequestBuilder {
        let mut url = self.target.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(["api", "v1"]);
            if !self.namespace.is_default() {
                segments.extend(["namespaces", self.namespace.as_str()]);
            }
            segments.extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self.http.request(method, url);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(session) = &self.session {
            request = request
                .header("cookie", &session.cookie)
                .header("x-csrf-token", &session.csrf);
        }
        request
    }

    fn unreachable(&self, error: &reqwest::Error) -> Failure {
        let why = if error.is_timeout() {
            "it does not answer in time".to_owned()
        } else {
            innermost(error)
        };
        let place = match &self.socket {
            Some(socket) => format!("{} by its socket {}", self.url(), socket.display()),
            None => self.url().to_owned(),
        };
        // Errors of TLS have no kind of their own here, only their text.
        let is_of_certificates = why.to_lowercase().contains("certificate");
        let hint = if is_of_certificates {
            CHECK_CERTIFICATES
        } else {
            NAME_ANOTHER
        };
        Failure::with_hint(
            format!("failed to reach the server at {place}: {why}"),
            hint,
        )
    }

    /// What an answer without success says.
    pub(crate) async fn refusal(&self, response: Response) -> Failure {
        let status = response.status();
        let text = response.text().await.unwrap_or_default();
        let Ok(problem) = serde_json::from_str::<Problem>(&text) else {
            return Failure::with_hint(
                format!("{} answered {status}", self.url()),
                "is there a Cueline server at that address?",
            );
        };
        match status {
            StatusCode::UNAUTHORIZED => Failure::Unauthorised {
                message: problem.detail,
                hint: self.token_hint(),
            },
            StatusCode::BAD_REQUEST
            | StatusCode::UNPROCESSABLE_ENTITY
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNSUPPORTED_MEDIA_TYPE => Failure::BadInput {
                messages: messages(problem),
                summary: None,
            },
            StatusCode::CONFLICT if *problem.kind == *ALREADY_CREATED => {
                Failure::with_hint(problem.detail, LOST_SECRET)
            }
            _ => Failure::failed(messages(problem).join("; ")),
        }
    }

    fn token_hint(&self) -> String {
        if self.token.is_none() {
            "log in with `cueline login URL`, or set CUELINE_TOKEN to the content of the server's admin.token file"
                .to_owned()
        } else {
            format!("the token was taken from {}", self.token_from)
        }
    }
}

/// Whether the request may have been carried out: it was sent, and the connection ended before the answer. A server that
/// does not answer in time is not asked again.
fn is_answer_lost(error: &reqwest::Error) -> bool {
    error.is_request() && !error.is_connect() && !error.is_timeout()
}

fn messages(problem: Problem) -> Vec<String> {
    if problem.errors.is_empty() {
        return vec![problem.detail];
    }
    problem
        .errors
        .into_iter()
        .map(|error| {
            let job = error
                .job
                .map_or_else(String::new, |job| format!("job {job:?}: "));
            let field = match error.field.as_str() {
                "" => String::new(),
                field => format!("{field}: "),
            };
            format!("{job}{field}{}", error.message)
        })
        .collect()
}

/// The same address with http. The socket of a server with TLS has none.
fn without_tls(base: &Url) -> Url {
    let mut url = base.clone();
    if url.scheme() == "https" {
        // It can only fail for schemes of another kind.
        let _ = url.set_scheme("http");
    }
    url
}

fn http(
    target: &Url,
    socket: Option<&Path>,
    named: &ServerArgs,
) -> Result<reqwest::Client, Failure> {
    cueline_runtime::tls::install_provider();
    let mut builder = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(ANSWER_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none());
    if let Some(socket) = socket {
        builder = builder.unix_socket(socket).no_proxy();
    } else if is_loopback(target) {
        // For a proxy, a loopback address is the proxy's own machine.
        builder = builder.no_proxy();
    }
    if target.scheme() == "https" {
        builder = named.with_certificates(builder)?;
    }
    builder
        .build()
        .map_err(|error| Failure::failed(format!("failed to set up HTTP: {}", innermost(&error))))
}

/// The innermost cause. It is the most specific one.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(cause) = error.source() {
        error = cause;
    }
    error.to_string()
}

/// Reads an answer.
pub(crate) fn read<T: DeserializeOwned>(answer: Value) -> Result<T, Failure> {
    serde_json::from_value(answer).map_err(|error| {
        Failure::with_hint(
            format!("failed to understand the server's answer: {error}"),
            "are the command and the server of the same version?",
        )
    })
}
