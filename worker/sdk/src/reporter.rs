//! Publishes reports to the results queue, in order, until the broker has them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Outgoing, QueueId, Refusal};
use cueline_model::Outcome;
use cueline_protocol::{Event, EventBody, VERSION, encode};
use cueline_runtime::Backoff;

use crate::builder::Settings;
use crate::outbox::{Outbox, Report, bytes_of};
use crate::stores::Stores;

const MAX_BATCH: usize = 1_024;
const MAX_BATCH_BYTES: usize = 4 * 1024 * 1024;

/// After a small batch, before the next.
pub(crate) const PACE: Duration = Duration::from_millis(5);

/// Publishes.
pub(crate) struct Reporter {
    pub(crate) settings: Arc<Settings>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) stores: Arc<Stores>,
    /// Differs for each message of this process, for ids of messages that are no duplicates.
    pub(crate) counter: u64,
}

impl Reporter {
    /// Publishes what comes until it is dropped.
    pub(crate) async fn run(mut self) {
        loop {
            let batch = self.outbox.take(MAX_BATCH, MAX_BATCH_BYTES).await;
            let small = batch.len() < MAX_BATCH / 2;
            self.deliver(batch).await;
            if small {
                // More gathers meanwhile, and what starts goes before what has ended.
                tokio::time::sleep(PACE).await;
            }
        }
    }

    async fn deliver(&mut self, mut reports: Vec<Report>) {
        let mut messages: Vec<Outgoing> = reports.iter().map(|r| self.message_of(r)).collect();
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));
        loop {
            match self.settings.broker.publish(&messages).await {
                Ok(answers) => {
                    (reports, messages) = self.sort_out(reports, messages, answers);
                    if reports.is_empty() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, count = reports.len(), "reports were not published; trying again");
                }
            }
            tokio::time::sleep(backoff.next_wait()).await;
        }
    }

    /// Confirms what the broker took, and returns what is to be tried again.
    fn sort_out(
        &mut self,
        reports: Vec<Report>,
        messages: Vec<Outgoing>,
        answers: Vec<Result<(), Refusal>>,
    ) -> (Vec<Report>, Vec<Outgoing>) {
        if answers.iter().all(Result::is_ok) {
            self.outbox.confirm(&reports);
            return (Vec::new(), Vec::new());
        }
        let mut done = Vec::new();
        let mut again = (Vec::new(), Vec::new());
        for ((report, message), answer) in reports.into_iter().zip(messages).zip(answers) {
            match answer {
                Ok(()) => done.push(report),
                Err(Refusal::TooLarge { bytes, limit }) => {
                    let mut report = report;
                    if self.shorten(&mut report, bytes, limit) {
                        again.1.push(self.message_of(&report));
                        again.0.push(report);
                    } else {
                        done.push(report);
                    }
                }
                Err(refusal) => {
                    tracing::warn!(%refusal, "a report was refused; trying again");
                    again.0.push(report);
                    again.1.push(message);
                }
            }
        }
        self.outbox.confirm(&done);
        again
    }

    /// An outcome is reported without its texts rather than not at all; other reports are given up. False when there
    /// is nothing left to take away.
    fn shorten(&self, report: &mut Report, bytes: usize, limit: usize) -> bool {
        let before = bytes_of(report);
        tracing::warn!(run = %report.id.run, bytes, limit, "a report is too large for the broker");
        let EventBody::Ended { outcome } = &mut report.body else {
            return false;
        };
        let note = format!("the outcome was too large for the broker, which takes {limit} bytes");
        if outcome.output.is_none() && outcome.message.as_ref() == Some(&note) {
            return false;
        }
        *outcome = Outcome {
            message: Some(note),
            output: None,
            ..outcome.clone()
        };
        self.outbox
            .shortened(before.saturating_sub(bytes_of(report)));
        true
    }

    fn message_of(&mut self, report: &Report) -> Outgoing {
        let id = report.id.holding();
        let store = self.stores.id(report.id.run.store());
        self.counter += 1;
        let suffix = match &report.body {
            EventBody::Started { .. } => "started".to_owned(),
            EventBody::Progress { .. } => format!("progress:{}", self.counter),
            EventBody::Log { lines } => format!("log:{}", lines.first().map_or(0, |l| l.seq)),
            EventBody::Ended { .. } if report.again => {
                format!("again:{}:{}", self.settings.incarnation, self.counter)
            }
            EventBody::Ended { .. } => "ended".to_owned(),
        };
        let event = Event {
            v: VERSION,
            store,
            run: id.run,
            attempt: id.attempt,
            executor: self.settings.name.clone(),
            body: report.body.clone(),
        };
        Outgoing {
            queue: QueueId::Results,
            topic: report.job.to_string(),
            // Another store's run of the same number is another run.
            id: match store {
                Some(store) => format!("{}:{}:{}:{suffix}", store.short(), id.run, id.attempt),
                None => format!("{}:{}:{suffix}", id.run, id.attempt),
            },
            payload: Bytes::from(encode(&event)),
        }
    }
}
