//! The decisions of one turn: the entries to journal, and the actions that follow once they are on disk.

use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;
use std::sync::Arc;

use bytes::Bytes;
use cueline_broker::{Receipt, Settlement};
use cueline_model::{AttemptEvent, JobName, Outcome, Timestamp};
use cueline_protocol::Trigger;
use tokio::time::Instant;

use crate::context::StopReason;
use crate::handler::Handler;
use crate::identity::{AttemptKey, RunKey, fire_of};
use crate::journal::{Entry, EntryState};
use crate::report::Report;
use crate::settle::Settlements;

/// An accepted trigger and the handler that runs it.
pub(super) struct StartableAttempt {
    pub(super) trigger: Trigger,
    pub(super) handler: Arc<dyn Handler>,
    /// When the trigger arrived in this process.
    pub(super) fetched_at: Instant,
    /// `None` once the journal has the trigger.
    pub(super) unjournalled: Option<Unjournalled>,
}

/// What journals a trigger and settles its message. Until then the broker keeps the message.
pub(super) struct Unjournalled {
    pub(super) receipt: Receipt,
    pub(super) payload: Bytes,
    /// The order of acceptance.
    pub(super) seq: i64,
}

impl StartableAttempt {
    /// Journals the trigger as accepted and acks it, unless that is done. A later state that is decided in the same turn
    /// replaces this one, and is all that is written.
    pub(super) fn journal(&mut self, decisions: &mut Decisions) {
        if let Some(new) = self.unjournalled.take() {
            decisions.accept(&self.trigger, new.payload, new.seq);
            decisions.settle(new.receipt, Settlement::Ack);
        }
    }
}

/// The decisions of one turn.
pub(super) struct Decisions {
    pub(super) now: Timestamp,
    /// At most one for each run.
    pub(super) entries: Vec<Entry>,
    entry_of: HashMap<RunKey, usize>,
    pub(super) settlements: Settlements,
    /// Attempts that came into their lanes in this turn.
    pub(super) accepted: Vec<AttemptKey>,
    /// Attempts whose start is recorded before they start.
    pub(super) record_start: Vec<AttemptKey>,
    pub(super) start: Vec<(AttemptKey, StartableAttempt)>,
    pub(super) stop: Vec<(AttemptKey, StopReason)>,
    pub(super) reports: Vec<Report>,
}

impl Decisions {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            now,
            entries: Vec::new(),
            entry_of: HashMap::new(),
            settlements: Vec::new(),
            accepted: Vec::new(),
            record_start: Vec::new(),
            start: Vec::new(),
            stop: Vec::new(),
            reports: Vec::new(),
        }
    }

    pub(super) fn settle(&mut self, receipt: Receipt, settlement: Settlement) {
        self.settlements.push((receipt, settlement));
    }

    /// Journals a trigger that is in its lane.
    fn accept(&mut self, trigger: &Trigger, payload: Bytes, seq: i64) {
        self.put(Entry {
            seq,
            job: Some(trigger.job.name.clone()),
            fire: Some(fire_of(trigger)),
            trigger: Some(payload),
            ..self.entry(AttemptKey::of(trigger), EntryState::Accepted)
        });
    }

    /// Journals the start of an accepted attempt. Its entry has the name of the job.
    pub(super) fn start(&mut self, key: AttemptKey, mut attempt: StartableAttempt) {
        attempt.journal(self);
        self.put(self.entry(key, EntryState::Started));
        self.start.push((key, attempt));
    }

    /// Journals the outcome of an accepted attempt that was not started, and reports it.
    pub(super) fn end_unstarted(
        &mut self,
        key: AttemptKey,
        mut attempt: StartableAttempt,
        outcome: Outcome,
    ) {
        attempt.journal(self);
        self.end(key, attempt.trigger.job.name.clone(), outcome);
    }

    /// Journals the outcome of an attempt and reports it.
    pub(super) fn end(&mut self, key: AttemptKey, job: JobName, outcome: Outcome) {
        // An outcome has string keys only, so writing it does not fail.
        let json = serde_json::to_string(&outcome).unwrap_or_else(|_| "{}".to_owned());
        self.put(Entry {
            job: Some(job.clone()),
            outcome: Some(json),
            ..self.entry(key, EntryState::Ended)
        });
        self.report(key, job, outcome, false);
    }

    /// Reports an outcome that the journal already has.
    pub(super) fn report(&mut self, key: AttemptKey, job: JobName, outcome: Outcome, resend: bool) {
        self.reports.push(Report {
            key,
            job,
            event: AttemptEvent::Ended { outcome },
            resend,
        });
    }

    /// Reports an outcome again, from its text in the journal.
    pub(super) fn resend(&mut self, key: AttemptKey, job: JobName, outcome: &str) {
        match serde_json::from_str(outcome) {
            Ok(outcome) => self.report(key, job, outcome, true),
            Err(error) => {
                tracing::error!(run_id = %key.run, attempt = key.attempt, %error,
                    "an outcome in the journal cannot be parsed; it is not reported again, and the schedulers treat the attempt as lost");
            }
        }
    }

    /// Journals that the broker has confirmed these outcomes.
    pub(super) fn mark_reported(&mut self, keys: Vec<AttemptKey>) {
        for key in keys {
            self.put(self.entry(key, EntryState::Reported));
        }
    }

    /// Adds what the run fires to an entry of this turn, if the attempt ended before it was accepted.
    pub(super) fn set_fire(&mut self, trigger: &Trigger) {
        let run = AttemptKey::of(trigger).run;
        if let Some(at) = self.entry_of.get(&run) {
            self.entries[*at].fire = Some(fire_of(trigger));
        }
    }

    /// The entry that this turn has decided for a run. It is newer than the one in the journal.
    pub(super) fn entry_of(&self, run: RunKey) -> Option<&Entry> {
        Some(&self.entries[*self.entry_of.get(&run)?])
    }

    fn entry(&self, key: AttemptKey, state: EntryState) -> Entry {
        Entry {
            key,
            state,
            seq: 0,
            at_ms: self.now.as_millis(),
            job: None,
            fire: None,
            trigger: None,
            outcome: None,
        }
    }

    /// Merges the entry with an older one of the same run, by the rules of the journal.
    fn put(&mut self, mut new: Entry) {
        match self.entry_of.entry(new.key.run) {
            MapEntry::Vacant(vacant) => {
                vacant.insert(self.entries.len());
                self.entries.push(new);
            }
            MapEntry::Occupied(at) => {
                let old = &mut self.entries[*at.get()];
                // An entry only moves forward: to a newer attempt, or to a later state of the same one.
                if (new.key.attempt, new.state) <= (old.key.attempt, old.state) {
                    return;
                }
                if new.key.attempt == old.key.attempt {
                    new.seq = old.seq;
                    new.job = new.job.or_else(|| old.job.take());
                    new.fire = new.fire.or(old.fire);
                    new.outcome = new.outcome.or_else(|| old.outcome.take());
                }
                *old = new;
            }
        }
    }
}
