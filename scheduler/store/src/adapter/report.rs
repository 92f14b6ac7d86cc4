//! What a batch of reports makes of the runs that it is about: decided in memory, report by report.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cueline_model::{AttemptEvent, AttemptId, Job, Outcome, RunState, Timestamp};

use super::attempt::{Close, Standing};
use super::facts::{Event, Facts};
use crate::{AttemptReport, IngestSummary};

/// A batch of reports on its way to the store.
#[derive(Debug)]
pub struct Batch {
    now: Timestamp,
    runs: HashMap<i64, Standing>,
    /// In the order of their first effect, so that what is written does not depend on a hash.
    touched: Vec<i64>,
    events: Vec<Event>,
    refusals: Vec<Event>,
    done: IngestSummary,
}

/// A run that has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    /// The run.
    pub run: i64,
    /// The attempt that the store has.
    pub attempt: u32,
    /// When the handler started.
    pub at: Timestamp,
}

/// What a batch wants written, each run once in each list, in the order of their first effect.
#[derive(Debug, Default)]
pub struct Writes {
    /// Runs that started.
    pub started: Vec<Started>,
    /// Runs and their progress, from 0 to 1.
    pub progress: Vec<(i64, f64)>,
    /// Runs that go on with another attempt. One that has ended after that, in the same batch, is in `ended` too.
    pub again: Vec<Close>,
    /// Runs that ended.
    pub ended: Vec<(Facts, Close)>,
    /// For the timelines of runs.
    pub events: Vec<Event>,
    /// For the timelines of runs, each once however often it is reported.
    pub refusals: Vec<Event>,
    /// What the caller is told.
    pub done: IngestSummary,
}

impl Batch {
    /// A batch about these runs.
    pub fn new(facts: Vec<Facts>, now: Timestamp) -> Self {
        let standing = |facts: Facts| Standing {
            state: facts.state,
            attempt: facts.attempt,
            facts,
            started_at: None,
            progress: None,
            again: None,
            end: None,
        };
        Self {
            now,
            runs: facts.into_iter().map(|f| (f.id, standing(f))).collect(),
            touched: Vec::new(),
            events: Vec::new(),
            refusals: Vec::new(),
            done: IngestSummary::default(),
        }
    }

    /// Applies reports, in their order; lines of logs are for [`log`](super::log). `jobs` holds the definitions that
    /// [`policies_of`] asks for.
    pub fn apply(&mut self, reports: &[AttemptReport], jobs: &HashMap<i64, Arc<Job>>) {
        for report in reports {
            match &report.event {
                AttemptEvent::Started { at } => self.started(report.attempt, *at),
                AttemptEvent::Progress { fraction: part } => self.progress(report.attempt, *part),
                AttemptEvent::Ended { outcome } => self.ended(report.attempt, outcome, jobs),
                AttemptEvent::Log { .. } => {}
            }
        }
    }

    /// The run in the attempt that is reported, if that is the present one.
    fn current(&mut self, id: AttemptId) -> Option<&mut Standing> {
        self.runs
            .get_mut(&id.run.0)
            .filter(|run| run.attempt == id.attempt)
    }

    fn note(&mut self, changed: Option<i64>) {
        match changed {
            Some(run) => self.touched.push(run),
            None => self.done.ignored += 1,
        }
    }

    fn started(&mut self, id: AttemptId, at: Timestamp) {
        let changed = self
            .current(id)
            .filter(|run| matches!(run.state, RunState::Dispatching | RunState::Queued))
            .map(|run| {
                run.state = RunState::Running;
                run.started_at = Some(at);
                run.facts.id
            });
        self.note(changed);
    }

    fn progress(&mut self, id: AttemptId, part: f64) {
        let changed = self
            .current(id)
            .filter(|run| part.is_finite() && is_out(run.state))
            .map(|run| {
                run.progress = Some(part.clamp(0.0, 1.0));
                run.facts.id
            });
        self.note(changed);
    }

