//! Applies a batch of reports to its runs in memory, report by report. A few statements then write the result.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use cueline_model::{AttemptEvent, AttemptId, JobId, Outcome, OutcomeKind, RunState, Timestamp};

use super::definitions::JobsById;
use super::snapshot::RunSnapshot;
use super::timeline::TimelineEvent;
use super::transition::{RunUpdate, Transition};
use crate::{AttemptReport, IngestSummary};

/// A start that is reported further ahead than this counts as at this time. The clock of its worker is wrong.
const MAX_CLOCK_AHEAD_MS: u64 = 24 * 3_600_000;

/// The runs of a batch, with the effects of the reports that were applied so far.
#[derive(Debug)]
pub struct ReportBatch {
    now: Timestamp,
    runs: BTreeMap<i64, RunUpdate>,
    events: Vec<TimelineEvent>,
    refusals: Vec<TimelineEvent>,
    summary: IngestSummary,
}

/// A run whose handler started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartedRun {
    /// The run.
    pub run: i64,
    /// The stored attempt.
    pub attempt: u32,
    /// When the handler started.
    pub at: Timestamp,
}

/// The writes of a batch. Each list is sorted by run id, so that all transactions lock rows in the same order.
#[derive(Debug, Default)]
pub struct BatchWrites {
    /// Runs whose handler started.
    pub started: Vec<StartedRun>,
    /// Runs and their progress, from 0 to 1.
    pub progress: Vec<(i64, f64)>,
    /// Runs that get another attempt. A run that also ended in the same batch is in `ended` too.
    pub next_attempts: Vec<Transition>,
    /// Runs that ended.
    pub ended: Vec<(RunSnapshot, Transition)>,
    /// Events for the timelines.
    pub events: Vec<TimelineEvent>,
    /// Refused reports for the timelines. Adapters write a repeated one once.
    pub refusals: Vec<TimelineEvent>,
    /// The answer to the caller.
    pub summary: IngestSummary,
}

impl ReportBatch {
    /// A batch about these runs.
    pub fn new(runs: Vec<RunSnapshot>, now: Timestamp) -> Self {
        Self {
            now,
            runs: runs
                .into_iter()
                .map(|run| (run.id, RunUpdate::new(run)))
                .collect(),
            events: Vec::new(),
            refusals: Vec::new(),
            summary: IngestSummary::default(),
        }
    }

    /// Applies reports in their order, except for log lines, which [`log_lines`](super::log_lines) handles. `jobs`
    /// holds the jobs that [`required_jobs`] lists. A report by an executor that the attempt was not given to changes
    /// nothing, and leaves no trace in the run.
    pub fn apply(&mut self, reports: &[AttemptReport], jobs: &JobsById) {
        for (position, report) in reports.iter().enumerate() {
            if self.has_foreign_origin(report) {
                self.summary.foreign.push(position);
                continue;
            }
            let applied = match &report.event {
                AttemptEvent::Started { at } => self.apply_start(report.attempt, *at),
                AttemptEvent::Progress { fraction } => {
                    self.apply_progress(report.attempt, *fraction)
                }
                AttemptEvent::Ended { outcome } => self.apply_end(report, outcome, jobs),
                AttemptEvent::Log { .. } => continue,
            };
            if applied.is_none() {
                self.summary.ignored += 1;
            }
        }
    }

    /// Whether the reporting executor is not the one that the attempt was given to. Runs that are deleted have no
    /// executor to compare with.
    fn has_foreign_origin(&self, report: &AttemptReport) -> bool {
        let (Some(by), Some(run)) = (&report.executor, self.runs.get(&report.attempt.run.0)) else {
            return false;
        };
        !run.is_given_to(by, report.attempt.attempt)
    }

    /// Whether the report at this position of the batch was [foreign](IngestSummary::foreign).
    pub(super) fn is_foreign(&self, position: usize) -> bool {
        self.summary.foreign.binary_search(&position).is_ok()
    }

