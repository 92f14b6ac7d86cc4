//! Requests for one of many objects.

use cueline_interface::Failure;
use reqwest::{Method, StatusCode};
use serde_json::Value;

use crate::client::Api;

/// A change of one object.
#[derive(Debug, Clone)]
pub(super) struct Change {
    /// Its name, as people know it.
    pub(super) name: String,
    /// The server's paths of its namespace.
    pub(super) api: Api,
    pub(super) method: Method,
    pub(super) path: Vec<String>,
    pub(super) body: Option<Value>,
    /// The entity tag of the version that was counted.
    pub(super) etag: Option<String>,
    /// Sent with the request, so that it creates nothing twice.
    pub(super) key: Option<String>,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Changed {
    /// The server's answer.
    Done(Value),
    /// It is another version than the one that was counted, or is gone.
    Differs(String),
    /// The server does not do it.
    Refused(String),
}

impl Change {
    /// Sends the request. If the connection ends before the answer, it is sent once more: a version or a key keeps it from
    /// being carried out twice.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached or does not accept the caller, so that it makes no sense to go on.
    pub(super) async fn send(&self) -> Result<Changed, Failure> {
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        let request = || {
            let mut request = self.api.request(self.method.clone(), &path, &[]);
            if let Some(body) = &self.body {
                request = request.json(body);
            }
            if let Some(etag) = &self.etag {
                request = request.header("if-match", etag);
            }
            if let Some(key) = &self.key {
                request = request.header("idempotency-key", format!("\"{key}\""));
            }
            request
        };
        let response = self.api.sent(request().send().await)?;
        match response.status() {
            StatusCode::NO_CONTENT => Ok(Changed::Done(Value::Null)),
            status if status.is_success() => Ok(Changed::Done(self.api.read_json(response).await?)),
            StatusCode::PRECONDITION_FAILED | StatusCode::NOT_FOUND => {
                let failure = self.api.refusal(response).await;
                Ok(Changed::Differs(failure.message()))
            }
            StatusCode::FORBIDDEN
            | StatusCode::CONFLICT
            | StatusCode::UNPROCESSABLE_ENTITY
            | StatusCode::TOO_MANY_REQUESTS => {
                let failure = self.api.refusal(response).await;
                Ok(Changed::Refused(failure.message()))
            }
            _ => Err(self.api.refusal(response).await),
        }
    }
}
