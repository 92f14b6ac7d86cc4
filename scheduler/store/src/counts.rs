//! What a scheduler process counts for metrics. It knows no format of metrics.

use cueline_model::RunState;

/// Counts since the start of a scheduler process, beside those of `SinceStart`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SchedulerCounts {
    /// Runs that were created for fire times, without skipped ones.
    pub fires: u64,
    /// Runs that were claimed, those of fire times included, and those of manual triggers left out.
    pub claimed_runs: u64,
    /// Messages of the results queue that were ingested.
    pub ingested_messages: u64,
    /// Heartbeats that were stored.
    pub stored_heartbeats: u64,
    /// Dead letters that were handed to the store. One that is delivered again counts again.
    pub dead_letters: u64,
    /// Runs that ended by reports which this scheduler applied, by terminal state.
    pub ended: Vec<(RunState, u64)>,
    /// How late triggers were.
    pub lateness: LatenessCounts,
}

/// The times from the due times of runs until the broker had their triggers, as a histogram.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LatenessCounts {
    /// The upper bound of each bucket in milliseconds, ascending, and the number of triggers in this bucket alone.
    pub buckets: Vec<(u64, u64)>,
    /// Triggers that were later than the last bound.
    pub above: u64,
    /// The sum of all times, in milliseconds.
    pub sum_ms: u64,
}
