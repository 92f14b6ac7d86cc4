//! Ingest: what executors report becomes the state of runs.

use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Delivery, QueueId, Receipt, Settlement};
use cueline_protocol::{Event, EventBody, decode};
use cueline_runtime::{Backoff, Stop};
use cueline_store::{AttemptId, Report, ReportBody};

use crate::counts::add;
use crate::error::StageError;
use crate::pace::gather;
use crate::shared::Shared;

/// Ingests until the hard stop: executors that drain during the soft one still report.
pub(crate) async fn run(shared: Arc<Shared>, stop: Stop) {
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    while !stop.is_soft() {
        let turn = tokio::select! {
            turn = once(&shared, Duration::from_secs(5)) => turn,
            () = stop.soft() => return,
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

/// Takes in one batch, waiting up to `wait` for it; how many messages it had.
pub(crate) async fn once(shared: &Shared, wait: Duration) -> Result<usize, StageError> {
    let batch = shared
        .broker
        .fetch(&QueueId::Results, shared.options.ingest_batch, wait)
        .await?;
    if batch.is_empty() {
        return Ok(0);
    }
    let (reports, settlements) = read(shared, &batch);
    let ingested = match shared.store.ingest(&reports).await {
        Ok(ingested) => ingested,
        Err(e) => {
            let again: Vec<_> = batch
                .iter()
                .map(|d| (d.receipt, Settlement::Retry(Duration::from_millis(200))))
                .collect();
            shared.broker.settle(&QueueId::Results, &again).await?;
            return Err(e.into());
        }
    };
    let count = batch.len();
    shared
        .broker
        .settle(&QueueId::Results, &settlements)
        .await?;
    add(&shared.taken_in, count);
    // A retry or a child may be due before the next look at the store.
    let soon = shared.now().plus_ms(shared.options.poll_ms);
    if ingested.next_due.is_some_and(|due| due <= soon) {
        shared.wakers.claim.wake();
    }
    Ok(count)
}

fn read(shared: &Shared, batch: &[Delivery]) -> (Vec<Report>, Vec<(Receipt, Settlement)>) {
    let mut reports = Vec::with_capacity(batch.len());
    let mut settlements = Vec::with_capacity(batch.len());
    for delivery in batch {
        let settlement = match decode::<Event>(&delivery.payload) {
            Ok(event) => match shared.foreign(event.store) {
                None => {
                    reports.push(report(event));
                    Settlement::Ack
                }
                Some(why) => Settlement::Dead(format!("failed to take in the report: {why}")),
            },
            Err(e) => Settlement::Dead(e.to_string()),
        };
        settlements.push((delivery.receipt, settlement));
    }
    (reports, settlements)
}

fn report(event: Event) -> Report {
    let body = match event.body {
        EventBody::Started { at } => ReportBody::Started(at),
        EventBody::Progress { fraction } => ReportBody::Progress(fraction),
        EventBody::Log { lines } => ReportBody::Log(
            lines
                .into_iter()
                .map(|l| (l.seq, l.at, l.stream.as_str(), l.text))
                .collect(),
        ),
        EventBody::Ended { outcome } => ReportBody::Ended(outcome),
    };
    Report {
        id: AttemptId {
            run: event.run,
            attempt: event.attempt,
        },
        executor: Some(event.executor),
        body,
    }
}
