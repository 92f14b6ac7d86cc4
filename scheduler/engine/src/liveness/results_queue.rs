//! The results queue at one moment, and what this node has taken out of it.
//!
//! Executors publish their results before they fall silent or lose their state directory. Failover and reconcile wait
//! until these are in the store. An empty queue is no proof alone: another node may have fetched results and not written
//! them yet, and some products do not count those.
//!
//! Results arrive in order, except for those that a node had fetched before it was killed. NATS delivers these again only
//! after its ack wait, behind newer ones. Its positions tell whether they are settled. A product without positions gives
//! back what a killed node held as soon as it notices the loss of the connection, ahead of newer results.

use cueline_broker::{BrokerStats, Coverage, QueueId, SettledTo};

/// A look at the results queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResultsQueue {
    /// Its messages, ready and unsettled, as far as they are counted.
    pub(crate) messages: u64,
    /// Whether no other node can hold messages that are not counted.
    pub(crate) counts_all: bool,
    /// The messages that this node has ingested since its start.
    pub(crate) ingested: u64,
    /// How far it is settled, if the product tells.
    pub(crate) settled: Option<SettledTo>,
}

impl ResultsQueue {
    /// Reads the counts. `None` if the queue did not answer. A missing queue has no messages.
    pub(crate) fn of(stats: &BrokerStats, ingested: u64) -> Option<Self> {
        let queue = QueueId::Results;
        if stats.is_unanswered(&queue) {
            return None;
        }
        let (messages, coverage, settled) = match stats.of(&queue) {
            Some(found) => (found.ready + found.unsettled, found.coverage, found.settled),
            None => (0, Coverage::All, None),
        };
        (coverage != Coverage::Unsure).then_some(Self {
            messages,
            counts_all: coverage == Coverage::All,
            ingested,
            settled,
        })
    }

    /// Whether all messages that were in the queue at the look `then` have been fetched, by this node or by others; with
    /// positions, whether they are settled.
    ///
    /// Under load the queue is never empty. Without positions, this node must then have ingested as many messages as the
    /// queue held.
    pub(crate) fn has_passed(self, then: Self) -> bool {
        if self.messages == 0 {
            return true;
        }
        match (self.settled, then.settled) {
            // A queue that was created anew has none of them.
            (Some(now), Some(then)) => {
                now.position >= then.newest || now.incarnation != then.incarnation
            }
            _ => self.ingested.saturating_sub(then.ingested) >= then.messages,
        }
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
                settled: None,
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

    fn queue(messages: u64, ingested: u64, settled: Option<(u64, u64)>) -> ResultsQueue {
        ResultsQueue {
            messages,
            counts_all: true,
            ingested,
            settled: settled.map(|(position, newest)| SettledTo {
                position,
                newest,
                incarnation: 1,
            }),
        }
    }

    #[test]
    fn without_positions_as_many_messages_as_there_were_have_to_be_ingested() {
        let then = queue(10, 100, None);
        assert!(!queue(8, 109, None).has_passed(then));
        assert!(queue(8, 110, None).has_passed(then));
        assert!(queue(0, 100, None).has_passed(then));
    }

    #[test]
    fn newer_messages_do_not_stand_for_those_that_a_killed_node_had_fetched() {
        // Messages 41 to 50 are in the queue, and a killed node had fetched 41.
        let then = queue(10, 100, Some((40, 50)));
        assert!(!queue(5, 500, Some((40, 450))).has_passed(then));
        assert!(queue(5, 500, Some((50, 450))).has_passed(then));
        assert!(queue(0, 100, Some((50, 50))).has_passed(then));
    }

    #[test]
    fn a_queue_that_was_created_anew_has_none_of_the_old_messages() {
        let then = queue(10, 100, Some((40, 50)));
        let mut now = queue(3, 100, Some((0, 3)));
        assert!(!now.has_passed(then), "it is the same queue");
        now.settled = now.settled.map(|settled| SettledTo {
            incarnation: 2,
            ..settled
        });
        assert!(now.has_passed(then));
    }

    #[test]
    fn positions_that_drop_prove_nothing() {
        // A replica that has become the leader may not know yet what its predecessor delivered.
        let then = queue(10, 100, Some((40, 50)));
        assert!(!queue(10, 100, Some((40, 40))).has_passed(then));
        assert!(!queue(10, 100, Some((30, 50))).has_passed(then));
    }
}
