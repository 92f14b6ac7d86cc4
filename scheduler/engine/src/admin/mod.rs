//! Requests of operators: manual triggers, queues and dead letters. The node that receives a request carries it out at
//! once.

mod empty_queue;
mod replay;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use cueline_broker::{Broker, Outgoing, QueueId};
use cueline_model::{Actor, ExecutorId, Namespace, OutcomeKind};
use cueline_protocol::{Trigger, decode};
use cueline_runtime::Activator;
use cueline_store::adapter::audit::{QueueAction, letters_replayed, queue_changed};
use cueline_store::admin::{
    AdminError, EmptiedQueue, QueueDepth, ReplayedDeadLetter, SchedulerAdmin, SinceStart,
};
use cueline_store::{
    Audit, DeadLetter, ErrorKind, LiveExecutors, OutstandingAttempt, SchedulerCounts, Store,
    StoreError, TriggerOutcome, TriggerRequest,
};

use crate::addresses::executor_queue;
use crate::claims::NodeClaims;
use crate::counters::Counters;
use crate::database_clock::DatabaseClock;
use crate::error::EngineError;
use crate::liveness::broker_reach::BrokerReach;
use crate::liveness::executor_attempts::ExecutorAttempts;
use crate::liveness::reconcile::Reconciler;
use crate::liveness::registry::Registry;
use crate::liveness::self_check::SelfCheck;
use crate::pipeline::manual_trigger::{ManualTrigger, TriggerError};
use crate::quotas::NamespaceQuotas;

use empty_queue::EmptyQueue;

/// The engine's side of [`SchedulerAdmin`].
pub(crate) struct Admin {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) audit: Arc<dyn Audit>,
    pub(crate) broker: Broker,
    pub(crate) claims: Arc<NodeClaims>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) quotas: Arc<NamespaceQuotas>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) self_check: Arc<SelfCheck>,
    pub(crate) broker_reach: Arc<BrokerReach>,
    pub(crate) trigger: ManualTrigger,
    pub(crate) attempts: ExecutorAttempts,
    pub(crate) reconciler: Reconciler,
    pub(crate) claim: Activator,
    pub(crate) cancellations: Activator,
}

#[async_trait]
impl SchedulerAdmin for Admin {
    fn wake_claim(&self) {
        self.claim.wake();
    }

    fn wake_cancellations(&self) {
        self.cancellations.wake();
    }

    fn since_start(&self) -> SinceStart {
        self.counters.since_start()
    }

    fn counts(&self) -> SchedulerCounts {
        let (ready, not_ready) = self.registry.live_counts();
        SchedulerCounts {
            held_claims: self.claims.held(),
            executors: LiveExecutors { ready, not_ready },
            clock_offset_ms: self.clock.offset_ms(),
            quota_refusals: self.quotas.refusals(),
            ..self.counters.scheduler_counts()
        }
    }

    fn executor_timeouts_paused(&self) -> Option<String> {
        self.self_check.problem(self.clock.now())
    }

    fn claims_paused(&self) -> Option<String> {
        self.broker_reach.problem(self.clock.now())
    }

    async fn trigger(&self, request: TriggerRequest) -> Result<TriggerOutcome, AdminError> {
        let trigger = self.trigger.clone();
        // A separate task finishes even if the caller is cancelled. Otherwise the claimed runs would be stranded.
        let task = tokio::spawn(async move { trigger.trigger(&request).await });
        let triggered = task.await.unwrap_or_else(|e| {
            self.claims.set_uncertain();
            let error = StoreError::new(ErrorKind::Transient, "failed to trigger a job");
            Err(error.caused_by(e).into())
        });
        triggered.map_err(|error| match error {
            TriggerError::Store(error) => AdminError::Store(error),
            TriggerError::Quota(refusal) => AdminError::Quota {
                reason: refusal.reason,
                retry_after_ms: refusal.retry_after_ms,
            },
        })
    }

    async fn queues(&self) -> Result<Vec<QueueDepth>, AdminError> {
        let executors = self.store.executors().await?;
        let mut queues = vec![QueueId::Results, QueueId::Requests, QueueId::Dead];
        for executor in executors {
            let ExecutorId { group, name } = executor.heartbeat.executor;
            queues.push(executor_queue(&group, &name));
        }
        let stats = self
            .broker
            .stats(&queues)
            .await
            .map_err(EngineError::from)?;
        let answered = stats.queues.into_iter();
        let answered = answered.map(|s| depth(s.queue, Some((s.ready, s.unsettled))));
        let unanswered = stats.unanswered.into_iter();
        let unanswered = unanswered.map(|queue| depth(queue, None));
        let mut depths: Vec<_> = answered.chain(unanswered).collect();
        depths.sort_by(|a, b| a.queue.cmp(&b.queue));
        Ok(depths)
    }

    async fn outstanding(
        &self,
        executor: &ExecutorId,
    ) -> Result<Vec<OutstandingAttempt>, AdminError> {
        Ok(self.attempts.outstanding(executor).await?)
    }

    async fn drain(&self, executor: &ExecutorId, by: &Actor) -> Result<EmptiedQueue, AdminError> {
        self.record_change(QueueAction::Drain, executor, by).await?;
        let reason = format!("its queue was drained by {by}");
        let emptied = self.empty(executor, OutcomeKind::Returned, &reason).await?;
        self.claim.wake();
        Ok(emptied)
    }

