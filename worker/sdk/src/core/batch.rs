//! What one turn has decided: what is to be written, and what is to be done once it is.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use bytes::Bytes;
use cueline_broker::{Receipt, Settlement};
use cueline_model::{AttemptEvent, JobName, Outcome, Timestamp};
use cueline_protocol::Trigger;

use crate::context::StopReason;
use crate::journal::{Known, Row, State};
use crate::outbox::Report;
use crate::settle::Settled;
use crate::stores::{AttemptKey, RunKey};

/// The decisions of one turn.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) now: Timestamp,
    /// At most one for each run.
    pub(super) rows: Vec<Row>,
    row_of: HashMap<RunKey, usize>,
    pub(super) settled: Vec<Settled>,
    pub(super) start: Vec<(AttemptKey, Trigger)>,
    pub(super) stop: Vec<(AttemptKey, StopReason)>,
    pub(super) reports: Vec<Report>,
}

impl Batch {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            now,
            rows: Vec::new(),
            row_of: HashMap::new(),
            settled: Vec::new(),
            start: Vec::new(),
            stop: Vec::new(),
            reports: Vec::new(),
        }
    }

    pub(super) fn settle(&mut self, receipt: Receipt, settlement: Settlement) {
        self.settled.push((receipt, settlement));
    }

    /// The trigger waits.
    pub(super) fn accept(&mut self, id: AttemptKey, trigger: &Trigger, payload: Bytes, seq: i64) {
        self.put(Row {
            id,
            state: State::Accepted,
            seq,
            at_ms: self.now.as_millis(),
            job: Some(trigger.job.name.to_string()),
            trigger: Some(payload),
            outcome: None,
        });
    }

    /// The trigger is started once the batch is on disk.
    pub(super) fn start(&mut self, id: AttemptKey, trigger: Trigger) {
        self.put(Row {
            id,
            state: State::Started,
            seq: 0,
            at_ms: self.now.as_millis(),
            job: Some(trigger.job.name.to_string()),
            trigger: None,
            outcome: None,
        });
        self.start.push((id, trigger));
    }

    /// The attempt has ended.
    pub(super) fn end(&mut self, id: AttemptKey, job: JobName, outcome: Outcome) {
        self.put(Row {
            id,
            state: State::Ended,
            seq: 0,
            at_ms: self.now.as_millis(),
            job: Some(job.to_string()),
            trigger: None,
            outcome: Some(json_of(&outcome)),
        });
        self.report(id, job, outcome, false);
    }

    /// Reports an outcome that is in the journal already, or soon will be.
    pub(super) fn report(&mut self, id: AttemptKey, job: JobName, outcome: Outcome, again: bool) {
        self.reports.push(Report {
            id,
            job,
            body: AttemptEvent::Ended { outcome },
            again,
        });
    }

    /// Reports an outcome once more that is in the journal as this text.
    pub(super) fn report_again(&mut self, id: AttemptKey, job: JobName, outcome: &str) {
        match serde_json::from_str(outcome) {
            Ok(outcome) => self.report(id, job, outcome, true),
            Err(error) => {
                tracing::error!(run = %id.run, %error, "an outcome in the journal cannot be read");
            }
        }
    }

    /// The broker has the outcomes of these.
    pub(super) fn reported(&mut self, ids: Vec<AttemptKey>) {
        for id in ids {
            self.put(Row {
                id,
                state: State::Reported,
                seq: 0,
                at_ms: self.now.as_millis(),
                job: None,
                trigger: None,
                outcome: None,
            });
        }
    }

    /// What the batch itself makes known of a run, before it is on disk.
    pub(super) fn known(&self, run: RunKey) -> Option<Known> {
        let row = &self.rows[*self.row_of.get(&run)?];
        Some(Known {
            attempt: row.id.attempt,
            state: row.state,
            at_ms: row.at_ms,
            job: row.job.clone(),
            outcome: row.outcome.clone(),
        })
    }

    fn put(&mut self, mut row: Row) {
        match self.row_of.entry(row.id.run) {
            Entry::Vacant(vacant) => {
                vacant.insert(self.rows.len());
                self.rows.push(row);
            }
            Entry::Occupied(at) => {
                let old = &mut self.rows[*at.get()];
                if (row.id.attempt, row.state) <= (old.id.attempt, old.state) {
                    return;
                }
                if row.id.attempt == old.id.attempt {
                    row.seq = old.seq;
                    row.job = row.job.or_else(|| old.job.take());
                    row.outcome = row.outcome.or_else(|| old.outcome.take());
                }
                *old = row;
            }
        }
    }
}

fn json_of(outcome: &Outcome) -> String {
    // An outcome has string keys only, so writing it cannot fail; an empty text would read as "never ended".
    serde_json::to_string(outcome).unwrap_or_else(|_| "{}".to_owned())
}
