//! HTTP requests.

mod explain;
mod hop;
mod request;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cueline_outbound::{CONNECT_TIMEOUT, OutboundClient, SystemResolver};
use cueline_worker::model::HandlerSpec;
use cueline_worker::model::handler::HttpSpec;
use cueline_worker::{Context, Failure, Handler, LogStream, Output};
use reqwest::dns::Resolve;
use reqwest::header::{HeaderMap, LOCATION};
use reqwest::{Response, StatusCode, Url};

pub use cueline_outbound::{AddressPolicy, IpNet, RefusedAddress, parse_network};

use crate::process::lines::{MAX_LINE_BYTES, character_end};
use crate::secrets::SecretSources;
use crate::shortage::{self, Patience};
use hop::{Hop, is_redirect, target};
use request::HttpTexts;

/// How long a request without a time limit of its job may take.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(5);

/// How much of a response is kept.
const MAX_BODY_BYTES: usize = MAX_LINE_BYTES;

/// Runs [`HandlerSpec::Http`].
///
/// **Addresses.** The request goes only to addresses that the [`AddressPolicy`] permits. They are checked after the
/// name's resolution, and the client connects to the checked ones. Proxies of the environment are not used, because
/// they would resolve names themselves.
///
/// **Headers.** The request carries `X-Cueline-Run`, `X-Cueline-Attempt`, `X-Cueline-Job` and `X-Cueline-Fire-Time`
/// besides the spec's, and an `Idempotency-Key` unless the spec has one. The key is the same for all attempts of a run
/// and for no other run. Without a body in the spec, POST, PUT and PATCH send the run's parameter. The handler adds no
/// content type.
///
/// **Redirects** are followed as often as the spec says, and each address is checked. The spec's headers and the body
/// stay with the host, port and scheme that the spec names. A redirect from https to http is refused.
///
/// **Response.** The first 64 KiB of the body become log lines and [`Output::text`]. The rest is not read. The HTTP
/// status becomes the exit status. Neither header values nor the URL's query are ever logged.
///
/// **Time.** Connecting may take 10 s. The job's time limit bounds the rest, or
/// [`HttpHandlerBuilder::default_timeout`] if it has none. Stopping drops the request.
#[derive(Debug, Clone)]
pub struct HttpHandler {
    client: OutboundClient,
    policy: Arc<AddressPolicy>,
    secrets: SecretSources,
    default_timeout: Duration,
}

/// The settings of an [`HttpHandler`].
pub struct HttpHandlerBuilder {
    names: Arc<dyn Resolve>,
    policy: AddressPolicy,
    secrets: SecretSources,
    default_timeout: Duration,
}

impl HttpHandlerBuilder {
    /// The addresses that requests may reach. Default: all but link-local and metadata addresses.
    #[must_use]
    pub fn policy(mut self, policy: AddressPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Where the values of secrets are. Default: the worker's variables `CUELINE_SECRET_…`.
    #[must_use]
    pub fn secrets(mut self, secrets: SecretSources) -> Self {
        self.secrets = secrets;
        self
    }

    /// How long a request may take whose job has no time limit. Default: 5 minutes.
    #[must_use]
    pub fn default_timeout(mut self, limit: Duration) -> Self {
        self.default_timeout = limit;
        self
    }

    /// What resolves names. Default: the system. The policy checks its answers.
    #[must_use]
    pub fn resolver(mut self, names: Arc<dyn Resolve>) -> Self {
        self.names = names;
        self
    }

    /// A handler with connections of its own. If the TLS set-up of this machine cannot be used, its attempts fail.
    #[must_use]
    pub fn build(self) -> HttpHandler {
        cueline_worker::install_tls_provider();
        let policy = Arc::new(self.policy);
        HttpHandler {
            client: OutboundClient::new(self.names, Arc::clone(&policy), Vec::new()),
            policy,
            secrets: self.secrets,
            default_timeout: self.default_timeout,
        }
    }
}

impl HttpHandler {
    /// A handler with the default settings; see [`HttpHandler::builder`].
    #[must_use]
    #[expect(clippy::new_without_default, reason = "one way to a handler is enough")]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// A handler with other settings.
    pub fn builder() -> HttpHandlerBuilder {
        HttpHandlerBuilder {
            names: Arc::new(SystemResolver),
            policy: AddressPolicy::default(),
            secrets: SecretSources::default(),
            default_timeout: DEFAULT_TIMEOUT,
        }
    }

    /// Resolves the secrets, and keeps their values out of the answer and of messages.
    async fn exchange(&self, spec: &HttpSpec, cx: &Context) -> Result<Answer, Failure> {
        let mut resolver = self.secrets.resolver();
        let texts = HttpTexts {
            headers: resolver.map(&spec.headers).await?,
            body: resolver.optional(spec.body.as_ref()).await?,
        };
        let masks = resolver.into_masks();
        let answered = self.send_and_follow(spec, texts, cx).await;
        let mut answer = answered.map_err(|failure| masks.hide_in(failure))?;
        masks.hide(&mut answer.body);
        if !answer.complete {
            answer.body.truncate(masks.whole(&answer.body));
        }
        Ok(answer)
    }

