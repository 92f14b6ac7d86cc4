//! Reconcile: what an executor should hold, against what it says it holds.
//!
//! A journal lost with its disk, a queue lost with its broker, an ack lost in a crash all heal here, without a person: what is missing is
//! published again, as the same attempt, to the same executor, which drops what it knows.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Channel, QueueId};
use cueline_model::{AttemptId, ExecutorName, GroupName, RunId};
use cueline_protocol::{Control, HoldingsReply, VERSION, decode, encode};
use cueline_runtime::{Duty, Next};
use cueline_store::OutstandingAttempt;

use crate::counts::add;
use crate::error::StageError;
use crate::shared::Shared;

/// Compares the store with what executors hold.
pub(crate) struct Reconcile {
    shared: Arc<Shared>,
    after: Option<RunId>,
}

/// At most so many attempts are compared in one turn, the next goes on from there; and an executor is asked about at most so many at once, which is
/// fewer than it answers for.
const BATCH: usize = 1_000;
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

impl Reconcile {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            after: None,
        }
    }
}

impl Duty for Reconcile {
    type Error = StageError;

    fn name(&self) -> &'static str {
        "reconcile"
    }

    async fn activate(&mut self) -> Result<Next, StageError> {
        let older_than = self.shared.options.reconcile_after_ms;
        let every = Duration::from_millis((older_than / 3).max(100));
        let outstanding = self
            .shared
            .store
            .outstanding_attempts(older_than, self.after, BATCH)
            .await?;
        self.after = outstanding.last().map(|o| o.attempt.run);
        let more = outstanding.len() >= BATCH;
        if !more {
            self.after = None;
        }
        compare(&self.shared, outstanding).await?;
        Ok(if more { Next::Now } else { Next::After(every) })
    }
}

type Owner = (GroupName, ExecutorName);

/// Publishes again what no executor holds; how many.
pub(crate) async fn compare(
    shared: &Shared,
    outstanding: Vec<OutstandingAttempt>,
) -> Result<usize, StageError> {
    let Some(node) = shared.node() else {
        return Ok(0);
    };
    if outstanding.is_empty() {
        return Ok(0);
    }
    let mut by_owner: BTreeMap<Owner, Vec<AttemptId>> = BTreeMap::new();
    for o in outstanding {
        by_owner
            .entry((o.executor.group, o.executor.name))
            .or_default()
            .push(o.attempt);
    }
    let busy = queues_with_triggers(shared, by_owner.keys()).await?;
    let mut missing = Vec::new();
    for (owner, asked) in by_owner {
        // What is still in the queue is not in the journal yet; nothing can be said about an executor that is not there.
        if !busy.contains(&owner) && shared.registry.is_alive(&owner.0, &owner.1) {
            for part in asked.chunks(BATCH) {
                // Who has not answered once is not asked about the rest.
                let Some(part) = not_held(shared, &owner, part).await? else {
                    break;
                };
                missing.extend(part);
            }
        }
    }
    let reason = "its executor did not hold it; published again";
    let mut count = 0;
    // Only when all have been asked about: what goes out again is in a queue, and nothing can be said about what is there.
    for part in missing.chunks(BATCH) {
        let taken = shared.store.reclaim_attempts(node, part, reason).await;
        let runs = shared.claimed(taken)?;
        add(&shared.counters.reconciled, runs.len());
        count += runs.len();
        shared.schedule(runs);
    }
    if count > 0 {
        tracing::warn!(
            count,
            "triggers were lost on the way; publishing them again"
        );
    }
    Ok(count)
}

async fn queues_with_triggers(
    shared: &Shared,
    owners: impl Iterator<Item = &Owner>,
) -> Result<BTreeSet<Owner>, StageError> {
    let queues: Vec<QueueId> = owners
        .map(|(group, executor)| QueueId::Executor {
            group: group.to_string(),
            executor: executor.to_string(),
        })
        .collect();
    let stats = shared.broker.stats(&queues).await?;
    Ok(stats
        .into_iter()
        .filter(|s| s.ready + s.unsettled > 0)
        .filter_map(|s| match s.queue {
            QueueId::Executor { group, executor } => {
                Some((group.parse().ok()?, executor.parse().ok()?))
            }
            _ => None,
        })
        .collect())
}

/// What the executor says that it does not hold; `None` when it says nothing.
async fn not_held(
    shared: &Shared,
    (group, executor): &Owner,
    asked: &[AttemptId],
) -> Result<Option<Vec<AttemptId>>, StageError> {
    let channel = Channel::Control {
        group: group.to_string(),
        executor: executor.to_string(),
    };
    let question = Control::Holdings {
        v: VERSION,
        store: shared.store_id(),
        attempts: asked.to_vec(),
    };
    let answer = shared
        .broker
        .ask(&channel, Bytes::from(encode(&question)), ANSWER_WITHIN)
        .await?;
    let Some(answer) = answer else {
        return Ok(None);
    };
    let held: HashSet<AttemptId> = match decode::<HoldingsReply>(&answer) {
        Ok(reply) => reply.held.into_iter().collect(),
        Err(e) => {
            tracing::warn!(%group, %executor, error = %e, "an executor's answer could not be read");
            return Ok(None);
        }
    };
    let missing = asked.iter().filter(|h| !held.contains(*h));
    Ok(Some(missing.copied().collect()))
}
