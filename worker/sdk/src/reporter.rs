//! Publishes reports to the results queue, in order, until the broker has them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Outgoing, QueueId, Refusal};
use cueline_model::{AttemptEvent, Outcome};
use cueline_protocol::{ReportMessage, VERSION, encode};
use cueline_runtime::Backoff;

use crate::gauges::Gauges;
use crate::outbox::{Outbox, Report, bytes_of};
use crate::settings::Settings;
use crate::stores::Stores;

const MAX_BATCH: usize = 1_024;
const MAX_BATCH_BYTES: usize = 4 * 1024 * 1024;
/// Reports in one message at the most: a broker's work is by the message.
const MAX_TOGETHER: usize = 100;
/// And no more bytes than this, unless a single report has more: far below what brokers take.
pub(crate) const MAX_TOGETHER_BYTES: usize = 64 * 1024;
/// The topic of a message with reports of several jobs; no job's name.
const SEVERAL_JOBS: &str = "_";

/// After a small batch, before the next.
pub(crate) const PACE: Duration = Duration::from_millis(5);

/// Publishes.
pub(crate) struct Reporter {
    pub(crate) settings: Arc<Settings>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) stores: Arc<Stores>,
    pub(crate) gauges: Arc<Gauges>,
    /// Differs for each message of this process, for ids of messages that are no duplicates.
    pub(crate) counter: u64,
    /// What a message of several reports may have: [`MAX_TOGETHER_BYTES`], or what the broker has said.
    pub(crate) together_bytes: usize,
}

impl Reporter {
    /// Publishes what comes until it is dropped.
    pub(crate) async fn run(mut self) {
        loop {
            let batch = self.outbox.take(MAX_BATCH, MAX_BATCH_BYTES).await;
            self.gauges.burst_gate.wait_until_open().await;
            let small = batch.len() < MAX_BATCH / 2;
            self.deliver(batch).await;
            if small {
                // More gathers meanwhile, and what starts goes before what has ended.
                tokio::time::sleep(PACE).await;
            }
        }
    }

    async fn deliver(&mut self, reports: Vec<Report>) {
        let mut messages = self.messages_of(reports);
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));
        loop {
            let outgoing: Vec<Outgoing> = messages.iter().map(|m| m.outgoing.clone()).collect();
            match self.settings.broker.publish(&outgoing).await {
                Ok(answers) => {
                    messages = self.sort_out(messages, answers);
                    if messages.is_empty() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, count = messages.len(), "reports were not published; trying again");
                }
            }
            tokio::time::sleep(backoff.next_wait()).await;
        }
    }

    /// Confirms what the broker took, and returns what is to be tried again.
    fn sort_out(
        &mut self,
        messages: Vec<Message>,
        answers: Vec<Result<(), Refusal>>,
    ) -> Vec<Message> {
        let mut again = Vec::new();
        for (message, answer) in messages.into_iter().zip(answers) {
            match answer {
                Ok(()) => self.outbox.confirm(&message.reports),
                Err(Refusal::TooLarge { bytes, limit }) => {
                    let alone = message.reports.len() == 1;
                    self.together_bytes = self.together_bytes.min(limit);
                    for mut report in message.reports {
                        if !alone || self.shorten(&mut report, bytes, limit) {
                            again.push(self.message_of(report));
                        } else {
                            self.outbox.confirm(&[report]);
                        }
                    }
                }
                Err(refusal) => {
                    tracing::warn!(%refusal, "a report was refused; trying again");
                    again.push(message);
                }
            }
        }
        again
    }

    /// An outcome is reported without its texts rather than not at all; other reports are given up. False when there
    /// is nothing left to take away.
    fn shorten(&self, report: &mut Report, bytes: usize, limit: usize) -> bool {
        let before = bytes_of(report);
        tracing::warn!(run = %report.id.run, bytes, limit, "a report is too large for the broker");
        let AttemptEvent::Ended { outcome } = &mut report.body else {
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

    /// As few messages as it takes, in order.
    fn messages_of(&mut self, reports: Vec<Report>) -> Vec<Message> {
        let mut messages = Vec::new();
        let mut together = Together::default();
        for report in reports {
            let event = self.event_of(&report);
            let line = encode(&event);
            if !together.has_room_for(&line, self.together_bytes) {
                messages.extend(self.message(std::mem::take(&mut together)));
            }
            together.add(report, line);
        }
        messages.extend(self.message(together));
        messages
    }

    fn message_of(&mut self, report: Report) -> Message {
        let line = encode(&self.event_of(&report));
        let outgoing = self.outgoing(&report, Bytes::from(line));
        Message {
            reports: vec![report],
            outgoing,
        }
    }

    fn message(&mut self, together: Together) -> Option<Message> {
        let Together { reports, payload } = together;
        let (first, more) = reports.split_first()?;
        let mut outgoing = self.outgoing(first, Bytes::from(payload));
        if !more.is_empty() {
            // Others may be put together with the first when it is reported again: no id of that message may be this one's.
            let (incarnation, counter) = (&self.settings.incarnation, self.counter);
            outgoing.id = format!("{}+{}:{incarnation}:{counter}", outgoing.id, more.len());
        }
        if more.iter().any(|report| report.job != first.job) {
            SEVERAL_JOBS.clone_into(&mut outgoing.topic);
        }
        Some(Message { reports, outgoing })
    }

    fn event_of(&self, report: &Report) -> ReportMessage {
        let id = report.id.holding();
        ReportMessage {
            v: VERSION,
            store: self.stores.id(report.id.run.store()),
            run: id.run,
            attempt: id.attempt,
            executor: self.settings.name.clone(),
            event: report.body.clone(),
        }
    }

    /// The message, if it is of this report alone.
    fn outgoing(&mut self, report: &Report, payload: Bytes) -> Outgoing {
        let id = report.id.holding();
        let store = self.stores.id(report.id.run.store());
        self.counter += 1;
        let suffix = match &report.body {
            AttemptEvent::Started { .. } => "started".to_owned(),
            AttemptEvent::Progress { .. } => format!("progress:{}", self.counter),
            AttemptEvent::Log { lines } => format!("log:{}", lines.first().map_or(0, |l| l.seq)),
            AttemptEvent::Ended { .. } if report.again => {
                format!("again:{}:{}", self.settings.incarnation, self.counter)
            }
            AttemptEvent::Ended { .. } => "ended".to_owned(),
        };
        Outgoing {
            queue: QueueId::Results,
            topic: report.job.to_string(),
            // Another store's run of the same number is another run.
            id: format!("{}:{}:{}:{suffix}", store.short(), id.run, id.attempt),
            payload,
        }
    }
}

/// Reports that go as one message.
struct Message {
    reports: Vec<Report>,
    outgoing: Outgoing,
}

/// What is put together so far.
#[derive(Default)]
struct Together {
    reports: Vec<Report>,
    payload: Vec<u8>,
}

impl Together {
    fn has_room_for(&self, line: &[u8], most_bytes: usize) -> bool {
        self.reports.is_empty()
            || (self.reports.len() < MAX_TOGETHER && self.payload.len() + line.len() < most_bytes)
    }

    fn add(&mut self, report: Report, line: Vec<u8>) {
        if self.reports.is_empty() {
            self.payload = line;
        } else {
            self.payload.push(b'\n');
            self.payload.extend(line);
        }
        self.reports.push(report);
    }
}
