//! Puts several reports into one message. A broker's work depends on the number of messages more than on their size.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use cueline_broker::{Outgoing, QueueId};
use cueline_model::AttemptEvent;
use cueline_protocol::origin::Purpose;
use cueline_protocol::{ReportMessage, VERSION, encode_report};

use super::queue::Report;
use crate::settings::Settings;

/// The most reports in one message.
const MAX_REPORTS: usize = 400;
/// The largest message of several reports, in bytes. A single report may be larger.
const MAX_BYTES: usize = 64 * 1024;
/// The topic of a message with reports of several jobs. No job has this name.
const SEVERAL_JOBS: &str = "_";

/// A message and its reports.
pub(super) struct Message {
    pub(super) reports: Vec<Report>,
    pub(super) outgoing: Outgoing,
}

/// Makes messages of reports.
pub(super) struct MessageWriter {
    settings: Arc<Settings>,
    /// Begins all message ids. A stream drops the second of two messages with one id, also if another user of the broker
    /// published the first. Nothing else that the worker sends has this number, so no other worker knows it.
    nonce: u64,
    /// Number of the last message of this process. It makes message ids unique.
    counter: u64,
    /// The largest message of several reports with its seal, in bytes. It is lowered when the broker accepts less.
    pub(super) max_bytes: usize,
}

impl MessageWriter {
    pub(super) fn new(settings: Arc<Settings>) -> Self {
        Self {
            settings,
            // It decides nothing, so it needs no seed.
            nonce: RandomState::new().hash_one(std::process::id()),
            counter: 0,
            max_bytes: MAX_BYTES,
        }
    }

    /// Writes the reports into as few messages as the limits allow, in order.
    pub(super) fn write_all(&mut self, reports: Vec<Report>) -> Vec<Message> {
        let max_bytes = self
            .max_bytes
            .saturating_sub(self.settings.origin.overhead());
        let mut messages = Vec::new();
        let mut chunk: Vec<Report> = Vec::new();
        let mut payload: Vec<u8> = Vec::new();
        let mut before: Option<ReportMessage> = None;
        for report in reports {
            let wire = self.wire(&report);
            let mut line = encode_report(&wire, before.as_ref());
            let fits = chunk.len() < MAX_REPORTS && payload.len() + line.len() < max_bytes;
            if !chunk.is_empty() && !fits {
                let full = std::mem::take(&mut payload);
                messages.extend(self.message(std::mem::take(&mut chunk), full));
                line = encode_report(&wire, None);
            }
            if !chunk.is_empty() {
                payload.push(b'\n');
            }
            payload.extend(line);
            chunk.push(report);
            before = Some(wire);
        }
        messages.extend(self.message(chunk, payload));
        messages
    }

    /// The message of a single report.
    pub(super) fn write(&mut self, report: Report) -> Option<Message> {
        let payload = encode_report(&self.wire(&report), None);
        self.message(vec![report], payload)
    }

    fn message(&mut self, reports: Vec<Report>, payload: Vec<u8>) -> Option<Message> {
        let (first, others) = reports.split_first()?;
        self.counter += 1;
        let mut id = self.report_id(first);
        if !others.is_empty() {
            // The first report may be resent together with other ones. That message must not have the id of this one.
            id = format!("{id}+{}:{}", others.len(), self.counter);
        }
        let one_job = others.iter().all(|report| report.job == first.job);
        let topic = if one_job {
            first.job.as_str()
        } else {
            SEVERAL_JOBS
        };
        let outgoing = Outgoing {
            queue: QueueId::Results,
            topic: topic.to_owned(),
            id,
            payload: self.settings.origin.seal(Purpose::Reports, payload).into(),
        };
        Some(Message { reports, outgoing })
    }

    /// The id of a message with only this report. A repeated publish has the same one, so that the broker can drop
    /// the duplicate.
    fn report_id(&self, report: &Report) -> String {
        let suffix = match &report.event {
            AttemptEvent::Started { .. } => "started".to_owned(),
            AttemptEvent::Progress { .. } => format!("progress:{}", self.counter),
            AttemptEvent::Log { lines } => format!("log:{}", lines.first().map_or(0, |l| l.seq)),
            AttemptEvent::Ended { .. } if report.resend => format!("again:{}", self.counter),
            AttemptEvent::Ended { .. } => "ended".to_owned(),
        };
        let run = report.key.run;
        let (nonce, store) = (self.nonce, run.store.short());
        format!("{nonce:016x}:{store}:{run}:{}:{suffix}", report.key.attempt)
    }

    fn wire(&self, report: &Report) -> ReportMessage {
        let run = report.key.run;
        ReportMessage {
            v: VERSION,
            store: run.store,
            run: run.run,
            attempt: report.key.attempt,
            group: self.settings.executor.group.clone(),
            executor: self.settings.executor.name.clone(),
            event: report.event.clone(),
        }
    }
}
