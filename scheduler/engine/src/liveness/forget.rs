//! Forgets executors that have been silent for long, and deletes their queues.
//!
//! Names of executors change with deployments. Without this, the queues of all earlier ones stay for ever, and failover
//! looks at them at each turn. An executor that returns is known again with its first heartbeat, and gets its queue
//! from the [`QueueProvisioner`], like a new one.

use std::sync::Arc;
use std::time::Duration;

use cueline_broker::Broker;
use cueline_model::{ExecutorId, Timestamp};
use cueline_runtime::{Duty, Next};
use cueline_store::{Store, StoreError};

use super::queue_provisioner::QueueProvisioner;
use super::registry::Registry;
use super::self_check::SelfCheck;
use crate::addresses::{executor_queue, start_log};
use crate::database_clock::DatabaseClock;

pub(crate) struct ForgetExecutors {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) broker: Broker,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) self_check: Arc<SelfCheck>,
    pub(crate) queues: Arc<QueueProvisioner>,
    pub(crate) forget_after_ms: u64,
}

const EVERY: Duration = Duration::from_mins(1);
/// The most executors in one turn.
const BATCH: usize = 100;
/// The turn deletes no more queues after this many failures, because the broker may be away.
const MAX_FAILURES: usize = 3;

impl Duty for ForgetExecutors {
    type Error = StoreError;

    fn name(&self) -> &'static str {
        "forget executors"
    }

    async fn activate(&mut self) -> Result<Next, StoreError> {
        self.forget().await?;
        Ok(Next::After(EVERY))
    }
}

impl ForgetExecutors {
    /// Forgets executors whose queue is empty and that have no attempts. Returns their number.
    pub(crate) async fn forget(&self) -> Result<usize, StoreError> {
        let silent = self.long_silent().await?;
        let deleted = self.delete_queues(silent).await;
        // The queue comes first: nothing would look for the queue of a forgotten executor.
        let forgotten = if deleted.is_empty() {
            Vec::new()
        } else {
            self.store.forget_executors(&deleted).await?
        };
        if !forgotten.is_empty() {
            tracing::info!(
                executors = forgotten.len(),
                "forgot executors that have been silent for long, and deleted their queues"
            );
        }
        self.delete_logs(&forgotten).await;
        if forgotten.len() < deleted.len() {
            self.declare_returned(&deleted).await?;
        }
        Ok(forgotten.len())
    }

    /// The executors that have failed and were silent for long before that, each with its last heartbeat.
    async fn long_silent(&self) -> Result<Vec<(ExecutorId, Timestamp)>, StoreError> {
        let executors = self.store.executors().await?;
        let now = self.clock.now();
        let silent_since = now.minus_ms(self.forget_after_ms);
        Ok(executors
            .into_iter()
            .map(|e| (e.heartbeat.executor, e.last_heartbeat_at))
            .filter(|(executor, at)| {
                *at < silent_since
                    && self.self_check.has_failed(*at, now)
                    && !self.registry.is_alive(executor)
            })
            .take(BATCH)
            .collect())
    }

    /// Deletes the empty queues of these executors. Returns those whose queue is gone. A failure is only logged: the
    /// next turn tries again.
    async fn delete_queues(
        &self,
        silent: Vec<(ExecutorId, Timestamp)>,
    ) -> Vec<(ExecutorId, Timestamp)> {
        let mut deleted = Vec::with_capacity(silent.len());
        let mut failures = 0;
        for (executor, at) in silent {
            // Earlier calls may have been slow.
            if self.registry.is_alive(&executor) {
                continue;
            }
            let queue = executor_queue(&executor.group, &executor.name);
            match self.broker.delete(&queue, true).await {
                Ok(true) => deleted.push((executor, at)),
                // Failover empties it first.
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%queue, %error, "failed to delete the queue of an executor that has been silent for long; trying again. Check the rights of the scheduler's user");
                    failures += 1;
                    if failures >= MAX_FAILURES {
                        break;
                    }
                }
            }
        }
        deleted
    }

    /// Deletes start logs. One that stays after a failure costs disk space only. One that is deleted although its
    /// executor returns is declared again, and says nothing about older attempts.
    async fn delete_logs(&self, forgotten: &[ExecutorId]) {
        for executor in forgotten {
            if self.registry.is_alive(executor) {
                continue;
            }
            let log = start_log(executor);
            if let Err(error) = self.broker.delete_log(&log).await {
                tracing::warn!(%log, %error, "failed to delete the start log of a forgotten executor");
                return;
            }
        }
    }

    /// Declares the queues of executors that have returned during the turn. A worker that has no right to declare its
    /// queue would wait for it otherwise.
    async fn declare_returned(
        &self,
        deleted: &[(ExecutorId, Timestamp)],
    ) -> Result<(), StoreError> {
        let executors = self.store.executors().await?;
        let now = self.clock.now();
        for known in executors {
            let id = known.heartbeat.executor;
            let has_returned = deleted
                .iter()
                .any(|(executor, at)| *executor == id && known.last_heartbeat_at > *at);
            if has_returned && !known.heartbeat.gone {
                self.queues.request(id, true, now);
            }
        }
        Ok(())
    }
}
