//! The execution log by attempt, and the faults by worker.

use std::collections::HashMap;

use super::Observations;
use crate::consistency::Run;
use crate::execution_log::{Entry, Event};
use crate::storm::faults::InjectedFault;
use crate::storm::store_records::TimelineEvent;

/// What the handler of one attempt recorded.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AttemptRecord<'a> {
    /// The first start.
    pub(super) start: Option<&'a Entry>,
    /// The first end.
    pub(super) end: Option<&'a Entry>,
}

/// The execution log by run and attempt.
#[derive(Debug)]
pub(super) struct Records<'a>(HashMap<(i64, u32), AttemptRecord<'a>>);

impl<'a> Records<'a> {
    pub(super) fn new(entries: &'a [Entry]) -> Self {
        let mut attempts = HashMap::<_, AttemptRecord>::new();
        for entry in entries {
            let attempt = attempts.entry((entry.run, entry.attempt)).or_default();
            let place = if entry.is_start() {
                &mut attempt.start
            } else {
                &mut attempt.end
            };
            *place = place.or(Some(entry));
        }
        Self(attempts)
    }

    pub(super) fn attempt(&self, run: i64, attempt: u32) -> AttemptRecord<'a> {
        self.0.get(&(run, attempt)).copied().unwrap_or_default()
    }
}

impl AttemptRecord<'_> {
    /// Whether the handler ran to its end: no request to stop ended it.
    pub(super) fn has_completed(&self) -> bool {
        self.end.is_some_and(|end| end.event != Event::Stop)
    }
}

/// After a fault a worker needs this long to connect and to end what the fault interrupted.
const RECOVERY_MS: i64 = 3_000;

/// An undisturbed worker has journalled the end of an attempt, and the broker has the report, within this time on a
/// busy machine.
const DELIVERY_MS: i64 = 2_000;

/// Whether in this period the worker was killed, stopped or cut off, or its machine was halted.
pub(super) fn is_disturbed(observed: &Observations, worker: &str, from: i64, to: i64) -> bool {
    let fault = observed.faults.iter().any(|fault| {
        let until = disturbs_until(fault, worker);
        fault.began <= to && until.is_some_and(|until| from <= until)
    });
    fault || has_standstill(observed, from, to)
}

/// Until when the fault disturbs the worker. `None` if it does not.
pub(super) fn disturbs_until(fault: &InjectedFault, worker: &str) -> Option<i64> {
    if fault.hits_worker(worker) {
        Some(fault.healed.min(fault.over + RECOVERY_MS))
    } else if fault.fault.target.is_broker() {
        Some(fault.healed)
    } else {
        // A worker works on without schedulers and without a store.
        None
    }
}

/// Whether the whole machine, or its disk, was halted in this period.
pub(super) fn has_standstill(observed: &Observations, from: i64, to: i64) -> bool {
    let mut all = observed.standstills.iter();
    all.any(|(began, over)| *began <= to && from <= *over)
}

/// Whether the report of an attempt that ended at `at` has reached the broker.
pub(super) fn is_delivered(observed: &Observations, worker: &str, at: i64) -> bool {
    !is_disturbed(observed, worker, at, at + DELIVERY_MS)
}

/// The event after which a run got a new attempt.
pub(super) fn follow_up(observed: &Observations, run: i64, attempt: u32) -> Option<&TimelineEvent> {
    let mut events = observed.timelines.get(&run)?.iter();
    events.find(|event| {
        event.attempt == attempt && matches!(event.event.as_str(), "retry" | "rerun" | "returned")
    })
}

/// When the attempt could be published at the earliest.
pub(super) fn published_from(observed: &Observations, run: &Run, attempt: u32) -> i64 {
    let earlier = attempt
        .checked_sub(1)
        .and_then(|earlier| follow_up(observed, run.id, earlier));
    earlier.map_or(run.fire_at.max(run.created_at), |event| event.at)
}

/// When the database says that the attempt was over. `None` if it does not say.
pub(super) fn over_at(observed: &Observations, run: &Run, attempt: u32) -> Option<i64> {
    if attempt == run.attempt {
        run.ended_at
    } else {
        follow_up(observed, run.id, attempt).map(|event| event.at)
    }
}