    /// The run, if the reported attempt is its current one.
    fn run_at(&mut self, id: AttemptId) -> Option<&mut RunUpdate> {
        self.runs
            .get_mut(&id.run.0)
            .filter(|run| run.attempt == id.attempt)
    }

    fn apply_start(&mut self, id: AttemptId, at: Timestamp) -> Option<()> {
        let latest = self.now.plus_ms(MAX_CLOCK_AHEAD_MS);
        let run = self
            .run_at(id)
            .filter(|run| matches!(run.state, RunState::Dispatching | RunState::Queued))?;
        run.state = RunState::Running;
        run.started_at = Some(at.min(latest));
        Some(())
    }

    fn apply_progress(&mut self, id: AttemptId, fraction: f64) -> Option<()> {
        let run = self
            .run_at(id)
            .filter(|run| fraction.is_finite() && is_published(run.state))?;
        run.progress = Some(fraction.clamp(0.0, 1.0));
        Some(())
    }

    fn apply_end(
        &mut self,
        report: &AttemptReport,
        outcome: &Outcome,
        jobs: &JobsById,
    ) -> Option<()> {
        let id = report.attempt;
        let run = self.runs.get_mut(&id.run.0)?;
        let next = outcome.kind.state().unwrap_or(RunState::Scheduled);
        // A scheduler judges attempts that have not started. It may have found a second copy of a trigger whose first
        // copy is running. About a running attempt it can only say that it is lost.
        let is_misjudged = report.executor.is_none()
            && run.state == RunState::Running
            && outcome.kind != OutcomeKind::Lost;
        if run.attempt != id.attempt || !run.state.may_become(next) || is_misjudged {
            self.refusals.extend(refusal(run, id, outcome));
            return None;
        }
        let (transition, event) = run.end_attempt(outcome, jobs.get(&run.run.job_id), self.now);
        self.events.extend(event);
        let job = JobId(run.run.job_id);
        if self.summary.ended_jobs.last() != Some(&job) {
            self.summary.ended_jobs.push(job);
        }
        if let Some(due_at) = transition.due_at {
            self.summary.rescheduled += 1;
            keep_earliest(&mut self.summary.next_due_at, due_at);
            run.next_attempt = Some(transition);
        } else {
            self.events.extend(run.flow_stop(&transition));
            self.summary.ended += 1;
            *self.summary.ended_in.entry(transition.state).or_default() += 1;
            run.end = Some(transition);
        }
        Some(())
    }

    /// Whether log lines of this attempt are stored. It has to be a present or past attempt of its run.
    pub(super) fn stores_log_of(&self, id: AttemptId) -> bool {
        self.runs
            .get(&id.run.0)
            .is_some_and(|run| (1..=run.attempt).contains(&id.attempt))
    }

    /// What the batch writes.
    pub fn into_writes(self) -> BatchWrites {
        let mut writes = BatchWrites {
            events: self.events,
            refusals: self.refusals,
            summary: self.summary,
            ..BatchWrites::default()
        };
        for (id, update) in self.runs {
            writes
                .started
                .extend(update.started_at.map(|at| StartedRun {
                    run: id,
                    attempt: update.run.attempt,
                    at,
                }));
            writes
                .progress
                .extend(update.progress.map(|fraction| (id, fraction)));
            writes.next_attempts.extend(update.next_attempt);
            writes.ended.extend(update.end.map(|end| (update.run, end)));
        }
        writes
    }
}

/// The event for a refused end. A repeated report of the same end gets no event.
fn refusal(run: &RunUpdate, id: AttemptId, outcome: &Outcome) -> Option<TimelineEvent> {
    let reached = outcome.kind.state();
    let reported = reached.map_or("returned", RunState::as_str);
    let detail = if run.attempt != id.attempt {
        format!("reported {reported}; the run is at attempt {}", run.attempt)
    } else if reached == Some(run.state) {
        return None;
    } else {
        format!("reported {reported}; the run is {}", run.state)
    };
    Some(TimelineEvent {
        run: id.run.0,
        attempt: id.attempt,
        event: "refused",
        detail,
        executor: None,
    })
}

