//! Ingest: what executors report becomes the state of runs.

use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Delivery, QueueId, Receipt, Settlement};
use cueline_protocol::{Event, EventBody, decode_events};
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

/// Messages fetched at once. Each may have many reports.
const MAX_MESSAGES: usize = 256;

/// Takes in one batch, waiting up to `wait` for it; how many reports it had.
pub(crate) async fn once(shared: &Shared, wait: Duration) -> Result<usize, StageError> {
    let at_once = shared.options.ingest_batch.max(1);
    let batch = shared
        .broker
        .fetch(&QueueId::Results, at_once.min(MAX_MESSAGES), wait)
        .await?;
    if batch.is_empty() {
        return Ok(0);
    }
    shared.rush.pass().await;
    let (reports, settlements) = read(shared, &batch);
    let mut next_due = None;
    for some in reports.chunks(at_once) {
        match shared.store.ingest(some).await {
            Ok(ingested) => next_due = next_due.into_iter().chain(ingested.next_due).min(),
            Err(e) => {
                let again: Vec<_> = batch
                    .iter()
                    .map(|d| (d.receipt, Settlement::Retry(Duration::from_millis(200))))
                    .collect();
                shared.broker.settle(&QueueId::Results, &again).await?;
                return Err(e.into());
            }
        }
    }
    shared
        .broker
        .settle(&QueueId::Results, &settlements)
        .await?;
    add(&shared.taken_in, batch.len());
    // A retry or a child may be due before the next look at the store.
    let soon = shared.now().plus_ms(shared.options.poll_ms);
    if next_due.is_some_and(|due| due <= soon) {
        shared.wakers.claim.wake();
    }
    Ok(reports.len().max(batch.len()))
}

fn read(shared: &Shared, batch: &[Delivery]) -> (Vec<Report>, Vec<(Receipt, Settlement)>) {
    let mut reports = Vec::with_capacity(batch.len());
    let mut settlements = Vec::with_capacity(batch.len());
    for delivery in batch {
        let mut wrong = None;
        for event in decode_events(&delivery.payload) {
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
