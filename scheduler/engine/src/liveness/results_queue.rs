//! The results queue at one moment, and what this node has taken out of it.
//!
//! Executors publish their results before they fall silent or lose their state directory. Failover and reconcile wait
//! until these are in the store. Results arrive in order. An empty queue is no proof alone: another node may have fetched
//! results and not written them yet, and some products do not count those.

use cueline_broker::{BrokerStats, Coverage, QueueId};

/// A look at the results queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResultsQueue {
    /// Its messages, ready and unsettled, as far as they are counted.
    pub(crate) messages: u64,
    /// Whether no other node can hold messages that are not counted.
    pub(crate) counts_all: bool,
    /// The messages that this node has ingested since its start.
    pub(crate) ingested: u64,
}

impl ResultsQueue {
    /// Reads the counts. `None` if the queue did not answer. A missing queue has no messages.
    pub(crate) fn of(stats: &BrokerStats, ingested: u64) -> Option<Self> {
        let queue = QueueId::Results;
        if stats.is_unanswered(&queue) {
            return None;
        }
        let (messages, coverage) = match stats.of(&queue) {
            Some(found) => (found.ready + found.unsettled, found.coverage),
            None => (0, Coverage::All),
        };
        (coverage != Coverage::Unsure).then_some(Self {
            messages,
            counts_all: coverage == Coverage::All,
            ingested,
        })
    }

    /// Whether all messages that were counted at the look `then` have been fetched, by this node or by others. Under load
    /// the queue is never empty. Then this node must have ingested as many messages as the queue held.
    pub(crate) fn has_passed(self, then: Self) -> bool {
        self.messages == 0 || self.ingested.saturating_sub(then.ingested) >= then.messages
    }
}

#[cfg(test)]
mod tests {
    use cueline_broker::QueueStats;

    use super::*;

    fn stats(ready: u64, unsettled: u64, coverage: Coverage) -> BrokerStats {
        BrokerStats {
            queues: vec![QueueStats {
                queue: QueueId::Results,
                ready,
                unsettled,
                coverage,
            }],
            unanswered: Vec::new(),
        }
    }

    #[test]
    fn counts_that_may_be_no_answer_are_none() {
        let counted = |stats: &BrokerStats| {
            let queue = ResultsQueue::of(stats, 0);
            queue.map(|queue| (queue.messages, queue.counts_all))
        };
        assert_eq!(counted(&stats(2, 1, Coverage::All)), Some((3, true)));
        let own = stats(0, 0, Coverage::OwnDeliveries);
        assert_eq!(counted(&own), Some((0, false)));
        assert_eq!(counted(&stats(0, 0, Coverage::Unsure)), None);
        let unanswered = BrokerStats {
            queues: Vec::new(),
            unanswered: vec![QueueId::Results],
        };
        assert_eq!(counted(&unanswered), None);
        assert_eq!(counted(&BrokerStats::default()), Some((0, true)));
    }
}
