//! The number of messages in some queues, counted once and only when it is needed.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cueline_broker::{Broker, BrokerError, QueueId};
use tokio::sync::OnceCell;

use super::results_queue::ResultsQueue;
use crate::counters::Counters;

/// The counts that the executors of one turn of failover share. A product may list all queues to count one, so they are
/// counted together.
pub(crate) struct QueueCounts {
    broker: Broker,
    counters: Arc<Counters>,
    queues: Vec<QueueId>,
    /// The queues that had messages, or did not answer. Empty before the count.
    filled: OnceCell<HashSet<QueueId>>,
    /// Empty before the count.
    results: OnceCell<Option<ResultsQueue>>,
}

impl QueueCounts {
    /// Counts nothing yet. `queues` are those of the turn's executors.
    pub(crate) fn new(broker: Broker, counters: Arc<Counters>, queues: Vec<QueueId>) -> Self {
        Self {
            broker,
            counters,
            queues,
            filled: OnceCell::new(),
            results: OnceCell::new(),
        }
    }

    /// Whether the queue of an executor may have had messages at the count. A missing queue has none.
    pub(crate) async fn may_have_messages(&self, queue: &QueueId) -> bool {
        let filled = self.filled.get_or_init(|| self.count()).await;
        filled.contains(queue)
    }

    /// The results queue at a moment of this turn. `None` if it did not answer.
    ///
    /// All executors of the turn had been silent for long before, so none of them has published a result since.
    pub(crate) async fn results(&self) -> Result<Option<ResultsQueue>, BrokerError> {
        let counted = self.results.get_or_try_init(|| self.count_results());
        counted.await.copied()
    }

    async fn count_results(&self) -> Result<Option<ResultsQueue>, BrokerError> {
        let stats = self.broker.stats(&[QueueId::Results]).await?;
        let ingested = self.counters.ingested_messages.load(Ordering::Relaxed);
        Ok(ResultsQueue::of(&stats, ingested))
    }

    async fn count(&self) -> HashSet<QueueId> {
        match self.broker.stats(&self.queues).await {
            Ok(stats) => {
                let counted = stats.queues.into_iter();
                // A queue that counts none because it does not answer is counted again at a later turn.
                let filled = counted.filter(|s| s.ready + s.unsettled > 0);
                filled.map(|s| s.queue).chain(stats.unanswered).collect()
            }
            Err(e) => {
                tracing::debug!(error = %e, "failed to count the messages of silent executors; checking each queue");
                self.queues.iter().cloned().collect()
            }
        }
    }
}
