//! `cueline health`: whether a process is ready, for the health checks of containers that have no other client of HTTP.

use cueline_interface::{Failure, Out};
use serde_json::json;

use crate::client::Api;

/// Asks once. Fails if the process is not ready or does not answer.
pub(crate) async fn run(api: &Api, out: Out) -> Result<(), Failure> {
    api.ready().await?;
    if out.is_json() {
        return out.json(&json!({ "url": api.url(), "ready": true }));
    }
    out.line(&format!("{} is ready", api.url()))
}
