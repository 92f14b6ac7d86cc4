//! Queues that confirm nothing while the server answers.
//!
//! A quorum queue behaves like this while it has no leader. The driver holds back its messages until it answers, so
//! that they delay no other queue. lapin groups confirms by channel and not by queue, so it cannot detect such a queue.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cueline_broker::QueueId;
use futures_util::future::select_all;
use lapin::PublisherConfirm;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::connection::OpenChannel;

type Queues = Mutex<HashMap<QueueId, Unresponsive>>;

/// The queues that are unresponsive now.
pub(super) struct UnresponsiveQueues {
    queues: Arc<Queues>,
    probe_every: Duration,
    tasks: TaskTracker,
    stop: CancellationToken,
}

struct Unresponsive {
    probe_at: Instant,
    /// Ends the wait for the queue's answer when this entry is replaced.
    _waiting: DropGuard,
}

/// The treatment of one message of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// Publish it and wait for its confirm.
    Send,
    /// Publish it and do not wait.
    Probe,
    /// Do not publish it.
    HoldBack,
}

impl UnresponsiveQueues {
    pub(super) fn new(probe_every: Duration, tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self {
            queues: Arc::default(),
            probe_every,
            tasks,
            stop,
        }
    }

    /// Plans the messages of a batch, given their queues in order.
    pub(super) fn plan<'a>(
        &self,
        batch: impl Iterator<Item = &'a QueueId>,
        now: Instant,
    ) -> Vec<Plan> {
        let mut queues = lock(&self.queues);
        batch
            .map(|queue| match queues.get_mut(queue) {
                None => Plan::Send,
                Some(entry) if entry.probe_at <= now => {
                    entry.probe_at = now + self.probe_every;
                    Plan::Probe
                }
                Some(_) => Plan::HoldBack,
            })
            .collect()
    }

    /// Marks a queue as unresponsive until one of `confirms`, which came over `channel`, is answered.
    pub(super) fn mark(
        &self,
        queue: &QueueId,
        confirms: Vec<PublisherConfirm>,
        channel: OpenChannel,
    ) {
        let waiting = self.stop.child_token();
        let entry = Unresponsive {
            probe_at: Instant::now() + self.probe_every,
            _waiting: waiting.clone().drop_guard(),
        };
        if lock(&self.queues).insert(queue.clone(), entry).is_none() {
            tracing::warn!(%queue, "queue confirms no messages; the driver holds them back until it answers, see docs/rabbitmq.md");
        }
        let (queues, queue) = (Arc::clone(&self.queues), queue.clone());
        self.tasks.spawn(async move {
            let first = waiting.run_until_cancelled(select_all(confirms)).await;
            // lapin closes a channel whose last clone is dropped.
            drop(channel);
            let Some((answer, ..)) = first else { return };
            let mut queues = lock(&queues);
            // A newer entry has its own wait.
            if !waiting.is_cancelled() && queues.remove(&queue).is_some() && answer.is_ok() {
                tracing::info!(%queue, "queue confirms messages again");
            }
        });
    }
}

fn lock(queues: &Queues) -> MutexGuard<'_, HashMap<QueueId, Unresponsive>> {
    queues.lock().unwrap_or_else(PoisonError::into_inner)
}
