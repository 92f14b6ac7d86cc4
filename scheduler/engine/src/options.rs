//! The engine's options with their defaults.

use std::sync::Arc;

use crate::alarms::AlarmTransport;

/// Options of an engine. The defaults suit a single machine as well as a cluster.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// The node's name in logs and in the store. A node that starts with the name of another one takes over its claims
    /// at once.
    pub node_name: String,
    /// Seed of the random choices (`route = "random"`).
    pub seed: u64,
    /// Jobs and runs are claimed this long before they are due; 1,500 ms.
    pub lookahead_ms: u64,
    /// The longest time between two searches for due jobs and runs; 500 ms.
    pub poll_ms: u64,
    /// Jobs, or runs, claimed in one transaction; 2,000.
    pub claim_batch: usize,
    /// The most claimed runs in memory; 100,000. At the limit, due runs wait in the store.
    pub max_claimed: usize,
    /// The most runs that are fired before others start or end; 50,000, and at least `claim_batch`. Beyond that as many are
    /// fired as attempts start or end, and at least 2,000 in 250 ms.
    pub max_fires_ahead: usize,
    /// The most runs without a live executor in memory; 10,000. Further ones are released to the store for 10 s.
    pub max_unroutable: usize,
    /// Runs are routed and marked this long before they are due; 25 ms, and up to half a second more if thousands are
    /// due together. A pause, edit or delete waits at most for this time, one publish and its confirmation.
    pub prepare_ahead_ms: u64,
    /// Runs routed and marked in one transaction; 4,000.
    pub dispatch_batch: usize,
    /// Triggers published at once; 256, so that the first of many runs start while the last are published. The embedded
    /// broker writes that many with one statement. When many triggers wait, a batch has up to eight times as many.
    pub publish_batch: usize,
    /// Confirmations written in one transaction; 2,000.
    pub confirm_batch: usize,
    /// Reports ingested in one transaction; 2,000.
    pub ingest_batch: usize,
    /// The node's lease; 15 s. After this time, another node takes over the claims of a dead node.
    pub lease_ms: u64,
    /// An executor that has been silent for this long gets no more triggers; 15 s.
    pub executor_dead_after_ms: u64,
    /// The work of an executor that has been silent for this long goes to others; 30 s. It must be longer than
    /// `executor_dead_after_ms`, and longer than the worker's `fence_after`, after which the executor stops what it
    /// runs.
    pub failover_after_ms: u64,
    /// An executor that has been silent for this long, and has nothing left, is forgotten with its queue; 1 h. By then
    /// a restart or a deployment has long ended, and operators have seen it in the list.
    pub forget_executors_after_ms: u64,
    /// Attempts queued this long ago are compared with what their executor holds; 30 s.
    pub reconcile_after_ms: u64,
    /// An attempt ends `lost` when its executor has not reported its end this long after its timeout and kill grace;
    /// 60 s.
    pub overdue_slack_ms: u64,
    /// An executor that does not know an attempt accepts its trigger for this long; 60 min. Executors remember
    /// attempts for longer, so that a copy of an old trigger is either known or too old.
    pub trigger_valid_ms: u64,
    /// Whether triggers of native handlers are signed, as those of all other handlers are; true. Leave them unsigned only
    /// if no other process can publish to the queues. The signature costs a third of the rate of fires where the queue
    /// is a file beside the key.
    pub sign_native: bool,
    /// Ended runs are kept for this long, unless their job or its group says otherwise; 7 days.
    pub retention_ms: u64,
    /// Entries of the audit log are kept for this long; 400 days, so that a yearly review sees all of its year.
    pub audit_retention_ms: u64,
    /// Dead letters are kept for this long; 90 days.
    pub dead_letter_retention_ms: u64,
    /// Alarms and their deliveries are kept for this long; 90 days.
    pub alarm_retention_ms: u64,
    /// Sends the messages of alarms. Without one, they wait in the store for a scheduler that has one.
    pub alarm_transport: Option<Arc<dyn AlarmTransport>>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            node_name: "scheduler".to_owned(),
            seed: 0,
            lookahead_ms: 1_500,
            poll_ms: 500,
            claim_batch: 2_000,
            max_claimed: 100_000,
            max_fires_ahead: 50_000,
            max_unroutable: 10_000,
            prepare_ahead_ms: 25,
            dispatch_batch: 4_000,
            publish_batch: 256,
            confirm_batch: 2_000,
            ingest_batch: 2_000,
            lease_ms: 15_000,
            executor_dead_after_ms: 15_000,
            failover_after_ms: 30_000,
            forget_executors_after_ms: 3_600_000,
            reconcile_after_ms: 30_000,
            overdue_slack_ms: 60_000,
            trigger_valid_ms: 3_600_000,
            sign_native: true,
            retention_ms: 7 * 24 * 3_600_000,
            audit_retention_ms: 400 * 24 * 3_600_000,
            dead_letter_retention_ms: 90 * 24 * 3_600_000,
            alarm_retention_ms: 90 * 24 * 3_600_000,
            alarm_transport: None,
        }
    }
}

impl EngineOptions {
    /// Sets `failover_after_ms` and shortens the times that depend on it. `lease_ms` and `executor_dead_after_ms` are
    /// at most half of it, `reconcile_after_ms` at most all of it. None of them exceeds its default.
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
    fn shorter_failover_times_shorten_the_others_and_longer_ones_do_not_extend_them() {
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