    async fn purge(&self, executor: &ExecutorId, by: &Actor) -> Result<EmptiedQueue, AdminError> {
        self.record_change(QueueAction::Purge, executor, by).await?;
        let reason = format!("its queue was purged by {by}");
        Ok(self
            .empty(executor, OutcomeKind::Cancelled, &reason)
            .await?)
    }

    async fn replay(&self, executor: &ExecutorId, by: &Actor) -> Result<u64, AdminError> {
        if !self.registry.is_alive(executor) {
            return Err(AdminError::Refused(format!(
                "executor {executor} sends no heartbeats to this scheduler; start it first, or drain its queue so that other executors get its triggers"
            )));
        }
        self.record_change(QueueAction::Replay, executor, by)
            .await?;
        let outstanding = self.attempts.outstanding(executor).await?;
        Ok(self.reconciler.republish_missing(outstanding).await? as u64)
    }

    async fn replay_dead_letters(
        &self,
        namespace: Option<&Namespace>,
        ids: &[i64],
        by: &Actor,
    ) -> Result<Vec<ReplayedDeadLetter>, AdminError> {
        let mut letters = self.store.dead_letters_by_id(ids).await?;
        letters.retain(|letter| namespace.is_none() || letter.namespace.as_ref() == namespace);
        // It decides nothing, so it needs no seed.
        let nonce = RandomState::new().hash_one(std::process::id());
        let mut replayed = Vec::with_capacity(letters.len());
        let (mut published, mut messages) = (Vec::new(), Vec::new());
        let mut audited = Vec::new();
        for letter in letters {
            let id = letter.id;
            let target = self.replay_target(&letter).await?;
            match target {
                Ok(queue) => {
                    published.push(id);
                    audited.push((id, letter.namespace));
                    messages.push(Outgoing {
                        id: replay::message_id(&queue, id, nonce),
                        queue,
                        topic: letter.topic,
                        payload: Bytes::from(letter.payload),
                    });
                }
                Err(refused) => replayed.push(ReplayedDeadLetter {
                    id,
                    refused: Some(refused),
                }),
            }
        }
        let entries = letters_replayed(by, audited.into_iter());
        self.audit.record(&entries).await?;
        let answers = self
            .broker
            .publish(&messages)
            .await
            .map_err(EngineError::from)?;
        let mut done = Vec::new();
        for (id, answer) in published.into_iter().zip(answers) {
            if answer.is_ok() {
                done.push(id);
            }
            let refused = answer.err().map(|refusal| refusal.to_string());
            replayed.push(ReplayedDeadLetter { id, refused });
        }
        self.store.delete_dead_letters(namespace, &done, by).await?;
        Ok(replayed)
    }
}

impl Admin {
    /// Writes to the audit log what is about to happen to a queue. Without the entry it must not happen (G19).
    async fn record_change(
        &self,
        action: QueueAction,
        executor: &ExecutorId,
        by: &Actor,
    ) -> Result<(), StoreError> {
        let entry = queue_changed(by, action, executor);
        self.audit.record(&[entry]).await
    }

    /// The queue that a dead letter may be published to, or why it must not be. An executor that does not know the
    /// attempt of a trigger would run it, although the run has ended or is at another attempt.
    async fn replay_target(
        &self,
        letter: &DeadLetter,
    ) -> Result<Result<QueueId, String>, StoreError> {
        let queue = match replay::queue_for(letter) {
            Ok(queue) => queue,
            Err(refused) => return Ok(Err(refused)),
        };
        let trigger = decode::<Trigger>(&letter.payload).ok();
        let Some(trigger) = trigger.filter(|t| t.store == self.attempts.store_id) else {
            return Ok(Ok(queue));
        };
        let (run, attempt) = (trigger.run, trigger.attempt);
        let is_over = match self.store.run(run).await {
            Ok(found) => found.run.attempt != attempt || found.run.state.is_terminal(),
            Err(e) if e.kind() == ErrorKind::NotFound => true,
            Err(e) => return Err(e),
        };
        Ok(if is_over {
            let job = &trigger.job.name;
            Err(format!(
                "attempt {attempt} of run {run} is over; trigger job {job} again"
            ))
        } else {
            Ok(queue)
        })
    }

    /// Takes the triggers out of the executor's queue and ends their attempts as `kind`, if they have not started.
    async fn empty(
        &self,
        executor: &ExecutorId,
        kind: OutcomeKind,
        reason: &str,
    ) -> Result<EmptiedQueue, EngineError> {
        let holdings = &self.reconciler.holdings;
        let emptied = EmptyQueue::new(&self.attempts, holdings, executor, kind, reason)
            .run()
            .await?;
        if emptied.left > 0 {
            tracing::warn!(
                group = %executor.group,
                executor = %executor.name,
                count = emptied.left,
                "left triggers in a queue, because their executor may have started them; check that it answers, or try again later"
            );
        }
        Ok(emptied)
    }
}

/// A queue with the numbers of its ready and unsettled messages. Without numbers, it did not answer.
fn depth(id: QueueId, counts: Option<(u64, u64)>) -> QueueDepth {
    let queue = id.to_string();
    let (group, executor) = match id {
        QueueId::Executor { group, executor } => (Some(group), Some(executor)),
        _ => (None, None),
    };
    QueueDepth {
        queue,
        group,
        executor,
        ready: counts.map(|(ready, _)| ready),
        unsettled: counts.map(|(_, unsettled)| unsettled),
    }
}
