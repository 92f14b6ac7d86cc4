//! The number of messages in some queues, counted once and only when it is needed.

use std::collections::HashSet;

use cueline_broker::{Broker, QueueId};

/// The queues of the executors that one turn of failover looks at. A product may list all queues to count one, so they
/// are counted together.
pub(crate) struct QueueCounts {
    broker: Broker,
    queues: Vec<QueueId>,
    /// The queues that had messages, or did not answer. `None` before the count.
    filled: Option<HashSet<QueueId>>,
}

impl QueueCounts {
    pub(crate) fn new(broker: Broker, queues: Vec<QueueId>) -> Self {
        Self {
            broker,
            queues,
            filled: None,
        }
    }

    /// Whether the queue may have had messages at the count. A missing queue has none.
    pub(crate) async fn may_have_messages(&mut self, queue: &QueueId) -> bool {
        if self.filled.is_none() {
            self.filled = Some(self.count().await);
        }
        self.filled
            .as_ref()
            .is_none_or(|filled| filled.contains(queue))
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
