//! G4: a worker that says that its disk is full starts nothing, and schedulers send it nothing more.
//!
//! That it loses nothing and is not failed over is what the other checks find, because a full disk explains neither a
//! loss nor a failover.

use super::{Observations, is_alone, stood_still};
use crate::consistency::Run;
use crate::execution_log::Entry;
use crate::storm::faults::InjectedFault;
use crate::storm::full_disk::FullDisk;

/// On a busy machine the last trigger that a scheduler routed before the announcement is published and its
/// confirmation stored within this time.
const LAST_TRIGGER_MS: i64 = 3_000;

/// Checks all disks that were filled.
pub(super) fn check_full_disks(observed: &Observations) -> Vec<String> {
    let mut violations = Vec::new();
    for fault in &observed.faults {
        let Some(full) = fault.full.filter(|_| !stood_still(observed, fault)) else {
            continue;
        };
        let starts = observed.entries.iter();
        let starts = starts.filter(|entry| is_start_without_journal(entry, fault, full));
        violations.extend(starts.map(|start| {
            format!("G4: started while its worker could write no journal: {start:?}")
        }));
        // A scheduler publishes a trigger again to the same executor if an earlier publish had no answer.
        if is_alone(observed, fault) {
            let sent = observed.runs.iter();
            let sent = sent.filter(|run| is_sent_to_full_disk(run, fault, full));
            violations
                .extend(sent.map(|run| format!("G4: sent to a worker with a full disk: {run:?}")));
        }
    }
    violations
}

/// Whether the handler began while the journal could not be written. The start before the handler is in the journal.
fn is_start_without_journal(entry: &Entry, fault: &InjectedFault, full: FullDisk) -> bool {
    entry.is_start()
        && fault.hits_worker(&entry.executor)
        && (full.announced..full.until).contains(&entry.began)
}

/// Whether the last trigger of the run was published to the worker after the schedulers knew.
fn is_sent_to_full_disk(run: &Run, fault: &InjectedFault, full: FullDisk) -> bool {
    let known = full.announced + LAST_TRIGGER_MS;
    fault.hits_worker(&run.executor)
        && run
            .queued_at
            .is_some_and(|at| (known..full.until).contains(&at))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::fixture::{fault, run, start};
    use super::*;
    use crate::storm::faults::{FaultKind, Target};

    const FILLED: i64 = 10_000;
    const FULL: FullDisk = FullDisk {
        announced: FILLED + 8_000,
        until: FILLED + 13_000,
    };

    fn fill(worker: usize) -> InjectedFault {
        let kind = FaultKind::Fill(Duration::from_secs(5));
        InjectedFault {
            full: Some(FULL),
            ..fault(Target::Worker(worker), kind, FILLED, FULL.until + 4_000)
        }
    }

    /// The number of violations for a run that was published and started at these times.
    fn judged(queued_at: i64, started_at: i64, faults: Vec<InjectedFault>) -> usize {
        let run = Run {
            queued_at: Some(queued_at),
            ..run(1, "round-0", queued_at - 5)
        };
        let observed = Observations {
            entries: vec![start(&run, started_at)],
            runs: vec![run],
            faults,
            ..Observations::default()
        };
        check_full_disks(&observed).len()
    }

    #[test]
    fn a_worker_with_a_full_disk_starts_nothing() {
        let of = |at: i64, worker| judged(FILLED, at, vec![fill(worker)]);
        assert_eq!(of(FULL.announced + 1, 0), 1);
        assert_eq!(of(FULL.until - 1, 0), 1);
        assert_eq!(
            of(FULL.announced - 1, 0),
            0,
            "its journal may have had room"
        );
        assert_eq!(of(FULL.until, 0), 0, "there is room again");
        assert_eq!(of(FULL.announced + 1, 1), 0, "another worker's disk");
    }

    #[test]
    fn a_worker_that_says_that_its_disk_is_full_gets_no_triggers() {
        let of = |at: i64, faults| judged(at, FULL.until + 4_000, faults);
        let late = FULL.announced + LAST_TRIGGER_MS;
        assert_eq!(of(late, vec![fill(0)]), 1);
        assert_eq!(of(late - 1, vec![fill(0)]), 0, "routed before");
        assert_eq!(of(FULL.until, vec![fill(0)]), 0, "there is room again");
        assert_eq!(of(late, vec![fill(1)]), 0, "another worker's disk");
        let kill = fault(
            Target::Broker,
            FaultKind::Kill(Duration::ZERO),
            FILLED + 100,
            FILLED + 900,
        );
        assert_eq!(of(late, vec![fill(0), kill]), 0, "published again");
    }

    #[test]
    fn a_standstill_leaves_the_times_uncertain() {
        let run = run(1, "round-0", FILLED);
        let observed = Observations {
            entries: vec![start(&run, FULL.announced + 1)],
            faults: vec![fill(0)],
            standstills: vec![(FULL.announced - 2_000, FULL.announced)],
            ..Observations::default()
        };
        assert!(check_full_disks(&observed).is_empty());
    }
}
