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
pub(super) const RECOVERY_MS: i64 = 3_000;

/// A longer standstill may cost a worker its lease, and delays reports and triggers.
const LONG_STANDSTILL_MS: i64 = 1_000;

/// An undisturbed worker has journalled the end of an attempt, and the broker has the report, within this time on a
/// busy machine.
pub(super) const DELIVERY_MS: i64 = 2_000;

/// Whether in this period the worker was killed, stopped or cut off, or its machine was halted.
pub(super) fn is_disturbed(observed: &Observations, worker: &str, from: i64, to: i64) -> bool {
    let fault = observed.faults.iter().any(|fault| {
        let until = disturbs_until(fault, worker);
        fault.began <= to && until.is_some_and(|until| from <= until)
    });
    fault || has_standstill(observed, from, to)
}

/// When a worker has connected again after a fault that hit it.
fn recovered_at(fault: &InjectedFault) -> i64 {
    fault.healed.min(fault.over + RECOVERY_MS)
}

/// Until when the fault disturbs the worker. `None` if it does not.
pub(super) fn disturbs_until(fault: &InjectedFault, worker: &str) -> Option<i64> {
    if fault.fills_disk_of(worker) {
        // A worker with a full disk starts nothing new. What runs goes on, and its lease and its triggers wait for it.
        None
    } else if fault.hits_worker(worker) {
        Some(recovered_at(fault))
    } else if fault.fault.target.is_broker() {
        Some(fault.healed)
    } else {
        // A worker works on without schedulers and without a store.
        None
    }
}

/// The periods in which the whole machine, or its disk, was halted for long.
pub(super) fn long_standstills(observed: &Observations) -> impl Iterator<Item = (i64, i64)> {
    let all = observed.standstills.iter().copied();
    all.filter(|(began, over)| over - began > LONG_STANDSTILL_MS)
}

/// Whether the whole machine, or its disk, was halted for long in this period.
pub(super) fn has_standstill(observed: &Observations, from: i64, to: i64) -> bool {
    long_standstills(observed).any(|(began, over)| began <= to && from <= over)
}

/// For how long of this period the whole machine, or its disk, was halted.
pub(super) fn halted_ms(observed: &Observations, from: i64, to: i64) -> i64 {
    let all = observed.standstills.iter();
    all.map(|(began, over)| (to.min(*over) - from.max(*began)).max(0))
        .sum()
}

/// When something is over that takes `within_ms` from `from` on, and longer on a machine that is halted.
pub(super) fn delayed(observed: &Observations, from: i64, within_ms: i64) -> i64 {
    let mut until = from + within_ms;
    for (began, over) in &observed.standstills {
        if *began <= until && from <= *over {
            until = until.max(over + within_ms);
        }
    }
    until
}

/// Whether the report of an attempt that ended at `at` has reached the broker.
///
/// A worker reports an end after it is in the journal. A full disk alone loses nothing, because the worker keeps its
/// lease. But it makes reports wait, and another fault may cost the worker its lease meanwhile.
pub(super) fn is_delivered(observed: &Observations, worker: &str, at: i64) -> bool {
    let until = at + DELIVERY_MS;
    let waits = |fault: &InjectedFault| {
        fault.fills_disk_of(worker) && fault.began <= until && at <= recovered_at(fault)
    };
    !observed.faults.iter().any(waits) && !is_disturbed(observed, worker, at, until)
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
