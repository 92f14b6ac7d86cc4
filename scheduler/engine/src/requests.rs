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
/// Settled at once: what is done is not done again because of what comes after it.
const PART: usize = 20;
/// What has not been begun this long after it was fetched is given back. A third of the time after which a broker hands out again what was not
/// settled, and what was carried out would then be carried out twice.
const CARRIED_OUT_WITHIN_MS: i64 = 10_000;
/// As for a request over HTTP.
const MAX_KEY_BYTES: usize = 256;

/// Carries out requests until the stop.
pub(crate) async fn run(shared: Arc<Shared>, stop: Stop) {
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    while !stop.is_soft() {
        let batch = tokio::select! {
            batch = fetch(&shared, Duration::from_secs(5)) => batch,
            () = stop.soft() => return,
        };
        // What was fetched is settled, also when the stop comes now.
        let turn = match batch {
            Ok(batch) => take_in(&shared, &batch, &stop).await,
            Err(e) => Err(e),
        };
        match turn {
            Ok(()) => backoff.reset(),
            Err(e) => {
                let wait = backoff.next_wait();
                tracing::error!(error = %e, wait_ms = wait.as_millis(), "failed to take in trigger requests; trying again");
                tokio::time::sleep(wait).await;
            }
        }
    }
}

/// Carries out what has arrived; how many messages there were.
pub(crate) async fn once(shared: &Shared) -> Result<usize, StageError> {
    let batch = fetch(shared, Duration::ZERO).await?;
    take_in(shared, &batch, &Stop::new()).await?;
    Ok(batch.len())
}

async fn fetch(shared: &Shared, wait: Duration) -> Result<Vec<Delivery>, StageError> {
    Ok(shared.broker.fetch(&QueueId::Requests, BATCH, wait).await?)
}

/// Carries out one request after the other and settles them, those that there is no time for by giving them back.
async fn take_in(shared: &Shared, batch: &[Delivery], stop: &Stop) -> Result<(), StageError> {
    let fetched = shared.now();
    for part in batch.chunks(PART) {
        let mut settlements = Vec::with_capacity(part.len());
        for delivery in part {
            let is_late = shared.now().since_ms(fetched) > CARRIED_OUT_WITHIN_MS;
            let settlement = if is_late || stop.is_soft() {
                Settlement::Retry(Duration::ZERO)
            } else {
                carry_out(shared, delivery).await
            };
            settlements.push((delivery.receipt, settlement));
        }
        let broker = &shared.broker;
        broker.settle(&QueueId::Requests, &settlements).await?;
    }
    Ok(())
}

async fn carry_out(shared: &Shared, delivery: &Delivery) -> Settlement {
    let request = match decode::<Message>(&delivery.payload) {
        Ok(request) => request,
        Err(e) => return Settlement::Dead(e.to_string()),
    };
    if let Some(key) = request.key.as_ref().filter(|k| k.len() > MAX_KEY_BYTES) {
        return Settlement::Dead(format!(
            "failed to trigger {}: `key` takes a text of at most {MAX_KEY_BYTES} bytes; this one has {}",
            request.job,
            key.len()
        ));
    }
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
