//! The commands' client of the API.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cueline_api::Problem;
use cueline_model::Namespace;
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::discovery::{self, Discovered};
use crate::failure::Failure;
use crate::namespaces::AllNamespaces;
use crate::server_args::ServerArgs;

/// The server's address by default.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:7800";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than the server's own longest wait, 30 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(45);
/// Longer than the server's longest stream, 10 min.
const STREAM_TIMEOUT: Duration = Duration::from_mins(11);

/// Advice for a user whose server does not answer.
const NAME_ANOTHER: &str = "start one with `cueline standalone`, or name another one with --url or CUELINE_URL; \
     `cueline doctor` looks closer";

/// Advice for a user whose server or command lacks a certificate.
const CHECK_CERTIFICATES: &str = "if a private authority signed its certificate, give that authority's with --ca-file; \
     if it asks for a certificate, give --client-cert and --client-key";

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
}

impl Api {
    /// Chooses the server: the named one, else the standalone server of this user, else the one at the default address.
    pub(crate) fn new(named: &ServerArgs) -> Result<Self, Failure> {
        let (url, token) = (named.url.as_deref(), named.token.as_deref());
        let found = discovery::read().unwrap_or_else(|error| {
            crate::failure::say(&format!(
                "warning: failed to read where the local server is: {error}"
            ));
            None
        });
        let text = url
            .or(found.as_ref().map(|found| found.url.as_str()))
            .unwrap_or(DEFAULT_URL);
        let base = base_url(text)?;
        // An address and a token that the user gave belong together. Otherwise the announced server is meant, if it has
        // this address. Its announcement may be stale, so it gets a token over its socket only.
        let local = found
            .filter(|_| url.is_none() || token.is_none())
            .filter(|found| base_url(&found.url).is_ok_and(|local| local == base));
        if let Some(problem) = local.as_ref().and_then(Discovered::socket_problem) {
            return Err(Failure::with_hint(
                format!("failed to reach the local server: {problem}"),
                format!("is it running? {NAME_ANOTHER}"),
            ));
        }
        let (token, token_from) = match (token, &local) {
            (Some(token), _) => (
                Some(token.trim().to_owned()),
                "--token or CUELINE_TOKEN".to_owned(),
            ),
            (None, Some(local)) => {
                let file = local.token_file.display().to_string();
                (Some(read_token(&local.token_file)?), file)
            }
            (None, None) => (None, String::new()),
        };
        let socket = local.map(|local| local.socket);
        let target = match &socket {
            Some(_) => without_tls(&base),
            None => base.clone(),
        };
        Ok(Self {
            http: http(&target, socket.as_deref(), named)?,
            base,
            target,
            token,
            token_from,
            namespace: named.namespace()?,
            socket,
        })
    }

    /// The namespace that the user named.
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
        self.in_namespace(&Namespace::default())
            .get(path, &query)
            .await
    }

    /// The server's address.
    pub(crate) fn url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
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
        self.in_namespace(&Namespace::default())
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
        response.json().await.map_err(|error| {
            Failure::failed(format!(
                "failed to read the answer of {}: {}",
                self.url(),
                innermost(&error)
            ))
        })
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

    fn request(&self, method: Method, path: &[&str], query: &[(&str, String)]) -> RequestBuilder {
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
        let request = self.http.request(method, url);
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
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

    async fn refusal(&self, response: Response) -> Failure {
        let status = response.status();
        let text = response.text().await.unwrap_or_default();
        let Ok(problem) = serde_json::from_str::<Problem>(&text) else {
            return Failure::with_hint(
                format!("{} answered {status}", self.url()),
                "is there a Cueline server at that address?",
            );
        };
        match status {
            StatusCode::UNAUTHORIZED => Failure::with_hint(problem.detail, self.token_hint()),
            StatusCode::BAD_REQUEST
            | StatusCode::UNPROCESSABLE_ENTITY
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNSUPPORTED_MEDIA_TYPE => Failure::BadInput {
                messages: messages(problem),
                summary: None,
            },
            _ => Failure::failed(problem.detail),
        }
    }

    fn token_hint(&self) -> String {
        if self.token.is_none() {
            "set CUELINE_TOKEN to the content of the server's admin.token file".to_owned()
        } else {
            format!("the token was taken from {}", self.token_from)
        }
    }
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

fn base_url(text: &str) -> Result<Url, Failure> {
    let refuse = |why: &str| {
        Failure::bad_input(format!(
            "url: {text:?} {why}; write it as http://127.0.0.1:7800"
        ))
    };
    let url = Url::parse(text).map_err(|error| refuse(&format!("is not an address ({error})")))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(refuse("is neither http nor https"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(refuse("has a query or a fragment"));
    }
    Ok(url)
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
    let local = match target.host_str() {
        Some("localhost") => true,
        Some(host) => host
            .trim_matches(['[', ']'])
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_loopback()),
        None => false,
    };
    if let Some(socket) = socket {
        builder = builder.unix_socket(socket).no_proxy();
    } else if local {
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

fn read_token(path: &Path) -> Result<String, Failure> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) => Err(Failure::with_hint(
            format!("failed to read the token from {}: {error}", path.display()),
            "run this as the user who started the server, or set CUELINE_TOKEN",
        )),
    }
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