    /// Whether lines of this attempt's log can be kept: it exists or existed.
    pub(super) fn keeps_log_of(&self, id: AttemptId) -> bool {
        self.runs
            .get(&id.run.0)
            .is_some_and(|run| (1..=run.attempt).contains(&id.attempt))
    }

    fn ended(&mut self, id: AttemptId, outcome: &Outcome, jobs: &HashMap<i64, Arc<Job>>) {
        let now = self.now;
        let Some(run) = self.runs.get_mut(&id.run.0) else {
            return self.note(None);
        };
        let reached = outcome.kind.state();
        let allowed = match reached {
            Some(end) => run.state.may_become(end),
            None => run.state.may_become(RunState::Scheduled),
        };
        if run.attempt != id.attempt || !allowed {
            if run.attempt != id.attempt || reached != Some(run.state) {
                let what = reached.map_or("returned", RunState::as_str);
                let why = if run.attempt == id.attempt {
                    format!("reported {what}; the run is {}", run.state)
                } else {
                    format!("reported {what}; the run is at attempt {}", run.attempt)
                };
                self.refusals.push(Event {
                    run: id.run.0,
                    attempt: id.attempt,
                    event: "refused",
                    detail: why,
                });
            }
            return self.note(None);
        }
        let (close, event) = run.close(outcome, jobs.get(&run.facts.job_id), now);
        if let Some(due_at) = close.due_at {
            self.done.rescheduled += 1;
            soonest(&mut self.done.next_due_at, due_at);
        } else {
            self.done.ended += 1;
        }
        if close.ended_at.is_some() {
            run.end = Some(close);
        } else {
            run.again = Some(close);
        }
        self.events.extend(event);
        self.note(Some(id.run.0));
    }

    /// What is to be written.
    pub fn into_writes(mut self) -> Writes {
        let mut writes = Writes {
            events: self.events,
            refusals: self.refusals,
            done: self.done,
            ..Writes::default()
        };
        for id in self.touched {
            let Some(run) = self.runs.remove(&id) else {
                continue;
            };
            writes.started.extend(run.started_at.map(|at| Started {
                run: id,
                attempt: run.facts.attempt,
                at,
            }));
            writes.progress.extend(run.progress.map(|part| (id, part)));
            writes.again.extend(run.again);
            writes.ended.extend(run.end.map(|end| (run.facts, end)));
        }
        writes
    }
}

impl Writes {
    /// Jobs that wait for the end of a run to count their delay from, and when it was.
    pub fn awaited(&self, now: Timestamp) -> Vec<(i64, Timestamp)> {
        self.ended
            .iter()
            .filter(|(facts, _)| facts.is_awaited())
            .filter_map(|(facts, close)| Some((facts.job_id, close.ended_at?.min(now))))
            .collect()
    }

    /// Runs that succeeded and whose jobs have children.
    pub fn parents(&self) -> impl Iterator<Item = &(Facts, Close)> {
        self.ended
            .iter()
            .filter(|(facts, close)| facts.has_children() && close.succeeded())
    }
}

/// The jobs, and their versions, of the attempts that failed: what follows depends on their definitions.
pub fn policies_of(reports: &[AttemptReport], facts: &[Facts]) -> HashMap<i64, i64> {
    let failed: HashSet<i64> = reports
        .iter()
        .filter(|r| match &r.event {
            AttemptEvent::Ended { outcome: o } => o.kind.state().is_some_and(RunState::is_failure),
            _ => false,
        })
        .map(|r| r.attempt.run.0)
        .collect();
    facts
        .iter()
        .filter(|f| failed.contains(&f.id))
        .filter_map(|f| Some((f.job_id, f.of_job.as_ref()?.version)))
        .collect()
}

fn is_out(state: RunState) -> bool {
    matches!(
        state,
        RunState::Dispatching | RunState::Queued | RunState::Running
    )
}

/// Keeps the earlier of the two.
pub fn soonest(kept: &mut Option<Timestamp>, other: Timestamp) {
    *kept = Some(kept.map_or(other, |kept| kept.min(other)));
}

#[cfg(test)]
mod tests {
    use cueline_model::{OutcomeKind, RunId};