impl BatchWrites {
    /// Fixed-delay jobs whose next fire time counts from one of the ends, with the time of the end.
    pub fn delayed_jobs(&self, now: Timestamp) -> Vec<(i64, Timestamp)> {
        self.ended
            .iter()
            .filter(|(run, _)| run.delays_next_fire())
            .filter_map(|(run, end)| Some((run.job_id, end.ended_at?.min(now))))
            .collect()
    }

    /// Runs whose ends may start other jobs, sorted by id.
    pub fn parents(&self) -> impl Iterator<Item = &(RunSnapshot, Transition)> {
        self.ended
            .iter()
            .filter(|(run, end)| run.may_start_children(end.state))
    }
}

/// The earlier attempts that executors report about: run and attempt. The adapter reads their executors and passes them
/// to [`set_earlier_executors`](super::snapshot::set_earlier_executors).
pub fn earlier_attempts(reports: &[AttemptReport], runs: &[RunSnapshot]) -> BTreeSet<(i64, u32)> {
    let current: HashMap<i64, u32> = runs.iter().map(|run| (run.id, run.attempt)).collect();
    reports
        .iter()
        .filter(|report| report.executor.is_some())
        .map(|report| (report.attempt.run.0, report.attempt.attempt))
        .filter(|(run, attempt)| current.get(run).is_some_and(|current| attempt < current))
        .collect()
}

/// The jobs of failed attempts, with their versions. Their definitions decide whether another attempt follows. Misfires may
/// raise alarms. A job whose failures alarm rules count is read for its successes too.
pub fn required_jobs(reports: &[AttemptReport], runs: &[RunSnapshot]) -> HashMap<i64, i64> {
    let needs_job = |state: RunState| state.is_failure() || state == RunState::Skipped;
    let ended: HashSet<i64> = reports
        .iter()
        .filter(|report| match &report.event {
            AttemptEvent::Ended { outcome } => outcome.kind.state().is_some_and(needs_job),
            _ => false,
        })
        .map(|report| report.attempt.run.0)
        .collect();
    runs.iter()
        .filter(|run| ended.contains(&run.id) || run.is_of_failing_job())
        .filter_map(|run| Some((run.job_id, run.job.as_ref()?.version)))
        .collect()
}

fn is_published(state: RunState) -> bool {
    matches!(
        state,
        RunState::Dispatching | RunState::Queued | RunState::Running
    )
}

/// Replaces `earliest` with `other` if `other` is earlier.
pub fn keep_earliest(earliest: &mut Option<Timestamp>, other: Timestamp) {
    *earliest = Some(earliest.map_or(other, |at| at.min(other)));
}

#[cfg(test)]
mod tests {
    use cueline_model::{ExecutorId, RunId};

    use super::*;
    use crate::adapter::snapshot::{Children, GivenTo, JobSnapshot};

    const NOW: Timestamp = Timestamp::from_millis(10_000);

    fn snapshot(state: RunState) -> RunSnapshot {
        RunSnapshot {
            id: 1,
            job_id: 2,
            manual: false,
            state,
            attempt: 1,
            retries: 0,
            reruns: 0,
            cancel_requested: false,
            executor: Some(GivenTo::Executor(executor("one"))),
            earlier: BTreeMap::new(),
            job: Some(JobSnapshot {
                version: 3,
                enabled: true,
                fixed_delay: true,
                children: Children::AfterSuccess,
                paused_until: None,
                failing: false,
            }),
        }
    }

    fn executor(name: &str) -> ExecutorId {
        ExecutorId {
            group: "default".parse().expect("a name"),
            name: name.parse().expect("a name"),
        }
    }

    fn report(attempt: u32, event: AttemptEvent) -> AttemptReport {
        AttemptReport {
            attempt: AttemptId {
                run: RunId(1),
                attempt,
            },
            executor: Some(executor("one")),
            event,
        }
    }

    fn ended(kind: OutcomeKind) -> AttemptEvent {
        AttemptEvent::Ended {
            outcome: Outcome::new(kind, NOW),
        }
    }

