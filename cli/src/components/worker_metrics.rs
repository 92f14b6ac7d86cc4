//! The metrics of the executors in this process.

use cueline_api::metrics::{Family, Sample};
use cueline_worker::{Readiness, WorkerCounts};

/// The sums over these executors. A process has at most 64 of them.
pub(crate) fn families(executors: &[Readiness]) -> Vec<Family> {
    let counts: Vec<WorkerCounts> = executors.iter().map(Readiness::counts).collect();
    let sum = |of: fn(&WorkerCounts) -> u64| Sample::only(counts.iter().map(of).sum());
    let ready = executors.iter().filter(|e| e.problem().is_none()).count();
    vec![
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
        Family::gauge(
            "worker_draining_executors",
            "Executors in this process that finish their work and take no more.",
            sum(|counts| counts.draining.into()),
        ),
        Family::gauge(
            "worker_held_attempts",
            "Attempts that this process has taken and that have not ended: in lanes, or running.",
            sum(|counts| counts.held),
        ),
        Family::gauge(
            "worker_running_attempts",
            "Attempts that run in this process.",
            sum(|counts| counts.running),
        ),
        Family::counter(
            "worker_heartbeats",
            "Heartbeats that the executors in this process have made.",
            sum(|counts| counts.heartbeats),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use cueline_api::metrics::text;
    use cueline_test_support::{documented_metrics, served_metrics};

    use super::*;

    const PAGE: &str = include_str!("../../../docs/metrics.md");

    #[test]
    fn the_page_lists_each_metric_of_a_worker_and_no_other() {
        let served = served_metrics(&text(families(&[])));
        assert_eq!(documented_metrics(PAGE, "worker"), served);
    }
}
