//! G4: an attempt ends `lost` only if it had started, no end of it was reported, and a fault or a standstill of the machine
//! explains that.

use super::Observations;
use super::hidden_starts::{Cause, HiddenStart, StartPeriod, causes, check_hidden_starts};
use super::records::{
    Records, follow_up, is_delivered, is_disturbed, long_standstills, published_from,
};
use crate::consistency::Run;
use crate::storm::job_kinds::JobKind;

/// An attempt that ended `lost`, by the database.
#[derive(Debug)]
struct LostAttempt<'a> {
    run: &'a Run,
    attempt: u32,
    /// Its worker. The database keeps only that of the last attempt.
    executor: Option<&'a str>,
    at: i64,
    /// When the worker decided to start it, or the earliest time at which it could.
    decided_at: i64,
}

#[derive(Debug, PartialEq, Eq)]
enum Judgement {
    Explained,
    /// Whether it started cannot be known, because of one of these.
    Uncertain(Vec<Cause>),
    Wrong(&'static str),
}

/// In the reason for an attempt that its live executor did not know.
const FORGOTTEN: &str = "state directory was lost";

/// Returns the violations, and the number of lost attempts that may or may not have started.
pub(super) fn check_losses(
    observed: &Observations,
    records: &Records,
    kinds: &[JobKind],
) -> (Vec<String>, usize) {
    let mut violations = Vec::new();
    let mut hidden = Vec::new();
    for lost in lost_attempts(observed) {
        match judge(observed, records, &lost) {
            Judgement::Explained => {}
            Judgement::Uncertain(causes) => hidden.push(HiddenStart {
                run: lost.run,
                attempt: lost.attempt,
                causes,
            }),
            Judgement::Wrong(why) => violations.push(format!(
                "G4: lost although {why}: attempt {} of {:?}",
                lost.attempt, lost.run
            )),
        }
    }
    violations.extend(check_hidden_starts(&hidden, kinds));
    (violations, hidden.len())
}

fn lost_attempts(observed: &Observations) -> Vec<LostAttempt<'_>> {
    let mut lost = Vec::new();
    for run in &observed.runs {
        for attempt in 1..run.attempt {
            let Some(event) = follow_up(observed, run.id, attempt) else {
                continue;
            };
            let by_retry = event.event == "retry" && event.detail.contains(" lost;");
            if event.event == "rerun" || by_retry {
                lost.push(LostAttempt {
                    run,
                    attempt,
                    executor: None,
                    at: event.at,
                    decided_at: published_from(observed, run, attempt),
                });
            }
        }
        if run.state == "lost" {
            let published = published_from(observed, run, run.attempt);
            lost.push(LostAttempt {
                run,
                attempt: run.attempt,
                executor: Some(run.executor.as_str()),
                at: run.ended_at.unwrap_or(published),
                decided_at: run.started_at.or(run.queued_at).unwrap_or(published),
            });
        }
    }
    lost
}

