//! Makes the request of an attempt. Pure.

use std::collections::BTreeMap;

use cueline_worker::model::handler::HttpSpec;
use cueline_worker::{AttemptInfo, Failure};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};

use super::hop::{Hop, is_http};

/// The receiver recognises repetitions of a run by this header
/// (<https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/>).
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The texts of a spec with the values of its secrets.
pub(super) struct HttpTexts {
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: Option<String>,
}

/// The request that the job describes.
pub(super) fn first_hop(
    spec: &HttpSpec,
    texts: HttpTexts,
    info: &AttemptInfo,
) -> Result<Hop, Failure> {
    // The URL itself may carry a secret, so the error does not contain it.
    let url = Url::parse(&spec.url).map_err(|e| Failure::new(format!("url: {e}")))?;
    if !is_http(&url) {
        return Err(Failure::new(format!(
            "url: {:?} is not supported; use http or https",
            url.scheme()
        )));
    }
    let method = Method::from_bytes(spec.method.as_bytes())
        .map_err(|_| Failure::new(format!("method: {:?} is not a method", spec.method)))?;
    let carries_body = matches!(method, Method::POST | Method::PUT | Method::PATCH);
    let params = || info.params.clone().filter(|_| carries_body);
    Ok(Hop {
        method,
        url,
        headers: spec_headers(&texts.headers)?,
        body: texts.body.or_else(params),
    })
}

fn spec_headers(texts: &BTreeMap<String, String>) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    for (name, value) in texts {
        let key = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| Failure::new(format!("headers: {name:?} is not a header's name")))?;
        headers.insert(key, header_value(name, value)?);
    }
    Ok(headers)
}

/// The headers that describe the attempt. They hold no secrets, so every host of a redirect gets them.
pub(super) fn own_headers(info: &AttemptInfo, of_job: &HeaderMap) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("x-cueline-run", info.id.run.to_string()),
        ("x-cueline-attempt", info.id.attempt.to_string()),
        ("x-cueline-job", info.job.to_string()),
        ("x-cueline-fire-time", info.fire_at.to_string()),
    ] {
        headers.insert(HeaderName::from_static(name), header_value(name, &value)?);
    }
    if !of_job.contains_key(IDEMPOTENCY_KEY) {
        // Run ids begin anew in each store.
        let key = format!("{}-{}", info.store, info.id.run);
        headers.insert(IDEMPOTENCY_KEY, header_value(IDEMPOTENCY_KEY, &key)?);
    }
    Ok(headers)
}

fn header_value(name: &str, value: &str) -> Result<HeaderValue, Failure> {
    HeaderValue::from_bytes(value.as_bytes())
        .map_err(|_| Failure::new(format!("headers: the value of {name:?} is not allowed")))
}
