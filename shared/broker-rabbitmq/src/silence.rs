//! Queues that confirm nothing while the server answers: a quorum queue without a leader does so, for as long as it has none. What is
//! published to one is held back here, so that it holds up nothing else, until the queue shows a sign of life.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use cueline_broker::QueueId;
use futures_util::FutureExt as _;
use lapin::PublisherConfirm;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::confirms::Confirming;

/// After so long, one more message is sent to a silent queue: it may have forgotten those before.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// See the module.
pub(crate) struct Silence {
    queues: Arc<Mutex<Queues>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

#[derive(Default)]
struct Queues {
    silent: HashMap<QueueId, Silent>,
    /// Silences so far; a number names one.
    count: u64,
}

struct Silent {
    number: u64,
    try_again: Instant,
    /// Ends the wait for its sign of life.
    _waiting: DropGuard,
}

/// What becomes of the messages of a batch.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// These are sent and waited for.
    pub(crate) going: Vec<usize>,
    /// These are sent, to see whether their queues answer again, and not waited for.
    pub(crate) probes: Vec<usize>,
}

impl Silence {
    pub(crate) fn new(tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self {
            queues: Arc::default(),
            tasks,
            stop,
        }
    }

    /// Which messages to send, given their queues in order; `None` for all.
    pub(crate) fn choose<'a>(
        &self,
        batch: impl Iterator<Item = &'a QueueId>,
        now: Instant,
    ) -> Option<Chosen> {
        let mut queues = lock(&self.queues);
        if queues.silent.is_empty() {
            return None;
        }
        let mut chosen = Chosen::default();
        for (place, queue) in batch.enumerate() {
            match queues.silent.get_mut(queue) {
                None => chosen.going.push(place),
                Some(silent) if silent.try_again <= now => {
                    silent.try_again = now + TRY_AGAIN_AFTER;
                    chosen.probes.push(place);
                }
                Some(_) => {}
            }
        }
        Some(chosen)
    }

    /// The queue has not confirmed these, sent over this channel, and is left aside until it does.
    pub(crate) fn fell(
        &self,
        queue: &QueueId,
        confirms: Vec<PublisherConfirm>,
        over: Arc<Confirming>,
    ) {
        let waiting = self.stop.child_token();
        let number = {
            let mut queues = lock(&self.queues);
            queues.count += 1;
            let number = queues.count;
            let before = queues.silent.insert(
                queue.clone(),
                Silent {
                    number,
                    try_again: Instant::now() + TRY_AGAIN_AFTER,
                    _waiting: waiting.clone().drop_guard(),
                },
            );
            if before.is_none() {
                tracing::warn!(%queue, "a queue on RabbitMQ confirms nothing; it is left aside until it does, see docs/rabbitmq.md");
            }
            number
        };
        let (queues, queue) = (Arc::clone(&self.queues), queue.clone());
        self.tasks.spawn(async move {
            let answered = waiting.run_until_cancelled(first(confirms)).await;
            // As long as its confirms are waited for.
            drop(over);
            let Some(answered) = answered else { return };
            let mut queues = lock(&queues);
            if queues
                .silent
                .get(&queue)
                .is_some_and(|s| s.number == number)
            {
                queues.silent.remove(&queue);
                if answered {
                    tracing::info!(%queue, "a queue on RabbitMQ answers again");
                }
            }
        });
    }
}

/// Waits for the first answer; whether it is one, and not the end of the channel, after which there is nothing to be heard over it.
async fn first(mut confirms: Vec<PublisherConfirm>) -> bool {
    poll_fn(|context| {
        for confirm in &mut confirms {
            if let Poll::Ready(answer) = confirm.poll_unpin(context) {
                return Poll::Ready(answer.is_ok());
            }
        }
        Poll::Pending
    })
    .await
}

fn lock(queues: &Mutex<Queues>) -> MutexGuard<'_, Queues> {
    queues.lock().unwrap_or_else(PoisonError::into_inner)
}
