//! Plain successes, which nearly all reports are: a store can apply them by one statement, without reading their runs first.

use std::collections::BTreeMap;

use cueline_model::{
    AttemptEvent, AttemptId, ExecutorId, JobId, Outcome, OutcomeKind, RunId, RunState,
};

use super::transition::limited;
use crate::{AttemptReport, IngestSummary};

/// A success that an executor reports, the only report about its run in its batch.
///
/// It ends the run if its attempt is the current one, is published, and was given to this executor; and if nothing depends
/// on the end: no other job, no next fire time, and no series of failures. The statement checks that. Whatever else a
/// report says, and whatever the statement leaves out, is for [`ReportBatch`](super::report_batch::ReportBatch).
#[derive(Debug, Clone, Copy)]
pub struct PlainEnd<'a> {
    /// The position of the report in its batch.
    pub position: usize,
    /// The attempt.
    pub attempt: AttemptId,
    /// Who reports it.
    pub executor: &'a ExecutorId,
    /// The outcome.
    pub outcome: &'a Outcome,
}

impl PlainEnd<'_> {
    /// The message to store.
    pub fn message(&self) -> Option<String> {
        self.outcome.message.as_deref().map(limited)
    }

    /// The output to store.
    pub fn output(&self) -> Option<String> {
        self.outcome.output.as_deref().map(limited)
    }
}

/// The plain successes among these reports, sorted by run id. None if an attempt of the batch ended in another way, because
/// alarms compare the times of all ends of a batch.
pub fn plain_ends(reports: &[AttemptReport]) -> Vec<PlainEnd<'_>> {
    let is_other_end = |report: &AttemptReport| match &report.event {
        AttemptEvent::Ended { outcome } => outcome.kind != OutcomeKind::Succeeded,
        _ => false,
    };
    if reports.iter().any(is_other_end) {
        return Vec::new();
    }
    let mut ends: BTreeMap<RunId, Option<PlainEnd<'_>>> = BTreeMap::new();
    for (position, report) in reports.iter().enumerate() {
        let end = match (&report.event, &report.executor) {
            (AttemptEvent::Ended { outcome }, Some(executor)) => Some(PlainEnd {
                position,
                attempt: report.attempt,
                executor,
                outcome,
            }),
            _ => None,
        };
        let others = ends.entry(report.attempt.run);
        others.and_modify(|known| *known = None).or_insert(end);
    }
    ends.into_values().flatten().collect()
}

