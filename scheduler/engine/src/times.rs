//! How long runs take from one stage to the next, since the start of the node.

use cueline_model::{AttemptEvent, Timestamp};
use cueline_runtime::TimeHistogram;
use cueline_runtime::time_histogram::{DELAY_BOUNDS_MS, DURATION_BOUNDS_MS};
use cueline_store::{AttemptReport, IngestSummary, TimeDistribution};

/// Histograms of the steps that this node sees.
#[derive(Debug)]
pub(crate) struct Times {
    /// From the due time of a run until the store had it as `dispatching`.
    pub(crate) dispatch_lateness: TimeHistogram,
    /// From the due time of a run until the broker had its trigger.
    pub(crate) trigger_lateness: TimeHistogram,
    /// From the start to the end of an attempt, by the executor's clock.
    pub(crate) attempt_duration: TimeHistogram,
    /// From the end of an attempt, by the executor's clock, until the store had it.
    pub(crate) report_delay: TimeHistogram,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            dispatch_lateness: TimeHistogram::new(DELAY_BOUNDS_MS),
            trigger_lateness: TimeHistogram::new(DELAY_BOUNDS_MS),
            attempt_duration: TimeHistogram::new(DURATION_BOUNDS_MS),
            report_delay: TimeHistogram::new(DELAY_BOUNDS_MS),
        }
    }
}

impl Times {
    /// Notes the ends that executors have reported. Leaves out reports by an executor that the attempt was not given to.
    pub(crate) fn note_ends(
        &self,
        reports: &[AttemptReport],
        ingested: &IngestSummary,
        now: Timestamp,
    ) {
        let (mut durations, mut delays) = (Vec::new(), Vec::new());
        for (position, report) in reports.iter().enumerate() {
            let AttemptEvent::Ended { outcome } = &report.event else {
                continue;
            };
            // The positions ascend.
            let is_foreign = ingested.foreign.binary_search(&position).is_ok();
            if report.executor.is_none() || is_foreign {
                continue;
            }
            delays.push(elapsed_ms(outcome.ended_at, now));
            if let Some(started_at) = outcome.started_at {
                durations.push(elapsed_ms(started_at, outcome.ended_at));
            }
        }
        self.attempt_duration.record(durations);
        self.report_delay.record(delays);
    }
}

/// The time between two instants in milliseconds; 0 if the second comes first, by another machine's clock or because
/// the work was done ahead.
pub(crate) fn elapsed_ms(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.since_ms(from)).unwrap_or(0)
}

/// The counts of a histogram, as the port to the API has them.
pub(crate) fn distribution(histogram: &TimeHistogram) -> TimeDistribution {
    let counts = histogram.counts();
    TimeDistribution {
        buckets: counts.buckets.to_vec(),
        above: counts.above,
        sum_ms: counts.sum_ms,
    }
}

#[cfg(test)]
mod tests {
    use cueline_model::{AttemptId, ExecutorId, Outcome, OutcomeKind, RunId};

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(100_000);

    fn ended(by_executor: bool, started_at: Option<Timestamp>) -> AttemptReport {
        let executor = ExecutorId {
            group: "g".parse().expect("valid"),
            name: "e".parse().expect("valid"),
        };
        let ended_at = Timestamp::from_millis(99_930);
        AttemptReport {
            attempt: AttemptId {
                run: RunId(1),
                attempt: 1,
            },
            executor: by_executor.then_some(executor),
            event: AttemptEvent::Ended {
                outcome: Outcome {
                    started_at,
                    ..Outcome::new(OutcomeKind::Succeeded, ended_at)
                },
            },
        }
    }

    fn count(histogram: &TimeHistogram) -> u64 {
        histogram.counts().buckets.iter().map(|(_, n)| n).sum()
    }

    #[test]
    fn ends_are_timed_if_the_executor_of_the_attempt_reports_them() {
        let started = Some(Timestamp::from_millis(99_500));
        let reports = [
            ended(true, started),
            ended(true, None),
            ended(false, started),
            ended(true, started),
        ];
        let ingested = IngestSummary {
            foreign: vec![3],
            ..IngestSummary::default()
        };
        let times = Times::default();
        times.note_ends(&reports, &ingested, NOW);
        assert_eq!(count(&times.attempt_duration), 1);
        assert_eq!(times.attempt_duration.counts().sum_ms, 430);
        assert_eq!(count(&times.report_delay), 2);
        assert_eq!(times.report_delay.counts().sum_ms, 140);
    }

    #[test]
    fn a_clock_that_is_behind_gives_no_negative_times() {
        assert_eq!(elapsed_ms(NOW, Timestamp::from_millis(1)), 0);
    }
}