    /// Sends the request, and those that redirects ask for.
    async fn send_and_follow(
        &self,
        spec: &HttpSpec,
        texts: HttpTexts,
        cx: &Context,
    ) -> Result<Answer, Failure> {
        let mut hop = request::first_hop(spec, texts, cx.info())?;
        let first = target(&hop.url);
        let own = request::own_headers(cx.info(), &hop.headers)?;
        let mut followed = 0;
        loop {
            let response = self.send(&hop, &own, cx).await?;
            let status = response.status();
            cx.log(format!("HTTP status {status}"));
            let location = response.headers().get(LOCATION).cloned();
            let Some(location) = location.filter(|_| follows(spec, status)) else {
                return answer(&hop, response).await;
            };
            if followed == spec.redirects {
                return Err(Failure::new(format!(
                    "more than {followed} redirects, the first by {first}"
                )));
            }
            followed += 1;
            hop = hop.redirected(status, &location)?;
            cx.log(format!("redirected to {}", target(&hop.url)));
        }
    }

    /// Sends one request. While the machine lacks descriptors or memory for it, it tries again for a while.
    async fn send(&self, hop: &Hop, own: &HeaderMap, cx: &Context) -> Result<Response, Failure> {
        // The client resolves only names. It connects to an address in a URL without asking the resolver.
        if let Some(address) = literal_address(&hop.url) {
            let checked = self.policy.check(address);
            checked.map_err(|refused| Failure::new(refused.to_string()))?;
        }
        let mut patience = Patience::new();
        loop {
            // The worker may have been paused since the attempt or the redirect.
            if let Some(reason) = cx.stop_reason() {
                return Err(Failure::new(format!("not sent ({reason:?})")));
            }
            let (shortage, failure) = match self.client.get(&hop.url).await {
                Err(error) => (explain::shortage(&error), Failure::new(error.to_string())),
                Ok(client) => match client.execute(hop.request(own)).await {
                    Ok(response) => return Ok(response),
                    // Without a connection, nothing was sent.
                    Err(error) if error.is_connect() => {
                        (explain::shortage(&error), failed(hop, error))
                    }
                    Err(error) => return Err(failed(hop, error)),
                },
            };
            let Some(shortage) = shortage else {
                return Err(failure);
            };
            if !patience.wait(shortage, cx).await {
                let (target, why) = (target(&hop.url), shortage::waited(shortage));
                return Err(Failure::new(format!("no connection to {target}: {why}")));
            }
        }
    }

    /// Sends the request within the default time limit if the job has none.
    async fn exchange_in_time(&self, spec: &HttpSpec, cx: &Context) -> Result<Answer, Failure> {
        let exchange = self.exchange(spec, cx);
        // The worker enforces the job's limit.
        if cx.info().timeout.is_some() {
            return exchange.await;
        }
        let limit = self.default_timeout;
        let ended = tokio::time::timeout(limit, exchange).await;
        ended.unwrap_or_else(|_| {
            Err(Failure::new(format!(
                "no whole response within {limit:?}, the limit of a job without timeout; set timeout to allow more"
            )))
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
        let answer = tokio::select! {
            biased;
            answer = self.exchange_in_time(spec, &cx) => answer?,
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

/// The address in the place of a host name. `Url` has normalised it, whatever its notation was.
fn literal_address(url: &Url) -> Option<std::net::IpAddr> {
    let host = url.host_str()?;
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    bare.unwrap_or(host).parse().ok()
}

/// Whether the job asks for the next request. A status that it expects is the end.
fn follows(spec: &HttpSpec, status: StatusCode) -> bool {
    spec.redirects > 0 && is_redirect(status) && !spec.expect.contains(&status.as_u16())
}

fn failed(hop: &Hop, error: reqwest::Error) -> Failure {
    Failure::new(explain::explain(&target(&hop.url), error))
}

async fn answer(hop: &Hop, mut response: Response) -> Result<Answer, Failure> {
    let status = response.status();
    let read = body(&mut response).await;
    let (body, complete) = read.map_err(|error| failed(hop, error))?;
    Ok(Answer {
        status,
        body,
        complete,
    })
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
        let hint = if spec.redirects == 0 && is_redirect(status) {
            "; the job follows no redirects (redirects = 0)"
        } else {
            ""
        };
        return Err(Failure {
            message: format!("HTTP status {status}{hint}"),
            exit_status,
        });
    }
    Ok(Output {
        text: (!text.is_empty()).then_some(text),
        exit_status,
    })
}
