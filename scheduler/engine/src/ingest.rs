//! Ingest: what executors report becomes the state of runs.

use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Delivery, QueueId, Receipt, Settlement};
use cueline_protocol::{ReportMessage, decode_reports};
use cueline_runtime::{Backoff, Stop};
use cueline_store::AttemptReport;
use tokio::time::{Instant, timeout_at};

use crate::counts::add;
use crate::error::StageError;
use crate::pace::gather;
use crate::shared::Shared;

/// Messages fetched at once. Each may have many reports.
const MAX_MESSAGES: usize = 256;

/// Ingests until `stop`, which comes when executors have drained as well.
pub(crate) async fn run(shared: Arc<Shared>, stop: Stop) {
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    while !stop.is_soft() {
        let batch = tokio::select! {
            batch = fetch(&shared, Duration::from_secs(5)) => batch,
            () = stop.soft() => return,
        };
        // What was fetched is settled, also when the stop comes now: otherwise it would come again only after a while.
        let turn = match batch {
            Ok(batch) => take_in(&shared, &batch).await,
            Err(e) => Err(e),
        };
        match turn {
            Ok(count) => {
                backoff.reset();
                if count > 0 {
                    gather(count, &stop).await;
                }
            }
            Err(e) => {
                let wait = backoff.next_wait();
                tracing::error!(error = %e, wait_ms = wait.as_millis(), "failed to take in results; trying again");
                tokio::time::sleep(wait).await;
            }
        }
    }
}

/// Takes in one batch, waiting up to `wait` for it; how many reports it had.
pub(crate) async fn once(shared: &Shared, wait: Duration) -> Result<usize, StageError> {
    take_in(shared, &fetch(shared, wait).await?).await
}

/// Takes in what is there, until nothing is or for `at_most`: where others work on, there is always more.
pub(crate) async fn finish(shared: &Shared, at_most: Duration) {
    let until = Instant::now() + at_most;
    while Instant::now() < until {
        let Ok(Ok(batch)) = timeout_at(until, fetch(shared, Duration::ZERO)).await else {
            return;
        };
        if !take_in(shared, &batch).await.is_ok_and(|n| n > 0) {
            return;
        }
    }
}

async fn fetch(shared: &Shared, wait: Duration) -> Result<Vec<Delivery>, StageError> {
    let most = shared.options.ingest_batch.clamp(1, MAX_MESSAGES);
    Ok(shared.broker.fetch(&QueueId::Results, most, wait).await?)
}

/// Writes down what the messages report, so many of them at once that their reports make a batch, and settles them.
async fn take_in(shared: &Shared, batch: &[Delivery]) -> Result<usize, StageError> {
    if batch.is_empty() {
        return Ok(0);
    }
    shared.rush.pass().await;
    let (mut count, mut rest) = (0, batch);
    while !rest.is_empty() {
        let part = read(shared, rest);
        let (now, later) = rest.split_at(part.settlements.len());
        let ingested = match shared.store.ingest_reports(&part.reports).await {
            Ok(ingested) => ingested,
            Err(e) => {
                let again: Vec<_> = rest
                    .iter()
                    .map(|d| (d.receipt, Settlement::Retry(Duration::from_millis(200))))
                    .collect();
                shared.broker.settle(&QueueId::Results, &again).await?;
                return Err(e.into());
            }
        };
        // A retry or a child may be due before the next look at the store.
        let soon = shared.now().plus_ms(shared.options.poll_ms);
        if ingested.next_due_at.is_some_and(|due| due <= soon) {
            shared.wakers.claim.wake();
        }
        shared
            .broker
            .settle(&QueueId::Results, &part.settlements)
            .await?;
        add(&shared.taken_in, now.len());
        count += part.reports.len().max(now.len());
        rest = later;
    }
    Ok(count)
}

/// What some messages say, and what becomes of them.
struct Part {
    reports: Vec<AttemptReport>,
    settlements: Vec<(Receipt, Settlement)>,
}

/// Reads messages until their reports are a batch.
fn read(shared: &Shared, messages: &[Delivery]) -> Part {
    let mut reports = Vec::new();
    let mut settlements = Vec::new();
    for delivery in messages {
        if reports.len() >= shared.options.ingest_batch.max(1) {
            break;
        }
        let mut wrong = None;
        for event in decode_reports(&delivery.payload) {
            let known = event.map_err(|e| e.to_string()).and_then(|event| {
                shared.foreign(event.store).map_or(Ok(event), |why| {
                    Err(format!("failed to take in the report: {why}"))
                })
            });
            match known {
                Ok(event) => reports.push(report(event)),
                Err(why) => wrong = wrong.or(Some(why)),
            }
        }
        // What can be read of it counts. Taken in once more, when somebody sends it again, that changes nothing.
        let settlement = wrong.map_or(Settlement::Ack, Settlement::Dead);
        settlements.push((delivery.receipt, settlement));
    }
    Part {
        reports,
        settlements,
    }
}

fn report(message: ReportMessage) -> AttemptReport {
    AttemptReport {
        attempt: message.attempt_id(),
        executor: Some(message.executor),
        event: message.event,
    }
}