fn judge(observed: &Observations, records: &Records, lost: &LostAttempt) -> Judgement {
    let recorded = records.attempt(lost.run.id, lost.attempt);
    let Some(start) = recorded.start else {
        let period = StartPeriod {
            published_from: published_from(observed, lost.run, lost.attempt),
            decided_at: lost.decided_at,
            lost_at: lost.at,
        };
        let standstills: Vec<_> = long_standstills(observed).collect();
        let causes = causes(&observed.faults, &standstills, lost.executor, period);
        return if causes.is_empty() {
            Judgement::Wrong("it never started")
        } else {
            Judgement::Uncertain(causes)
        };
    };
    // The worker keeps its state directory, and journals each start before the handler runs (G5).
    let is_last = lost.attempt == lost.run.attempt;
    if is_last && lost.run.message.contains(FORGOTTEN) {
        return Judgement::Wrong("its worker had journalled its start");
    }
    let completed = recorded.end.filter(|_| recorded.has_completed());
    if completed.is_some_and(|end| is_delivered(observed, &end.executor, end.at)) {
        return Judgement::Wrong("its end was reported");
    }
    if !is_disturbed(observed, &start.executor, start.began, lost.at) {
        return Judgement::Wrong("nothing had happened to its worker");
    }
    Judgement::Explained
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{end, event, fault, run, start, stop};
    use super::*;
    use crate::execution_log::Entry;
    use crate::storm::faults::{FaultKind, InjectedFault, Target};
    use crate::storm::job_kinds::kinds;
    use std::time::Duration;

    const KILLED: i64 = 10_000;

    fn kill() -> InjectedFault {
        let kind = FaultKind::Kill(Duration::ZERO);
        fault(Target::Worker(0), kind, KILLED, KILLED + 100)
    }

    fn lost(run: Run) -> Run {
        Run {
            state: "lost".to_owned(),
            ended_at: Some(KILLED + 500),
            ..run
        }
    }

    fn judged(run: Run, entries: Vec<Entry>, faults: Vec<InjectedFault>) -> (Vec<String>, usize) {
        let observed = Observations {
            runs: vec![run],
            entries,
            faults,
            ..Observations::default()
        };
        check_losses(&observed, &Records::new(&observed.entries), &kinds())
    }

    #[test]
    fn an_attempt_on_a_killed_worker_may_be_lost() {
        let run = lost(run(1, "serial-0", KILLED - 50));
        let began = start(&run, KILLED - 40);
        assert_eq!(judged(run, vec![began], vec![kill()]), (vec![], 0));
    }

    #[test]
    fn a_loss_without_a_fault_of_the_worker_is_found() {
        let run = lost(run(1, "serial-0", KILLED - 50));
        let began = start(&run, KILLED - 40);
        let of = |faults| judged(run.clone(), vec![began.clone()], faults).0.len();
        assert_eq!(of(vec![]), 1, "no fault");
        let other = fault(
            Target::Worker(1),
            FaultKind::Kill(Duration::ZERO),
            KILLED,
            KILLED + 100,
        );
        assert_eq!(of(vec![other]), 1, "another worker");
        let scheduler = fault(
            Target::Scheduler(0),
            FaultKind::Terminate,
            KILLED,
            KILLED + 100,
        );
        assert_eq!(of(vec![scheduler]), 1, "a scheduler");
        let later = fault(
            Target::Worker(0),
            FaultKind::Terminate,
            KILLED + 600,
            KILLED + 700,
        );
        assert_eq!(of(vec![later]), 1, "after the loss");
    }

    #[test]
    fn a_worker_must_not_forget_an_attempt_that_has_started() {
        let forgotten = Run {
            message: "its executor no longer knows it; its state directory was lost".to_owned(),
            ..lost(run(1, "serial-0", KILLED - 50))
        };
        let began = start(&forgotten, KILLED - 40);
        let found = judged(forgotten.clone(), vec![began.clone()], vec![kill()]);
        assert_eq!(found.0.len(), 1);
        // The start may have been recorded right before the kill, and not journalled.
        let unstarted = judged(forgotten.clone(), vec![], vec![kill()]);
        assert_eq!(unstarted, (vec![], 1));
        let silent = Run {
            message: "executor worker-1 has been silent for 5 s".to_owned(),
            ..forgotten
        };
        assert_eq!(judged(silent, vec![began], vec![kill()]), (vec![], 0));
    }

    #[test]
    fn a_loss_after_a_reported_end_is_found() {
        let run = lost(run(1, "serial-0", KILLED - 5_000));
        let of = |ended: i64| {
            let entries = vec![start(&run, ended - 20), end(&run, ended)];
            judged(run.clone(), entries, vec![kill()])
        };
        assert_eq!(of(KILLED - 4_000).0.len(), 1);
        // The kill may have come before the journal.
        assert_eq!(of(KILLED - 10), (vec![], 0));
        // An attempt that was asked to stop has no outcome of its own.
        let entries = vec![start(&run, KILLED - 4_900), stop(&run, KILLED - 4_000)];
        let fenced = fault(
            Target::Worker(0),
            FaultKind::Disconnect(
                Duration::from_secs(8),
                cueline_test_servers::proxy::Link::Cut,
            ),
            KILLED - 4_500,
            KILLED,
        );
        assert_eq!(judged(run.clone(), entries, vec![fenced]), (vec![], 0));
    }

    #[test]
    fn an_attempt_that_never_started_must_not_be_lost() {
        let late = lost(run(1, "serial-0", KILLED + 6_000));
        assert_eq!(judged(late, vec![], vec![kill()]).0.len(), 1);
        let run = lost(run(1, "serial-0", KILLED - 50));
        let drained = fault(
            Target::Worker(0),
            FaultKind::Terminate,
            KILLED,
            KILLED + 400,
        );
        assert_eq!(judged(run, vec![], vec![drained]).0.len(), 1, "a drain");
    }

    #[test]
    fn a_cut_may_hide_whether_the_start_was_recorded() {
        let run = lost(run(1, "serial-0", KILLED - 50));
        let cut = |target| {
            let cut = FaultKind::Disconnect(
                Duration::from_secs(8),
                cueline_test_servers::proxy::Link::Cut,
            );
            fault(target, cut, KILLED, KILLED + 8_000)
        };
        for target in [Target::Worker(0), Target::Broker] {
            let judged = judged(run.clone(), vec![], vec![cut(target)]);
            assert_eq!(judged, (vec![], 1), "{target:?}");
        }
        let other = judged(run, vec![], vec![cut(Target::Worker(1))]);
        assert_eq!(other.0.len(), 1, "another worker was cut off");
    }

    #[test]
    fn a_full_disk_loses_nothing_but_keeps_reports_back() {
        let run = lost(run(1, "serial-0", KILLED - 5_000));
        let kind = FaultKind::Fill(Duration::from_secs(5));
        let full = fault(Target::Worker(0), kind, KILLED - 6_000, KILLED + 100);
        let stop = FaultKind::Stop(Duration::from_secs(8), false);
        let cut_off = fault(Target::BrokerNode(0), stop, KILLED - 1_500, KILLED + 6_500);
        let both = vec![full.clone(), cut_off.clone()];
        let ended = KILLED - 4_000;
        let entries = vec![start(&run, ended - 20), end(&run, ended)];
        let of = |faults| judged(run.clone(), entries.clone(), faults);
        assert_eq!(of(vec![full.clone()]).0.len(), 1, "it keeps its lease");
        assert_eq!(of(vec![cut_off]).0.len(), 1, "its end was reported");
        assert_eq!(of(both.clone()), (vec![], 0), "the report had to wait");
        // Its start may have been recorded on the broker before the disk was full.
        let unstarted = |faults| judged(run.clone(), vec![], faults);
        assert_eq!(unstarted(vec![full]).0.len(), 1);
        assert_eq!(unstarted(both), (vec![], 1));
    }

    #[test]
    fn a_start_right_before_a_kill_is_uncertain_and_counted() {
        let run = lost(run(1, "serial-0", KILLED - 50));
        assert_eq!(judged(run.clone(), vec![], vec![kill()]), (vec![], 1));
        let of = |runs: Vec<Run>| {
            let observed = Observations {
                runs,
                faults: vec![kill()],
                ..Observations::default()
            };
            let (violations, uncertain) = check_losses(&observed, &Records::new(&[]), &kinds());
            (violations.len(), uncertain)
        };
        let second = Run {
            id: 2,
            ..run.clone()
        };
        assert_eq!(of(vec![run.clone(), second.clone()]), (1, 2), "one lane");
        let elsewhere = Run {
            job: "serial-1".to_owned(),
            ..second
        };
        assert_eq!(of(vec![run, elsewhere]), (0, 2), "two lanes");
    }

    #[test]
    fn a_lost_attempt_before_a_rerun_is_judged_too() {
        let run = Run {
            attempt: 2,
            ..run(1, "rerun-0", KILLED - 50)
        };
        let of = |kind: &str, detail: &str| {
            let observed = Observations {
                runs: vec![run.clone()],
                timelines: [(1, vec![event(1, kind, detail, KILLED + 500)])].into(),
                ..Observations::default()
            };
            let (violations, _) = check_losses(&observed, &Records::new(&[]), &kinds());
            violations.len()
        };
        assert_eq!(of("rerun", "attempt 1 was lost with its executor"), 1);
        assert_eq!(of("retry", "attempt 1 lost; retry 1 of 2 in 50 ms"), 1);
        assert_eq!(of("retry", "attempt 1 failed; retry 1 of 2 in 50 ms"), 0);
        assert_eq!(of("returned", "attempt 1 was returned unstarted"), 0);
    }
}
