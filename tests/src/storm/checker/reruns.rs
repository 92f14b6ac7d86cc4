//! G5, G9: a run gets another attempt only for a reason, and never after an end that was reported and needs none.

use super::Observations;
use super::records::{Records, follow_up, is_delivered};
use crate::consistency::Run;
use crate::execution_log::Event;
use crate::storm::job_kinds::JobKind;

/// `on_lost = "rerun"` gives a run this many new attempts.
const MOST_RERUNS: usize = 3;

/// Checks all attempts that were followed by another one.
pub(super) fn check_reruns(
    observed: &Observations,
    records: &Records,
    kinds: &[JobKind],
) -> Vec<String> {
    let mut violations = Vec::new();
    for run in &observed.runs {
        // A job of an operator has neither `retry` nor `on_lost`.
        let kind = kinds.iter().find(|kind| kind.has(&run.job));
        let is_rerun = |attempt: &u32| {
            follow_up(observed, run.id, *attempt).is_some_and(|event| event.event == "rerun")
        };
        if (1..run.attempt).filter(is_rerun).count() > MOST_RERUNS {
            violations.push(format!("G5: more than {MOST_RERUNS} reruns: {run:?}"));
        }
        for attempt in 1..run.attempt {
            if let Some(why) = wrong(observed, records, run, attempt, kind) {
                violations.push(format!("G5, G9: {why}: attempt {attempt} of {run:?}"));
            }
        }
    }
    violations
}

/// Why the run must not have an attempt after this one.
fn wrong(
    observed: &Observations,
    records: &Records,
    run: &Run,
    attempt: u32,
    kind: Option<&JobKind>,
) -> Option<&'static str> {
    let Some(event) = follow_up(observed, run.id, attempt) else {
        return Some("another attempt without a recorded reason");
    };
    let retries = kind.is_some_and(JobKind::fails);
    match event.event.as_str() {
        "retry" if !retries => return Some("a retry without `retry`"),
        "rerun" if !kind.is_some_and(JobKind::reruns) => {
            return Some("a rerun without `on_lost = \"rerun\"`");
        }
        _ => {}
    }
    let recorded = records.attempt(run.id, attempt);
    recorded.start?;
    // No fault excuses this. A start is recorded before it happens, and nothing that may be recorded is returned.
    if event.event == "returned" {
        return Some("returned unstarted, but it had started");
    }
    let end = recorded.end?;
    let reported = is_delivered(observed, &end.executor, end.at);
    match end.event {
        Event::End => reported.then_some("another attempt after a reported success"),
        Event::Fail if !retries => Some("another attempt after a failure without retries"),
        Event::Fail => (reported && event.event != "retry")
            .then_some("another attempt that is no retry after a reported failure"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::fixture::{end, event, fault, run, start};
    use super::*;
    use crate::execution_log::Entry;
    use crate::storm::faults::{FaultKind, Target};
    use crate::storm::job_kinds::kinds;
    use crate::storm::store_records::TimelineEvent;

    const AT: i64 = 100_000;

    /// The number of violations for a second attempt that follows the first by this event. `ended` is how the first one
    /// ended.
    fn judged(
        job: &str,
        ended: Option<Event>,
        why: Option<TimelineEvent>,
        killed_at: Option<i64>,
    ) -> usize {
        let first = run(1, job, AT);
        let last = ended.map(|ended| Entry {
            event: ended,
            ..end(&first, AT + 20)
        });
        let kill = |at| {
            fault(
                Target::Worker(0),
                FaultKind::Kill(Duration::ZERO),
                at,
                at + 100,
            )
        };
        let observed = Observations {
            entries: [start(&first, AT + 5)].into_iter().chain(last).collect(),
            runs: vec![Run {
                attempt: 2,
                ..first
            }],
            timelines: [(1, why.into_iter().collect())].into(),
            faults: killed_at.map(kill).into_iter().collect(),
            ..Observations::default()
        };
        check_reruns(&observed, &Records::new(&observed.entries), &kinds()).len()
    }

    fn by(kind: &str) -> TimelineEvent {
        event(1, kind, "", AT + 5_000)
    }

    #[test]
    fn a_reported_success_is_never_repeated() {
        assert_eq!(
            judged("rerun-0", Some(Event::End), Some(by("rerun")), None),
            1
        );
        let killed = Some(AT + 30);
        assert_eq!(
            judged("rerun-0", Some(Event::End), Some(by("rerun")), killed),
            0
        );
    }

    #[test]
    fn a_failure_is_repeated_only_by_retries() {
        assert_eq!(
            judged("flaky-0", Some(Event::Fail), Some(by("retry")), None),
            0
        );
        assert_eq!(
            judged("flaky-0", Some(Event::Fail), Some(by("rerun")), None),
            1
        );
        assert_eq!(
            judged("serial-0", Some(Event::Fail), Some(by("retry")), None),
            1
        );
    }

    #[test]
    fn each_attempt_has_a_reason_that_its_job_allows() {
        assert_eq!(judged("rerun-0", None, None, Some(AT)), 1);
        let by_event = |job, kind| judged(job, None, Some(by(kind)), Some(AT));
        assert_eq!(by_event("rerun-0", "rerun"), 0);
        assert_eq!(by_event("serial-0", "rerun"), 1);
        assert_eq!(by_event("edited-0", "rerun"), 1, "not of a kind");
        assert_eq!(by_event("flaky-0", "retry"), 0);
        assert_eq!(by_event("rerun-0", "retry"), 1);
    }

    #[test]
    fn a_run_has_three_reruns_at_most() {
        let reruns = |count: u32| {
            let events = (1..=count).map(|attempt| event(attempt, "rerun", "", AT + 5_000));
            let observed = Observations {
                runs: vec![Run {
                    attempt: count + 1,
                    ..run(1, "rerun-0", AT)
                }],
                timelines: [(1, events.collect())].into(),
                ..Observations::default()
            };
            check_reruns(&observed, &Records::new(&[]), &kinds()).len()
        };
        assert_eq!(reruns(3), 0);
        assert_eq!(reruns(4), 1);
    }

    #[test]
    fn a_started_attempt_is_never_returned() {
        let returned = || Some(by("returned"));
        assert_eq!(judged("serial-0", None, returned(), None), 1);
        let killed = Some(AT + 10);
        assert_eq!(judged("serial-0", None, returned(), killed), 1);
        let stopped = Some(Event::Stop);
        assert_eq!(judged("serial-0", stopped, returned(), killed), 1);
        // The second attempt of a run whose first one has no recorded start.
        let run = Run {
            attempt: 2,
            ..run(1, "serial-0", AT)
        };
        let unstarted = Observations {
            runs: vec![run],
            timelines: [(1, vec![by("returned")])].into(),
            ..Observations::default()
        };
        let violations = check_reruns(&unstarted, &Records::new(&[]), &kinds());
        assert!(violations.is_empty(), "{violations:?}");
    }
}
