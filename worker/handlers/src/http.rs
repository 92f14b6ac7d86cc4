//! HTTP requests.

use std::error::Error as StdError;
use std::io::ErrorKind;
use std::time::Duration;

use async_trait::async_trait;
use cueline_worker::model::HandlerSpec;
use cueline_worker::model::handler::HttpSpec;
use cueline_worker::{Context, Failure, Handler, LogStream, Output};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, Request, Response, StatusCode, Url, redirect};

use crate::process::lines::{MAX_LINE_BYTES, character_end};

/// The most redirects that a request follows before it fails.
const MAX_REDIRECTS: usize = 5;

/// How long connecting may take. The whole request may take as long as the job's time limit allows.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How much of a response is kept.
const MAX_BODY_BYTES: usize = MAX_LINE_BYTES;

/// Why [`HttpHandler::new`] failed.
#[derive(Debug, thiserror::Error)]
#[error("failed to set up the HTTP client")]
pub struct HttpClientError(#[from] reqwest::Error);

/// Runs [`HandlerSpec::Http`].
///
/// The request carries the headers `X-Cueline-Run`, `X-Cueline-Attempt` and `X-Cueline-Job` besides the spec's.
/// Without a body in the spec, POST, PUT and PATCH send the run's parameter. The handler adds no content type.
///
/// It follows at most five redirects. `Authorization` and `Cookie` are not sent to another host; other headers are.
///
/// The first 64 KiB of the response's body become log lines and [`Output::text`]. The rest is not read. The HTTP status
/// becomes the exit status. Neither header values nor the URL's query are ever logged.
///
/// Connecting may take 10 s. Apart from that, only the job's time limit bounds the request. Stopping drops the request.
#[derive(Debug, Clone)]
pub struct HttpHandler {
    client: Client,
}

impl HttpHandler {
    /// A handler with connections of its own.
    ///
    /// # Errors
    ///
    /// When the TLS set-up of this machine cannot be used.
    pub fn new() -> Result<Self, HttpClientError> {
        cueline_worker::install_tls_provider();
        let client = Client::builder()
            .redirect(redirect::Policy::limited(MAX_REDIRECTS))
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("cueline/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(Self { client })
    }

    async fn exchange(&self, request: Request, cx: &Context) -> Result<Answer, Failure> {
        let target = target(request.url());
        let failed = |e: reqwest::Error| Failure::new(explain(&target, e));
        let mut response = self.client.execute(request).await.map_err(failed)?;
        let status = response.status();
        cx.log(format!("HTTP status {status}"));
        let (body, complete) = body(&mut response).await.map_err(failed)?;
        Ok(Answer {
            status,
            body,
            complete,
        })
    }
}

struct Answer {
    status: StatusCode,
    body: Vec<u8>,
    complete: bool,
}

#[async_trait]
impl Handler for HttpHandler {
    async fn run(&self, cx: Context) -> Result<Output, Failure> {
        let HandlerSpec::Http(spec) = &cx.info().handler else {
            return Err(mismatch(&cx));
        };
        let request = request(spec, &cx)?;
        if let Some(reason) = cx.stop_reason() {
            return Err(Failure::new(format!("not sent ({reason:?})")));
        }
        let answer = tokio::select! {
            biased;
            answer = self.exchange(request, &cx) => answer?,
            reason = cx.stopped() => {
                return Err(Failure::new(format!("stopped ({reason:?}): the request was dropped")));
            }
        };
        report(spec, &answer, &cx)
    }
}

fn mismatch(cx: &Context) -> Failure {
    crate::mismatch("http", &cx.info().handler)
}

fn request(spec: &HttpSpec, cx: &Context) -> Result<Request, Failure> {
    // The URL itself may carry a secret, so the error does not contain it.
    let url = Url::parse(&spec.url).map_err(|e| Failure::new(format!("url: {e}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(Failure::new(format!(
            "url: {:?} is not supported; use http or https",
            url.scheme()
        )));
    }
    let method = Method::from_bytes(spec.method.as_bytes())
        .map_err(|_| Failure::new(format!("method: {:?} is not a method", spec.method)))?;
    let carries_body = matches!(method, Method::POST | Method::PUT | Method::PATCH);
    let mut request = Request::new(method, url);
    *request.headers_mut() = headers(spec, cx)?;
    let body = match &spec.body {
        Some(body) => Some(body),
        None if carries_body => cx.info().params.as_ref(),
        None => None,
    };
    *request.body_mut() = body.map(|text| text.clone().into());
    Ok(request)
}

fn headers(spec: &HttpSpec, cx: &Context) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    for (name, value) in &spec.headers {
        let key = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| Failure::new(format!("headers: {name:?} is not a header's name")))?;
        let value = HeaderValue::from_bytes(value.as_bytes())
            .map_err(|_| Failure::new(format!("headers: the value of {name:?} is not allowed")))?;
        headers.insert(key, value);
    }
    let info = cx.info();
    for (name, value) in [
        ("x-cueline-run", info.id.run.to_string()),
        ("x-cueline-attempt", info.id.attempt.to_string()),
        ("x-cueline-job", info.job.to_string()),
    ] {
        let value = HeaderValue::from_bytes(value.as_bytes())
            .map_err(|_| Failure::new(format!("headers: the value of {name:?} is not allowed")))?;
        headers.insert(HeaderName::from_static(name), value);
    }
    Ok(headers)
}

