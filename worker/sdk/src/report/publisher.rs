//! Publishes reports to the results queue, in order, until the broker has them.

use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Outgoing, Refusal};
use cueline_model::{AttemptEvent, Outcome};
use cueline_runtime::Backoff;

use super::message::{Message, MessageWriter};
use super::queue::{Report, ReportQueue};
use crate::linger;
use crate::settings::Settings;
use crate::status::WorkerStatus;

/// The most reports that are published at once, and their size in bytes.
const MAX_BATCH: usize = 1_024;
const MAX_BATCH_BYTES: usize = 4 * 1024 * 1024;

/// Publishes reports.
pub(crate) struct ReportPublisher {
    settings: Arc<Settings>,
    reports: Arc<ReportQueue>,
    status: Arc<WorkerStatus>,
    writer: MessageWriter,
}

impl ReportPublisher {
    pub(crate) fn new(
        settings: Arc<Settings>,
        reports: Arc<ReportQueue>,
        status: Arc<WorkerStatus>,
    ) -> Self {
        Self {
            writer: MessageWriter::new(Arc::clone(&settings)),
            settings,
            reports,
            status,
        }
    }

    /// Publishes reports as they come. Never returns.
    pub(crate) async fn run(mut self) {
        loop {
            let batch = self.reports.take(MAX_BATCH, MAX_BATCH_BYTES).await;
            // Reports under a key that schedulers do not accept yet would become dead letters.
            self.settings.origin.may_report().await;
            self.status.burst_gate.wait_until_open().await;
            let count = batch.len();
            self.publish(batch).await;
            linger::PUBLISH.pause_after(count).await;
        }
    }

    async fn publish(&mut self, reports: Vec<Report>) {
        let mut messages = self.writer.write_all(reports);
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));
        loop {
            let outgoing: Vec<Outgoing> = messages.iter().map(|m| m.outgoing.clone()).collect();
            match self.settings.broker.publish(&outgoing).await {
                Ok(answers) => {
                    messages = self.take_answers(messages, answers);
                    if messages.is_empty() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, messages = messages.len(), "failed to publish reports; trying again");
                }
            }
            tokio::time::sleep(backoff.next_wait()).await;
        }
    }

    /// Confirms the messages that the broker accepted, and returns those to publish again.
    fn take_answers(
        &mut self,
        messages: Vec<Message>,
        answers: Vec<Result<(), Refusal>>,
    ) -> Vec<Message> {
        let mut again = Vec::new();
        for (message, answer) in messages.into_iter().zip(answers) {
            match answer {
                Ok(()) => self.reports.confirm(&message.reports),
                Err(Refusal::TooLarge { bytes, limit }) => {
                    // A message of several reports is split first. Only a single report that is too large loses its
                    // texts, or is dropped.
                    let alone = message.reports.len() == 1;
                    self.writer.max_bytes = self.writer.max_bytes.min(limit);
                    for mut report in message.reports {
                        if !alone || self.shorten(&mut report, bytes, limit) {
                            again.extend(self.writer.write(report));
                        } else {
                            self.reports.confirm(&[report]);
                        }
                    }
                }
                Err(refusal) => {
                    tracing::warn!(error = %refusal, "the broker refused reports; trying again");
                    again.push(message);
                }
            }
        }
        again
    }

    /// Removes the texts of an outcome that is too large. False when nothing is left to remove; other reports are
    /// dropped.
    fn shorten(&self, report: &mut Report, bytes: usize, limit: usize) -> bool {
        tracing::warn!(
            run_id = %report.key.run, attempt = report.key.attempt, bytes, limit,
            "a report is too large for the broker; outcomes are reported without their texts, log lines are dropped"
        );
        let before = report.bytes();
        let AttemptEvent::Ended { outcome } = &mut report.event else {
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
        let bytes = before.saturating_sub(report.bytes());
        self.reports.shortened(bytes);
        true
    }
}
