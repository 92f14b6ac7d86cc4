//! What a scheduler process counts for metrics. It knows no format of metrics.

use cueline_model::{Namespace, RunState};

/// Counts since the start of a scheduler process, beside those of `SinceStart`, and what it holds now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SchedulerCounts {
    /// Runs that were created for fire times, without skipped ones.
    pub fires: u64,
    /// Runs that were claimed, those of fire times included, and those of manual triggers left out.
    pub claimed_runs: u64,
    /// Messages of the results queue that were ingested.
    pub ingested_messages: u64,
    /// Messages of the results queue that the broker may have delivered before.
    pub redelivered_messages: u64,
    /// Heartbeats that were stored.
    pub stored_heartbeats: u64,
    /// Dead letters that were handed to the store. One that is delivered again counts again.
    pub dead_letters: u64,
    /// Runs that the scheduler may fire before others start or end.
    pub room_for_fires: u64,
    /// Runs that ended by reports which this scheduler applied, by terminal state.
    pub ended: Vec<(RunState, u64)>,
    /// From the due times of runs until the store had them as `dispatching`; 0 for runs that were prepared ahead.
    pub dispatch_lateness: TimeDistribution,
    /// From the due times of runs until the broker had their triggers.
    pub trigger_lateness: TimeDistribution,
    /// From the start to the end of attempts, by the executor's clock.
    pub attempt_duration: TimeDistribution,
    /// From the end of attempts, by the executor's clock, until the store had their outcome.
    pub report_delay: TimeDistribution,
    /// Runs that the scheduler has claimed and not published, now.
    pub held_claims: HeldClaims,
    /// Executors whose heartbeats the scheduler receives, now.
    pub executors: LiveExecutors,
    /// What quotas of namespaces have refused, sorted by namespace and quota. A namespace without quotas has none.
    pub quota_refusals: Vec<QuotaRefusals>,
    /// The database's clock minus the scheduler's own, in milliseconds, as it was last measured.
    pub clock_offset_ms: i64,
}

/// What one quota of a namespace has refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaRefusals {
    /// The namespace.
    pub namespace: Namespace,
    /// The name of the quota, as in [`Quotas`](crate::Quotas).
    pub quota: &'static str,
    /// Skipped fires and refused requests.
    pub count: u64,
}

/// Claimed runs in the memory of a scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeldClaims {
    /// They wait for their due time.
    pub waiting: u64,
    /// Their triggers are written, and wait for the due time or for the broker.
    pub prepared: u64,
    /// They have no live executor.
    pub unroutable: u64,
}

/// The live executors that a scheduler knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LiveExecutors {
    /// They take triggers.
    pub ready: u64,
    /// They take none: they drain, or have a problem.
    pub not_ready: u64,
}

/// Times of one kind, as a histogram.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TimeDistribution {
    /// The upper bound of each bucket in milliseconds, ascending, and the count of this bucket alone.
    pub buckets: Vec<(u64, u64)>,
    /// The count above the last bound.
    pub above: u64,
    /// The sum of all times, in milliseconds.
    pub sum_ms: u64,
}