/// Returns the start of the body, and whether that is the whole body.
async fn body(response: &mut Response) -> Result<(Vec<u8>, bool), reqwest::Error> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        let room = MAX_BODY_BYTES - body.len();
        if chunk.len() > room {
            body.extend_from_slice(&chunk[..room]);
            body.truncate(character_end(&body));
            return Ok((body, false));
        }
        body.extend_from_slice(&chunk);
    }
    Ok((body, true))
}

fn report(spec: &HttpSpec, answer: &Answer, cx: &Context) -> Result<Output, Failure> {
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    for line in text.lines() {
        cx.line(LogStream::Out, line.to_owned());
    }
    if !answer.complete {
        cx.log(format!(
            "the response is longer; only its first {} KiB were read",
            MAX_BODY_BYTES / 1024
        ));
    }
    let status = answer.status;
    let exit_status = Some(i32::from(status.as_u16()));
    let expected = if spec.expect.is_empty() {
        status.is_success()
    } else {
        spec.expect.contains(&status.as_u16())
    };
    if !expected {
        return Err(Failure {
            message: format!("HTTP status {status}"),
            exit_status,
        });
    }
    Ok(Output {
        text: (!text.is_empty()).then_some(text),
        exit_status,
    })
}

/// Host and port, for messages.
fn target(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port_or_known_default() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

/// Explains an error in words, without the URL, because the URL may carry a secret.
fn explain(target: &str, error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut chain = Vec::new();
    let mut kind = None;
    let mut next: Option<&(dyn StdError + 'static)> = Some(&error);
    while let Some(cause) = next {
        let io = cause.downcast_ref::<std::io::Error>();
        kind = io
            .map(std::io::Error::kind)
            .filter(|kind| *kind != ErrorKind::Other)
            .or(kind);
        let text = cause.to_string();
        if chain.last() != Some(&text) {
            chain.push(text);
        }
        // `source` of an I/O error skips the error that it wraps, so `get_ref` is used.
        next = match io.and_then(std::io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => cause.source(),
        };
    }
    let deepest = chain.last().map_or("", String::as_str);
    let mentions = |words: &str| chain.iter().any(|c| c.contains(words));
    if error.is_redirect() {
        format!("more than {MAX_REDIRECTS} redirects, the first by {target}")
    } else if mentions("dns error") {
        format!("host not found: {target} ({deepest})")
    } else if error.is_timeout() {
        format!("timed out: no connection to {target} within {CONNECT_TIMEOUT:?}")
    } else if kind == Some(ErrorKind::ConnectionRefused) {
        format!("connection refused by {target}")
    } else if error.is_connect() && kind == Some(ErrorKind::InvalidData) || mentions("certificate")
    {
        format!("TLS with {target} failed: {deepest}")
    } else {
        format!("the request to {target} failed: {}", chain.join(": "))
    }
}