    fn writes(run: RunSnapshot, reports: &[AttemptReport]) -> BatchWrites {
        let mut batch = ReportBatch::new(vec![run], NOW);
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
        let writes = writes(snapshot(RunState::Queued), &reports);
        assert_eq!(
            writes.started,
            [StartedRun {
                run: 1,
                attempt: 1,
                at: NOW
            }]
        );
        assert_eq!(writes.progress, [(1, 1.0)]);
        assert!(writes.next_attempts.is_empty());
        assert!(writes.ended.iter().all(|(_, end)| end.is_success()));
        assert_eq!((writes.summary.ended, writes.summary.ignored), (1, 0));
        assert_eq!(writes.delayed_jobs(NOW), [(2, NOW)]);
        assert_eq!(writes.parents().count(), 1);
    }

    #[test]
    fn a_start_in_the_far_future_is_limited() {
        let a_day_later = Timestamp::from_millis(86_410_000);
        for (reported, at) in [(NOW, NOW), (Timestamp::from_millis(i64::MAX), a_day_later)] {
            let started = report(1, AttemptEvent::Started { at: reported });
            let writes = writes(snapshot(RunState::Queued), &[started]);
            let starts: Vec<Timestamp> = writes.started.iter().map(|s| s.at).collect();
            assert_eq!(starts, [at]);
        }
    }

    #[test]
    fn a_late_end_is_refused_with_an_event() {
        let writes = writes(
            snapshot(RunState::Cancelled),
            &[report(1, ended(OutcomeKind::Succeeded))],
        );
        assert!(writes.ended.is_empty() && writes.next_attempts.is_empty());
        assert_eq!(writes.summary.ignored, 1);
        assert_eq!(
            writes.refusals,
            [TimelineEvent {
                run: 1,
                attempt: 1,
                event: "refused",
                detail: "reported succeeded; the run is cancelled".to_owned(),
                executor: None,
            }]
        );
    }

    #[test]
    fn a_scheduler_says_of_a_running_attempt_only_that_it_is_lost() {
        for kind in [
            OutcomeKind::Returned,
            OutcomeKind::Cancelled,
            OutcomeKind::Failed,
            OutcomeKind::Lost,
        ] {
            let by_scheduler = AttemptReport {
                executor: None,
                ..report(1, ended(kind))
            };
            let writes = writes(snapshot(RunState::Running), &[by_scheduler]);
            let is_lost = kind == OutcomeKind::Lost;
            assert_eq!(writes.ended.len(), usize::from(is_lost), "{kind:?}");
            assert!(writes.next_attempts.is_empty(), "{kind:?}");
            assert_eq!(writes.refusals.len(), usize::from(!is_lost), "{kind:?}");
        }
    }

    #[test]
    fn a_repeated_end_is_ignored_without_an_event() {
        let writes = writes(
            snapshot(RunState::Succeeded),
            &[report(1, ended(OutcomeKind::Succeeded))],
        );
        assert_eq!(writes.summary.ignored, 1);
        assert!(writes.refusals.is_empty());
    }

    #[test]
    fn a_returned_attempt_is_followed_by_another_unless_its_job_was_stopped() {
        let returned = [report(1, ended(OutcomeKind::Returned))];
        let going_on = writes(snapshot(RunState::Queued), &returned);
        let attempts: Vec<_> = going_on
            .next_attempts
            .iter()
            .map(|c| (c.from_attempt, c.attempt))
            .collect();
        assert_eq!(attempts, [(1, 2)]);
        assert_eq!(going_on.summary.rescheduled, 1);

        let mut stopped = snapshot(RunState::Queued);
        stopped.job = None;
        let stopped = writes(stopped, &returned);
        let states: Vec<_> = stopped.ended.iter().map(|(_, c)| c.state).collect();
        assert_eq!(states, [RunState::Cancelled]);
    }

