//! The metrics of the executors in this process.

use std::time::Duration;

use cueline_http::metrics::{Family, Histogram, Sample};
use cueline_worker::{Readiness, TimeCounts, WorkerCounts, WorkerTimes};

/// The sums over these executors. A process has at most 64 of them.
pub(crate) fn families(executors: &[Readiness]) -> Vec<Family> {
    let counts: Vec<WorkerCounts> = executors.iter().map(Readiness::counts).collect();
    let ready = executors.iter().filter(|e| e.problem().is_none()).count();
    let times: Vec<WorkerTimes> = executors.iter().map(Readiness::times).collect();
    let mut families = vec![
        Family::gauge(
            "worker_executors",
            "Executors in this process.",
            Sample::only(executors.len() as u64),
        ),
        Family::gauge(
            "worker_ready_executors",
            "Executors in this process that take triggers.",
            Sample::only(ready as u64),
        ),
    ];
    families.extend(state(&counts));
    families.extend(totals(&counts));
    families.extend(steps(&times));
    families
}

fn sum(counts: &[WorkerCounts], of: fn(&WorkerCounts) -> u64) -> Vec<Sample> {
    Sample::only(counts.iter().map(of).sum())
}

/// What the executors do now.
fn state(counts: &[WorkerCounts]) -> [Family; 6] {
    [
        Family::gauge(
            "worker_draining_executors",
            "Executors in this process that finish their work and take no more.",
            sum(counts, |counts| counts.draining.into()),
        ),
        Family::gauge(
            "worker_held_attempts",
            "Attempts that this process has taken and that have not ended: in lanes, or running.",
            sum(counts, |counts| counts.held),
        ),
        Family::gauge(
            "worker_waiting_attempts",
            "Attempts that wait in lanes of this process.",
            sum(counts, |counts| counts.waiting),
        ),
        Family::gauge(
            "worker_running_attempts",
            "Attempts that run in this process.",
            sum(counts, |counts| counts.running),
        ),
        Family::gauge(
            "worker_busy_lanes",
            "Lanes of this process in which an attempt runs or waits.",
            sum(counts, |counts| counts.busy_lanes),
        ),
        Family::gauge(
            "worker_waiting_lanes",
            "Lanes of this process that would start an attempt if concurrency were higher.",
            sum(counts, |counts| counts.waiting_lanes),
        ),
    ]
}

/// What the executors have done since the start of the process.
fn totals(counts: &[WorkerCounts]) -> [Family; 3] {
    [
        Family::counter(
            "worker_received_triggers",
            "Triggers that this process has fetched, repeated ones included.",
            sum(counts, |counts| counts.received),
        ),
        Family::counter(
            "worker_redelivered_triggers",
            "Fetched triggers that the broker may have delivered before.",
            sum(counts, |counts| counts.redelivered),
        ),
        Family::counter(
            "worker_heartbeats",
            "Heartbeats that the executors in this process have made.",
            sum(counts, |counts| counts.heartbeats),
        ),
    ]
}

/// The steps of an attempt that a worker sees.
fn steps(times: &[WorkerTimes]) -> [Family; 3] {
    let merged = |of: fn(&WorkerTimes) -> TimeCounts| {
        let mut sum = TimeCounts::default();
        for counts in times.iter().map(of) {
            sum.merge(&counts);
        }
        histogram(&sum)
    };
    [
        Family::histogram(
            "worker_start_lateness",
            "Time from the fire time of a scheduled run to the start of its first attempt, by the clock of this machine.",
            merged(|times| times.start_lateness),
        ),
        Family::histogram(
            "worker_start_wait",
            "Time from the arrival of a trigger in this process to the start of its attempt.",
            merged(|times| times.start_wait),
        ),
        Family::histogram(
            "worker_attempt_duration",
            "Time from the start to the end of attempts of this process.",
            merged(|times| times.duration),
        ),
    ]
}

fn histogram(counts: &TimeCounts) -> Histogram {
    // The sum over no executors has no bounds.
    let buckets = counts.buckets.iter().filter(|(bound_ms, _)| *bound_ms > 0);
    Histogram {
        buckets: buckets
            .map(|(bound_ms, count)| (Duration::from_millis(*bound_ms), *count))
            .collect(),
        above: counts.above,
        sum: Duration::from_millis(counts.sum_ms),
    }
}

#[cfg(test)]
mod tests {
    use cueline_http::metrics::text;
    use cueline_test_support::{documented_metrics, served_metrics};

    use super::*;

    const PAGE: &str = include_str!("../../../docs/metrics.md");

    #[test]
    fn the_page_lists_each_metric_of_a_worker_and_no_other() {
        let served = served_metrics(&text(families(&[])));
        assert_eq!(documented_metrics(PAGE, "worker"), served);
    }

    #[test]
    fn the_times_of_several_executors_are_summed_up() {
        let mut one = WorkerTimes::default();
        one.start_wait.buckets[0] = (5, 2);
        one.start_wait.sum_ms = 1_500;
        let mut other = one;
        other.start_wait.above = 1;
        let text = text(steps(&[one, other]).into());
        for line in [
            "cueline_worker_start_wait_seconds_count 5",
            "cueline_worker_start_wait_seconds_sum 3.0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}: {text}");
        }
    }
}