    use super::*;
    use crate::adapter::facts::JobFacts;

    const NOW: Timestamp = Timestamp::from_millis(10_000);

    fn facts(state: RunState) -> Facts {
        Facts {
            id: 1,
            job_id: 2,
            manual: false,
            state,
            attempt: 1,
            retries: 0,
            reruns: 0,
            cancel_requested: false,
            of_job: Some(JobFacts {
                version: 3,
                enabled: true,
                fixed_delay: true,
                has_children: true,
            }),
        }
    }

    fn report(attempt: u32, body: AttemptEvent) -> AttemptReport {
        AttemptReport {
            attempt: AttemptId {
                run: RunId(1),
                attempt,
            },
            executor: None,
            event: body,
        }
    }

    fn ended(kind: OutcomeKind) -> AttemptEvent {
        AttemptEvent::Ended {
            outcome: Outcome::new(kind, NOW),
        }
    }

    fn writes(facts: Facts, reports: &[AttemptReport]) -> Writes {
        let mut batch = Batch::new(vec![facts], NOW);
        batch.apply(reports, &HashMap::new());
        batch.into_writes()
    }

    #[test]
    fn a_run_that_starts_and_succeeds_in_one_batch_is_written_once_in_each_list() {
        let reports = [
            report(1, AttemptEvent::Started { at: NOW }),
            report(1, AttemptEvent::Progress { fraction: 7.0 }),
            report(1, ended(OutcomeKind::Succeeded)),
        ];
        let writes = writes(facts(RunState::Queued), &reports);
        assert_eq!(
            writes.started,
            [Started {
                run: 1,
                attempt: 1,
                at: NOW
            }]
        );
        assert_eq!(writes.progress, [(1, 1.0)]);
        assert!(writes.again.is_empty());
        assert!(writes.ended.iter().all(|(_, close)| close.succeeded()));
        assert_eq!((writes.done.ended, writes.done.ignored), (1, 0));
        assert_eq!(writes.awaited(NOW), [(2, NOW)]);
        assert_eq!(writes.parents().count(), 1);
    }

    #[test]
    fn a_late_end_changes_nothing_and_is_noted() {
        let writes = writes(
            facts(RunState::Cancelled),
            &[report(1, ended(OutcomeKind::Succeeded))],
        );
        assert!(writes.ended.is_empty() && writes.again.is_empty());
        assert_eq!(writes.done.ignored, 1);
        assert_eq!(
            writes.refusals,
            [Event {
                run: 1,
                attempt: 1,
                event: "refused",
                detail: "reported succeeded; the run is cancelled".to_owned(),
            }]
        );
    }

    #[test]
    fn a_repeated_end_is_not_noted() {
        let writes = writes(
            facts(RunState::Succeeded),
            &[report(1, ended(OutcomeKind::Succeeded))],
        );
        assert_eq!(writes.done.ignored, 1);
        assert!(writes.refusals.is_empty());
    }

    #[test]
    fn what_came_back_goes_out_again_unless_its_job_was_stopped() {
        let returned = [report(1, ended(OutcomeKind::Returned))];
        let going_on = writes(facts(RunState::Queued), &returned);
        let attempts: Vec<_> = going_on
            .again
            .iter()
            .map(|c| (c.from_attempt, c.attempt))
            .collect();
        assert_eq!(attempts, [(1, 2)]);
        assert_eq!(going_on.done.rescheduled, 1);

        let mut stopped = facts(RunState::Queued);
        stopped.of_job = None;
        let stopped = writes(stopped, &returned);
        let states: Vec<_> = stopped.ended.iter().map(|(_, c)| c.state).collect();
        assert_eq!(states, [RunState::Cancelled]);
    }

    #[test]
    fn only_failed_attempts_ask_for_definitions() {
        let facts = [facts(RunState::Running)];
        let of = |kind| policies_of(&[report(1, ended(kind))], &facts);
        assert_eq!(of(OutcomeKind::Failed), HashMap::from([(2, 3)]));
        assert!(of(OutcomeKind::Succeeded).is_empty());
    }
}