    #[test]
    fn an_attempt_without_successor_says_that_its_job_was_stopped() {
        let mut stopped = snapshot(RunState::Queued);
        stopped.job = None;
        for (reported, expected) in [
            (None, "its job was stopped meanwhile"),
            (
                Some("the worker is stopping".to_owned()),
                "the worker is stopping; its job was stopped meanwhile",
            ),
        ] {
            let mut outcome = Outcome::new(OutcomeKind::Returned, NOW);
            outcome.message = reported;
            let writes = writes(
                stopped.clone(),
                &[report(1, AttemptEvent::Ended { outcome })],
            );
            let messages: Vec<_> = writes
                .ended
                .iter()
                .map(|(_, c)| c.message.as_deref())
                .collect();
            assert_eq!(messages, [Some(expected)]);
        }
    }

    fn by(name: &str, report: AttemptReport) -> AttemptReport {
        AttemptReport {
            executor: Some(executor(name)),
            ..report
        }
    }

    #[test]
    fn a_report_by_another_executor_changes_nothing() {
        let mut other_group = report(1, ended(OutcomeKind::Succeeded));
        other_group.executor = Some(ExecutorId {
            group: "other".parse().expect("a name"),
            ..executor("one")
        });
        let reports = [
            by("two", report(1, AttemptEvent::Started { at: NOW })),
            report(1, AttemptEvent::Progress { fraction: 0.5 }),
            by("two", report(1, ended(OutcomeKind::Failed))),
            other_group,
            report(2, ended(OutcomeKind::Succeeded)),
        ];
        for state in [RunState::Queued, RunState::Running, RunState::Dispatching] {
            let writes = writes(snapshot(state), &reports);
            assert_eq!(writes.summary.foreign, [0, 2, 3, 4], "{state}");
            assert_eq!((writes.summary.ended, writes.summary.ignored), (0, 0));
            assert_eq!(writes.progress, [(1, 0.5)]);
            assert!(writes.started.is_empty() && writes.ended.is_empty());
            assert!(writes.events.is_empty() && writes.refusals.is_empty());
        }
    }

    #[test]
    fn an_attempt_that_waits_belongs_to_no_executor() {
        let reports = [report(1, ended(OutcomeKind::Cancelled))];
        let writes = writes(snapshot(RunState::Scheduled), &reports);
        assert_eq!(writes.summary.foreign, [0]);
        assert!(writes.ended.is_empty() && writes.refusals.is_empty());
    }

    #[test]
    fn an_earlier_attempt_belongs_to_its_own_executor() {
        let mut run = snapshot(RunState::Running);
        run.attempt = 2;
        run.executor = Some(GivenTo::Executor(executor("two")));
        run.earlier.insert(1, executor("one"));
        let reports = [
            report(1, ended(OutcomeKind::Succeeded)),
            by("two", report(1, ended(OutcomeKind::Succeeded))),
        ];
        assert_eq!(
            earlier_attempts(&reports, std::slice::from_ref(&run)),
            BTreeSet::from([(1, 1)])
        );
        let writes = writes(run, &reports);
        assert_eq!(writes.summary.foreign, [1]);
        assert_eq!((writes.summary.ignored, writes.refusals.len()), (1, 1));
    }

    #[test]
    fn the_executor_of_an_attempt_is_known_after_the_attempt() {
        let reports = [
            report(1, ended(OutcomeKind::Returned)),
            report(1, AttemptEvent::Progress { fraction: 0.5 }),
            by("two", report(1, AttemptEvent::Progress { fraction: 0.5 })),
        ];
        let writes = writes(snapshot(RunState::Queued), &reports);
        assert_eq!(writes.summary.foreign, [2]);
        assert_eq!(writes.summary.ignored, 1);
        let noted: Vec<_> = writes.events.iter().map(|e| e.executor.clone()).collect();
        assert_eq!(noted, [Some(executor("one"))]);
    }

    #[test]
    fn only_failed_attempts_require_definitions() {
        let runs = [snapshot(RunState::Running)];
        let of = |kind| required_jobs(&[report(1, ended(kind))], &runs);
        assert_eq!(of(OutcomeKind::Failed), HashMap::from([(2, 3)]));
        assert!(of(OutcomeKind::Succeeded).is_empty());
    }
}
