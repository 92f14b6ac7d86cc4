//! Requests to trigger a job that came over the broker.

use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Delivery, QueueId, Settlement};
use cueline_protocol::{TriggerRequest as Message, decode};
use cueline_runtime::{Backoff, Stop};
use cueline_store::{ErrorKind, TriggerRequest};

use crate::error::StageError;
use crate::shared::Shared;

/// Taken at once.
const BATCH: usize = 200;

/// Carries out requests until the stop.
pub(crate) async fn run(shared: Arc<Shared>, stop: Stop) {
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    while !stop.is_soft() {
        let turn = tokio::select! {
            turn = once(&shared, Duration::from_secs(5)) => turn,
            () = stop.soft() => return,
        };
        match turn {
            Ok(_) => backoff.reset(),
            Err(e) => {
                let wait = backoff.next_wait();
                tracing::error!(error = %e, wait_ms = wait.as_millis(), "failed to take in trigger requests; trying again");
                tokio::time::sleep(wait).await;
            }
        }
    }
}

/// Carries out what has arrived, waiting up to `wait` for it; how many messages there were.
pub(crate) async fn once(shared: &Shared, wait: Duration) -> Result<usize, StageError> {
    let batch = shared.broker.fetch(&QueueId::Requests, BATCH, wait).await?;
    if batch.is_empty() {
        return Ok(0);
    }
    let mut settlements = Vec::with_capacity(batch.len());
    for delivery in &batch {
        settlements.push((delivery.receipt, carry_out(shared, delivery).await));
    }
    shared
        .broker
        .settle(&QueueId::Requests, &settlements)
        .await?;
    Ok(batch.len())
}

async fn carry_out(shared: &Shared, delivery: &Delivery) -> Settlement {
    let request = match decode::<Message>(&delivery.payload) {
        Ok(request) => request,
        Err(e) => return Settlement::Dead(e.to_string()),
    };
    let by = request.by.as_deref().unwrap_or("nobody named");
    let request = TriggerRequest {
        job: request.job,
        params: request.params,
        idempotency_key: request.key,
        run_at: request.at,
        by: format!("a message of {by}"),
    };
    match crate::desk::trigger(shared, &request).await {
        Ok(_) => Settlement::Ack,
        Err(e) if matches!(e.kind(), ErrorKind::Transient | ErrorKind::Broken) => {
            tracing::warn!(job = %request.job, error = %e, "a trigger request could not be carried out; trying again");
            Settlement::Retry(Duration::from_millis(500))
        }
        Err(e) => Settlement::Dead(format!("failed to trigger {}: {e}", request.job)),
    }
}