/// The answer for those of these successes that ended their runs. `jobs` has the runs and their jobs. Also returns the
/// other reports of the batch, with their positions.
pub fn after_plain_ends<'r>(
    reports: &'r [AttemptReport],
    ends: &[PlainEnd<'_>],
    jobs: &BTreeMap<i64, i64>,
) -> (IngestSummary, Vec<(usize, &'r AttemptReport)>) {
    let mut job_at: Vec<Option<i64>> = vec![None; reports.len()];
    for end in ends {
        if let Some(at) = job_at.get_mut(end.position) {
            *at = jobs.get(&end.attempt.run.0).copied();
        }
    }
    let mut summary = IngestSummary {
        ended: jobs.len(),
        ..IngestSummary::default()
    };
    if !jobs.is_empty() {
        summary.ended_in.insert(RunState::Succeeded, jobs.len());
    }
    let mut ended_jobs: Vec<JobId> = job_at.iter().flatten().map(|job| JobId(*job)).collect();
    ended_jobs.dedup();
    summary.ended_jobs = ended_jobs;
    let others = reports.iter().enumerate().zip(&job_at);
    let others = others.filter(|(_, job)| job.is_none());
    (summary, others.map(|(report, _)| report).collect())
}

/// Adds the answer for the reports at `positions`.
pub fn add_summary(to: &mut IngestSummary, of_rest: IngestSummary, positions: &[usize]) {
    to.ended += of_rest.ended;
    for (state, count) in of_rest.ended_in {
        *to.ended_in.entry(state).or_default() += count;
    }
    to.rescheduled += of_rest.rescheduled;
    to.ignored += of_rest.ignored;
    let foreign = of_rest.foreign.iter();
    to.foreign
        .extend(foreign.filter_map(|at| positions.get(*at)));
    to.child_runs += of_rest.child_runs;
    to.ended_jobs.extend(of_rest.ended_jobs);
    to.next_due_at = to.next_due_at.into_iter().chain(of_rest.next_due_at).min();
}

#[cfg(test)]
mod tests {
    use cueline_model::Timestamp;

    use super::*;

    fn report(run: i64, event: AttemptEvent) -> AttemptReport {
        AttemptReport {
            attempt: AttemptId {
                run: RunId(run),
                attempt: 1,
            },
            executor: Some(ExecutorId {
                group: "default".parse().expect("a name"),
                name: "one".parse().expect("a name"),
            }),
            event,
        }
    }

    fn ended(kind: OutcomeKind) -> AttemptEvent {
        AttemptEvent::Ended {
            outcome: Outcome::new(kind, Timestamp::from_millis(1)),
        }
    }

    fn batch() -> Vec<AttemptReport> {
        let by_scheduler = AttemptReport {
            executor: None,
            ..report(5, ended(OutcomeKind::Succeeded))
        };
        let started = AttemptEvent::Started {
            at: Timestamp::from_millis(1),
        };
        vec![
            report(9, ended(OutcomeKind::Succeeded)),
            report(2, started),
            report(2, ended(OutcomeKind::Succeeded)),
            report(3, AttemptEvent::Progress { fraction: 0.5 }),
            by_scheduler,
            report(1, ended(OutcomeKind::Succeeded)),
            report(4, ended(OutcomeKind::Succeeded)),
            report(4, ended(OutcomeKind::Succeeded)),
        ]
    }

    #[test]
    fn only_single_successes_of_executors_are_plain() {
        let reports = batch();
        let ends = plain_ends(&reports);
        let found: Vec<_> = ends.iter().map(|e| (e.attempt.run.0, e.position)).collect();
        assert_eq!(found, [(1, 5), (9, 0)]);
    }

    #[test]
    fn no_end_is_plain_beside_another_than_a_success() {
        let mut reports = batch();
        reports.push(report(6, ended(OutcomeKind::Returned)));
        assert!(plain_ends(&reports).is_empty());
    }

    #[test]
    fn what_the_statement_leaves_out_is_left_with_its_positions() {
        let reports = batch();
        let ends = plain_ends(&reports);
        let ended = BTreeMap::from([(9, 70)]);
        let (mut summary, others) = after_plain_ends(&reports, &ends, &ended);
        assert_eq!(
            (summary.ended, &summary.ended_jobs[..]),
            (1, &[JobId(70)][..])
        );
        assert_eq!(summary.ended_in[&RunState::Succeeded], 1);
        let positions: Vec<usize> = others.iter().map(|(at, _)| *at).collect();
        assert_eq!(positions, [1, 2, 3, 4, 5, 6, 7]);

        let of_rest = IngestSummary {
            ended: 2,
            ended_in: BTreeMap::from([(RunState::Succeeded, 1), (RunState::Failed, 1)]),
            foreign: vec![4],
            next_due_at: Some(Timestamp::from_millis(5)),
            ..IngestSummary::default()
        };
        add_summary(&mut summary, of_rest, &positions);
        assert_eq!((summary.ended, &summary.foreign[..]), (3, &[5][..]));
        assert_eq!(summary.ended_in[&RunState::Succeeded], 2);
        assert_eq!(summary.next_due_at, Some(Timestamp::from_millis(5)));
    }

    #[test]
    fn the_answer_of_no_plain_end_is_empty() {
        let reports = batch();
        let (summary, others) = after_plain_ends(&reports, &[], &BTreeMap::new());
        assert_eq!(summary, IngestSummary::default());
        assert_eq!(others.len(), reports.len());
    }
}
