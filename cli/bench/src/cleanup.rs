//! Deletes the streams, queues and exchanges that a benchmark has created on a broker. They share a prefix of its own.

use anyhow::Result;

use crate::args::Servers;
use crate::ceiling::{nats, rabbitmq};

/// Deletes everything whose name has this prefix.
pub(crate) async fn delete_all(servers: &Servers, prefix: &str) -> Result<()> {
    if servers.is_rabbitmq() {
        return rabbitmq::delete_all(&servers.broker, prefix).await;
    }
    nats::delete_all(&servers.broker, prefix).await
}
