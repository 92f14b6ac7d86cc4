//! Takes the triggers out of an executor's queue for an operator, while the executor may be at work.
//!
//! A trigger in the queue does not prove that its attempt has not started. A publish without an answer is repeated, so the
//! executor may be starting the attempt from another copy. It is asked whether it holds the attempt, after the trigger was
//! fetched. If another copy may be on its way to it, the queue must hold nothing else as well. What stays unknown goes
//! back into the queue.
//!
//! An executor that is not alive is not asked. Its start log decides, and failover decides about triggers that may have
//! another copy.
//!
//! One case remains. A connection broke, and the broker port published a trigger twice within a second. Then the executor
//! may receive the other copy in the moment of the question, and start the attempt as well.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use cueline_broker::{BrokerError, Coverage, Delivery, QueueId, Receipt, Settlement};
use cueline_model::{AttemptId, ExecutorId, OutcomeKind, RunState};
use cueline_store::admin::EmptiedQueue;
use cueline_store::{NewDeadLetter, OutstandingAttempt};

use crate::addresses::executor_queue;
use crate::error::EngineError;
use crate::liveness::executor_attempts::{
    BATCH, ExecutorAttempts, MAX_BATCHES, was_confirmed_at_once,
};
use crate::liveness::holdings::Holdings;
use crate::scheduler_report::attempt_ended;

/// Triggers that may have another copy are kept until the queue is empty, up to this number. Others go back.
const MAX_PERHAPS_COPIED: usize = BATCH;
/// A trigger that goes back is delivered again after this time. By then this drain has usually ended.
const BACK_AFTER: Duration = Duration::from_secs(5);

/// Ends the attempts in one executor's queue.
pub(super) struct EmptyQueue<'a> {
    attempts: &'a ExecutorAttempts,
    holdings: &'a Holdings,
    executor: &'a ExecutorId,
    queue: QueueId,
    kind: OutcomeKind,
    reason: &'a str,
    listed: HashMap<AttemptId, OutstandingAttempt>,
    /// Fetched triggers that may have another copy.
    perhaps_copied: Vec<Fetched>,
    ended: HashSet<AttemptId>,
    left: HashSet<AttemptId>,
}

/// A fetched trigger whose attempt is `queued`.
struct Fetched {
    receipt: Receipt,
    attempt: OutstandingAttempt,
}

impl<'a> EmptyQueue<'a> {
    /// Attempts end as `kind`.
    pub(super) fn new(
        attempts: &'a ExecutorAttempts,
        holdings: &'a Holdings,
        executor: &'a ExecutorId,
        kind: OutcomeKind,
        reason: &'a str,
    ) -> Self {
        Self {
            attempts,
            holdings,
            executor,
            queue: executor_queue(&executor.group, &executor.name),
            kind,
            reason,
            listed: HashMap::new(),
            perhaps_copied: Vec::new(),
            ended: HashSet::new(),
            left: HashSet::new(),
        }
    }

    pub(super) async fn run(mut self) -> Result<EmptiedQueue, EngineError> {
        let listed = self.attempts.outstanding(self.executor).await?;
        self.listed = listed.into_iter().map(|o| (o.attempt, o)).collect();
        let emptied = self.end_batches().await;
        // Also after an error, so that nothing stays unsettled.
        let rest = self.end_perhaps_copied().await;
        self.attempts.stop_fetching(&self.queue).await;
        emptied?;
        rest?;
        Ok(EmptiedQueue {
            count: self.ended.len() as u64,
            left: self.left.len() as u64,
        })
    }

    async fn end_batches(&mut self) -> Result<(), EngineError> {
        for _ in 0..MAX_BATCHES {
            let batch = self.attempts.fetch(&self.queue).await?;
            if batch.is_empty() || !self.end_batch(&batch).await? {
                break;
            }
        }
        Ok(())
    }

    /// Returns false if the executor does not answer or its start log cannot be read.
    async fn end_batch(&mut self, batch: &[Delivery]) -> Result<bool, EngineError> {
        let mut only_copies = Vec::new();
        let mut letters = Vec::new();
        let settlements: Vec<_> = batch
            .iter()
            .filter_map(|delivery| {
                let settlement = self.sort(delivery, &mut only_copies, &mut letters)?;
                Some((delivery.receipt, settlement))
            })
            .collect();
        if let Err(e) = self.settle(&settlements, &letters).await {
            self.put_back(&only_copies).await?;
            return Err(e);
        }
        self.decide(&only_copies).await
    }

    /// Stores dead letters before their messages are acked.
    async fn settle(
        &self,
        settlements: &[(Receipt, Settlement)],
        letters: &[NewDeadLetter],
    ) -> Result<(), EngineError> {
        self.attempts.refused.keep(letters).await?;
        let broker = &self.attempts.broker;
        Ok(broker.settle(&self.queue, settlements).await?)
    }

