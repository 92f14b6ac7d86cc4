//! Sends the requests of the crate `openidconnect` by our HTTP client, within bounds.

use std::pin::Pin;
use std::time::Duration;

use openidconnect::{AsyncHttpClient, HttpRequest, HttpResponse};

/// The time limit for an answer with its body.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest body of an answer. A longer one is an error.
const MAX_BODY_BYTES: usize = 1024 * 1024;

/// Why there is no answer. It has no part of the request's or the answer's body.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    /// The request failed.
    #[error("failed to ask the provider")]
    Request(#[from] reqwest::Error),
    /// The answer is too long.
    #[error("the provider's answer has more than {MAX_BODY_BYTES} bytes")]
    TooLong,
    /// The head of the answer is not valid.
    #[error("the head of the provider's answer is not valid")]
    Head(#[from] openidconnect::http::Error),
}

/// Asks one provider.
#[derive(Debug)]
pub(super) struct ProviderHttp(reqwest::Client);

impl ProviderHttp {
    /// It follows no redirects: a redirect could lead a secret to another server.
    pub(super) fn new(is_loopback: bool) -> Result<Self, reqwest::Error> {
        cueline_runtime::tls::install_provider();
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(ANSWER_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none());
        if is_loopback {
            // For a proxy, a loopback address is the proxy's own machine.
            builder = builder.no_proxy();
        }
        builder.build().map(Self)
    }

    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let request = reqwest::Request::try_from(request)?;
        let mut answer = self.0.execute(request).await?;
        let mut body = Vec::new();
        while let Some(part) = answer.chunk().await? {
            if body.len() + part.len() > MAX_BODY_BYTES {
                return Err(HttpError::TooLong);
            }
            body.extend_from_slice(&part);
        }
        let mut whole = openidconnect::http::Response::builder().status(answer.status());
        for (name, value) in answer.headers() {
            whole = whole.header(name, value);
        }
        Ok(whole.body(body)?)
    }
}

impl<'c> AsyncHttpClient<'c> for ProviderHttp {
    type Error = HttpError;
    type Future = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'c>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(self.send(request))
    }
}
