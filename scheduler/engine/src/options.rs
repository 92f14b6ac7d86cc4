//! How an engine works: every bound and every time, with its default.

/// How an engine works. The defaults suit one machine as well as a cluster.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// The node's name, for people.
    pub node_name: String,
    /// Seed of the random choices (`route = "random"`).
    pub seed: u64,
    /// Jobs and runs are claimed so long before they are due; 1,500 ms.
    pub lookahead_ms: u64,
    /// The store is asked at least this often; 500 ms.
    pub poll_ms: u64,
    /// Jobs, or runs, claimed in one transaction; 2,000.
    pub claim_batch: usize,
    /// Claimed runs held in memory; past that nothing more is claimed until some have gone out. 100,000.
    pub max_held: usize,
    /// Runs without a live executor held in memory; past that they are given back to the store for 10 s. 10,000.
    pub max_parked: usize,
    /// Runs are routed and marked so long before they are due; 25 ms, and up to half a second more where thousands are due together. A pause,
    /// edit or delete waits for at most this, one publish and its confirmation.
    pub prepare_ahead_ms: u64,
    /// Runs routed and marked in one transaction; 4,000.
    pub dispatch_batch: usize,
    /// Triggers published at once; 250, so that of many due at the same instant the first start while the last are published; up to eight times as many when many wait.
    pub publish_batch: usize,
    /// Confirmations written at once; 2,000.
    pub confirm_batch: usize,
    /// Reports taken in at once; 2,000.
    pub ingest_batch: usize,
    /// The node's lease; 15 s. Another node takes over what a dead one had claimed after this.
    pub lease_ms: u64,
    /// An executor that has been silent for this long gets nothing more; 15 s.
    pub executor_dead_after_ms: u64,
    /// What was meant for an executor that has been silent for this long goes to others; 30 s. Executors stop what they run before, see
    /// `fence_after` of the worker, so it must be longer than that, and longer than `executor_dead_after_ms`.
    pub failover_after_ms: u64,
    /// An attempt that was queued this long ago is compared with what its executor holds; 30 s.
    pub reconcile_after_ms: u64,
    /// A run that its executor should have stopped is given up this long after its timeout and kill grace; 60 s.
    pub overdue_slack_ms: u64,
    /// An executor that does not know an attempt takes its trigger for this long; 60 min. Executors remember attempts for longer, so that a
    /// trigger that somebody kept and publishes again is either known or too old.
    pub trigger_valid_ms: u64,
    /// Ended runs are kept for this long; 7 days.
    pub retention_ms: u64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            node_name: "scheduler".to_owned(),
            seed: 0,
            lookahead_ms: 1_500,
            poll_ms: 500,
            claim_batch: 2_000,
            max_held: 100_000,
            max_parked: 10_000,
            prepare_ahead_ms: 25,
            dispatch_batch: 4_000,
            publish_batch: 250,
            confirm_batch: 2_000,
            ingest_batch: 2_000,
            lease_ms: 15_000,
            executor_dead_after_ms: 15_000,
            failover_after_ms: 30_000,
            reconcile_after_ms: 30_000,
            overdue_slack_ms: 60_000,
            trigger_valid_ms: 3_600_000,
            retention_ms: 7 * 24 * 3_600_000,
        }
    }
}

impl EngineOptions {
    /// The same with this `failover_after_ms`, and with what has to be in step with it: an executor gets nothing more after half of it, another node
    /// takes over after half of it, and what was lost on the way is looked for after the whole. Longer ones than the defaults leave those at their defaults.
    #[must_use]
    pub fn failing_over_after(self, failover_after_ms: u64) -> Self {
        let usual = Self::default();
        Self {
            lease_ms: usual.lease_ms.min(failover_after_ms / 2),
            executor_dead_after_ms: usual.executor_dead_after_ms.min(failover_after_ms / 2),
            reconcile_after_ms: usual.reconcile_after_ms.min(failover_after_ms),
            failover_after_ms,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorter_times_stay_in_step_and_longer_ones_are_no_longer_than_usual() {
        let times = |o: EngineOptions| {
            [
                o.lease_ms,
                o.executor_dead_after_ms,
                o.failover_after_ms,
                o.reconcile_after_ms,
            ]
        };
        let at = |ms| times(EngineOptions::default().failing_over_after(ms));
        assert_eq!(at(30_000), times(EngineOptions::default()));
        assert_eq!(at(6_000), [3_000, 3_000, 6_000, 6_000]);
        assert_eq!(at(90_000), [15_000, 15_000, 90_000, 30_000]);
    }
}
