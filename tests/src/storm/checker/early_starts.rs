//! G14: no run starts before its fire time, whatever the clocks of schedulers show.

use super::Observations;
use crate::storm::faults::{FaultKind, InjectedFault};

/// The database and the schedulers measure the time one after another.
const EARLY_MS: i64 = 50;

/// A scheduler claims runs this long before they are due. A step of its clock can make it publish them at once.
const CLAIMED_AHEAD_MS: i64 = 1_500;

/// Within this time after a step a scheduler has renewed its lease, and with it measured the database's clock again.
const MEASURED_MS: i64 = 3_000;

/// Checks the first attempts of all runs.
pub(super) fn check_early_starts(observed: &Observations) -> Vec<String> {
    let starts = observed.entries.iter().filter(|e| e.is_start());
    let early = starts.filter(|e| e.attempt == 1).filter_map(|entry| {
        let early_ms = entry.fire_at - entry.at;
        let allowed_ms = if is_after_clock_step(observed, entry.at) {
            EARLY_MS + CLAIMED_AHEAD_MS
        } else {
            EARLY_MS
        };
        (early_ms > allowed_ms)
            .then(|| format!("G14: {early_ms} ms before its fire time: {entry:?}"))
    });
    early.collect()
}

/// When a run that is due at this time can be published at the earliest, whichever scheduler publishes it.
pub(super) fn earliest_publication(observed: &Observations, due: i64) -> i64 {
    let is_step = |fault: &InjectedFault| matches!(fault.fault.kind, FaultKind::StepClock(..));
    if observed.faults.iter().any(is_step) {
        due - EARLY_MS - CLAIMED_AHEAD_MS
    } else {
        due - EARLY_MS
    }
}

/// Whether a scheduler may not have noticed yet that its clock was stepped, there or back.
fn is_after_clock_step(observed: &Observations, at: i64) -> bool {
    observed.faults.iter().any(|fault| {
        let steps = [fault.began, fault.over];
        matches!(fault.fault.kind, FaultKind::StepClock(..))
            && steps
                .iter()
                .any(|step| (*step..=*step + MEASURED_MS).contains(&at))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::fixture::{fault, run, start};
    use super::*;
    use crate::storm::faults::Target;

    const AT: i64 = 100_000;

    /// The number of violations for a start this long before its fire time, this long after a clock was stepped.
    fn judged(early_ms: i64, stepped_before_ms: Option<i64>) -> usize {
        let run = run(1, "serial-0", AT);
        let at = AT - early_ms;
        let step = |before_ms| {
            let kind = FaultKind::StepClock(Duration::from_secs(8), 20_000);
            let began = at - before_ms;
            fault(Target::Scheduler(0), kind, began, began + 8_000)
        };
        let observed = Observations {
            entries: vec![start(&run, at)],
            faults: stepped_before_ms.map(step).into_iter().collect(),
            ..Observations::default()
        };
        check_early_starts(&observed).len()
    }

    #[test]
    fn a_start_before_its_fire_time_is_found() {
        assert_eq!(judged(-5, None), 0);
        assert_eq!(judged(2, None), 0, "the clocks are measured apart");
        assert_eq!(judged(200, None), 1);
    }

    #[test]
    fn right_after_a_step_only_claimed_runs_start_early() {
        assert_eq!(judged(1_000, Some(500)), 0);
        assert_eq!(judged(1_000, Some(8_500)), 0, "stepped back");
        assert_eq!(judged(19_000, Some(500)), 1, "not claimed yet");
        assert_eq!(judged(1_000, Some(5_000)), 1, "measured again");
        assert_eq!(judged(1_000, Some(-1)), 1, "before the step");
    }
}
