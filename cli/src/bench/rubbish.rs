//! What a benchmark leaves on a broker, and how it is swept away: streams, queues and exchanges under a prefix of its own.

use anyhow::Result;

/// Deletes everything of this prefix.
pub(super) async fn sweep(broker: &str, prefix: &str) -> Result<()> {
    if broker.starts_with("amqp") {
        return super::ceiling::rabbitmq::sweep(broker, prefix).await;
    }
    super::ceiling::nats::sweep(broker, prefix).await
}