    /// How a trigger is settled at once. `None` if that is decided later.
    fn sort(
        &mut self,
        delivery: &Delivery,
        only_copies: &mut Vec<Fetched>,
        letters: &mut Vec<NewDeadLetter>,
    ) -> Option<Settlement> {
        let attempt = match self.attempts.read(delivery) {
            Ok(trigger) => trigger.attempt_id(),
            Err(refused) => {
                letters.push(self.attempts.letter(&self.queue, delivery, refused));
                return Some(Settlement::Ack);
            }
        };
        let Some(listed) = self.listed.get(&attempt) else {
            // Without a confirmation in the store, the trigger may be published again at any time. The executor
            // recognises the trigger of an attempt that is over.
            self.left.insert(attempt);
            return Some(Settlement::Retry(BACK_AFTER));
        };
        if self.ended.contains(&attempt) || listed.state == RunState::Running {
            return Some(Settlement::Ack);
        }
        let fetched = Fetched {
            receipt: delivery.receipt,
            attempt: listed.clone(),
        };
        if !delivery.redelivered && was_confirmed_at_once(listed) {
            only_copies.push(fetched);
        } else if self.perhaps_copied.len() < MAX_PERHAPS_COPIED {
            self.perhaps_copied.push(fetched);
        } else {
            self.left.insert(attempt);
            return Some(Settlement::Retry(BACK_AFTER));
        }
        None
    }

    /// The queue may hold the other copies, or they may be on their way into the executor's journal.
    async fn end_perhaps_copied(&mut self) -> Result<(), EngineError> {
        let triggers = std::mem::take(&mut self.perhaps_copied);
        if triggers.is_empty() {
            return Ok(());
        }
        let is_alive = self.holdings.registry.is_alive(self.executor);
        if is_alive && self.holds_only(triggers.len()).await {
            self.decide(&triggers).await.map(drop)
        } else {
            Ok(self.put_back(&triggers).await?)
        }
    }

    /// Whether the queue is known to hold only the triggers that were fetched here and are not settled.
    async fn holds_only(&self, unsettled: usize) -> bool {
        let queue = &self.queue;
        match self
            .attempts
            .broker
            .stats(std::slice::from_ref(queue))
            .await
        {
            Ok(stats) => stats.of(queue).is_some_and(|counts| {
                counts.coverage == Coverage::All
                    && (counts.ready, counts.unsettled) == (0, unsettled as u64)
            }),
            Err(error) => {
                tracing::debug!(%queue, %error, "failed to count the messages of a drained queue");
                false
            }
        }
    }

    /// Ends the attempts that the executor neither holds nor has started. The others stay with it. Returns false, and puts
    /// all triggers back, if that is not known.
    async fn decide(&mut self, triggers: &[Fetched]) -> Result<bool, EngineError> {
        if triggers.is_empty() {
            return Ok(true);
        }
        let not_started = match self.not_started(triggers).await {
            Ok(Some(not_started)) => not_started,
            Ok(None) => {
                self.put_back(triggers).await?;
                return Ok(false);
            }
            Err(e) => {
                self.put_back(triggers).await?;
                return Err(e);
            }
        };
        let now = self.attempts.clock.now();
        let reports: Vec<_> = not_started
            .iter()
            .map(|attempt| attempt_ended(*attempt, self.kind, now, self.reason))
            .collect();
        if let Err(e) = self.attempts.ingest(&reports).await {
            self.put_back(triggers).await?;
            return Err(e.into());
        }
        self.ended.extend(not_started);
        let acks: Vec<_> = triggers
            .iter()
            .map(|t| (t.receipt, Settlement::Ack))
            .collect();
        self.attempts.broker.settle(&self.queue, &acks).await?;
        Ok(true)
    }

    /// The attempts that have certainly not started, each once. `None` if that is not known.
    async fn not_started(
        &self,
        triggers: &[Fetched],
    ) -> Result<Option<HashSet<AttemptId>>, EngineError> {
        let queued = triggers.iter().map(|t| t.attempt.clone()).collect();
        let (holdings, executor) = (self.holdings, self.executor);
        let missing = if holdings.registry.is_alive(executor) {
            holdings.missing_in_journal(executor, queued).await?
        } else {
            holdings.missing_in_start_log(executor, queued).await
        };
        Ok(missing.map(|missing| missing.not_started.into_iter().collect()))
    }

    async fn put_back(&mut self, triggers: &[Fetched]) -> Result<(), BrokerError> {
        let back: Vec<_> = triggers
            .iter()
            .map(|t| (t.receipt, Settlement::Retry(BACK_AFTER)))
            .collect();
        self.left.extend(triggers.iter().map(|t| t.attempt.attempt));
        self.attempts.broker.settle(&self.queue, &back).await
    }
}
