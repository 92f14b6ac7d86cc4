//! Reconcile: compares the attempts that executors should hold with those that they report to hold.
//!
//! It repairs the loss of a journal with its disk, of a queue with its broker, and of an ack in a crash. A missing
//! attempt is published again, as the same attempt, to the same executor. The executor ignores a repeated trigger.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Broker, QueueId};
use cueline_model::{AttemptId, ExecutorId, RunId, StoreId};
use cueline_protocol::{Control, HoldingsReply, VERSION, decode, encode};
use cueline_runtime::{Duty, Next};
use cueline_store::{OutstandingAttempt, Store};

use super::registry::Registry;
use crate::addresses::{control_channel, executor_queue};
use crate::counters::{Counters, add};
use crate::error::EngineError;
use crate::pipeline::node_claims::NodeClaims;

/// Compares attempts with the journals of their executors.
#[derive(Clone)]
pub(crate) struct Reconciler {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) broker: Broker,
    pub(crate) claims: Arc<NodeClaims>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) store_id: StoreId,
}

/// Compares all attempts in turn, a batch at a time.
pub(crate) struct Reconcile {
    pub(crate) reconciler: Reconciler,
    pub(crate) older_than_ms: u64,
    /// The next turn continues after this run.
    pub(crate) after: Option<RunId>,
}

/// The most attempts in one turn and in one question. An executor answers for more than this.
pub(crate) const BATCH: usize = 1_000;
const REPLY_WITHIN: Duration = Duration::from_secs(2);

impl Duty for Reconcile {
    type Error = EngineError;

    fn name(&self) -> &'static str {
        "reconcile"
    }

    async fn activate(&mut self) -> Result<Next, EngineError> {
        let every = Duration::from_millis((self.older_than_ms / 3).max(100));
        let outstanding = self
            .reconciler
            .store
            .outstanding_attempts(self.older_than_ms, self.after, BATCH)
            .await?;
        let may_be_more = outstanding.len() >= BATCH;
        let last = outstanding.last().map(|o| o.attempt.run);
        self.after = last.filter(|_| may_be_more);
        self.reconciler.republish_missing(outstanding).await?;
        Ok(if may_be_more {
            Next::Now
        } else {
            Next::After(every)
        })
    }
}

impl Reconcile {
    /// Compares the first batch of attempts queued more than `older_than_ms` ago. Returns the number published again.
    pub(crate) async fn compare_older_than(
        &self,
        older_than_ms: u64,
    ) -> Result<usize, EngineError> {
        let store = &self.reconciler.store;
        let outstanding = store
            .outstanding_attempts(older_than_ms, None, BATCH)
            .await?;
        self.reconciler.republish_missing(outstanding).await
    }
}

impl Reconciler {
    /// Publishes again the attempts that their executor does not hold. Returns their number.
    pub(crate) async fn republish_missing(
        &self,
        outstanding: Vec<OutstandingAttempt>,
    ) -> Result<usize, EngineError> {
        let Some(node) = self.claims.node() else {
            return Ok(0);
        };
        if outstanding.is_empty() {
            return Ok(0);
        }
        // Ask all executors before publishing: an attempt in a queue is not in a journal yet.
        let missing = self.missing(outstanding).await?;
        let reason = "its executor did not hold it; published again";
        let mut count = 0;
        for batch in missing.chunks(BATCH) {
            let taken = self.store.reclaim_attempts(node, batch, reason).await;
            let runs = self.claims.note_uncertain_result(taken)?;
            add(&self.counters.reconciled, runs.len());
            count += runs.len();
            self.claims.schedule(runs);
        }
        if count > 0 {
            tracing::warn!(
                count,
                "triggers were lost on the way; publishing them again. Check for lost disks and queues"
            );
        }
        Ok(count)
    }

    /// The attempts that are neither in their executor's queue nor in its journal.
    async fn missing(
        &self,
        outstanding: Vec<OutstandingAttempt>,
    ) -> Result<Vec<AttemptId>, EngineError> {
        let mut by_executor: BTreeMap<ExecutorId, Vec<AttemptId>> = BTreeMap::new();
        for o in outstanding {
            by_executor.entry(o.executor).or_default().push(o.attempt);
        }
        let with_triggers = self.queues_with_triggers(by_executor.keys()).await?;
        let mut missing = Vec::new();
        for (executor, attempts) in by_executor {
            let queue = executor_queue(&executor.group, &executor.name);
            if with_triggers.contains(&queue) || !self.registry.is_alive(&executor) {
                continue;
            }
            for batch in attempts.chunks(BATCH) {
                // If the executor does not answer, do not ask about its other attempts.
                let Some(not_held) = self.not_held(&executor, batch).await? else {
                    break;
                };
                missing.extend(not_held);
            }
        }
        Ok(missing)
    }

    async fn queues_with_triggers(
        &self,
        executors: impl Iterator<Item = &ExecutorId>,
    ) -> Result<BTreeSet<QueueId>, EngineError> {
        let queues: Vec<QueueId> = executors
            .map(|executor| executor_queue(&executor.group, &executor.name))
            .collect();
        let stats = self.broker.stats(&queues).await?;
        Ok(stats
            .into_iter()
            .filter(|s| s.ready + s.unsettled > 0)
            .map(|s| s.queue)
            .collect())
    }

    /// The attempts that the executor does not report to hold; `None` when it does not answer.
    async fn not_held(
        &self,
        executor: &ExecutorId,
        attempts: &[AttemptId],
    ) -> Result<Option<Vec<AttemptId>>, EngineError> {
        let question = Control::Holdings {
            v: VERSION,
            store: self.store_id,
            attempts: attempts.to_vec(),
        };
        let reply = self
            .broker
            .ask(
                &control_channel(executor),
                Bytes::from(encode(&question)),
                REPLY_WITHIN,
            )
            .await?;
        let Some(reply) = reply else {
            return Ok(None);
        };
        let held: HashSet<AttemptId> = match decode::<HoldingsReply>(&reply) {
            Ok(reply) => reply.held.into_iter().collect(),
            Err(e) => {
                tracing::warn!(
                    group = %executor.group,
                    executor = %executor.name,
                    error = %e,
                    "ignored a holdings reply that cannot be read; check the version of the worker"
                );
                return Ok(None);
            }
        };
        let not_held = attempts.iter().filter(|attempt| !held.contains(attempt));
        Ok(Some(not_held.copied().collect()))
    }
}
