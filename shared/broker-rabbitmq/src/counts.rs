//! The server's counts of a queue, and what they leave out.

use cueline_broker::{BrokerError, Coverage};
use lapin::options::QueueDeclareOptions;
use lapin::types::{FieldTable, ShortString};

use crate::connection::OpenChannel;
use crate::error::NOT_FOUND;

/// The server's counts of one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Messages that no consumer holds.
    pub(crate) ready: u64,
    /// Consumers, with those that have ended and still hold messages.
    pub(crate) consumers: u64,
}

impl Counts {
    /// The server also returns these counts when the queue's leader does not answer within a quarter of a second.
    pub(crate) const NONE: Self = Self {
        ready: 0,
        consumers: 0,
    };

    /// What these counts cover, together with the deliveries of this driver, which has `own` of the consumers.
    pub(crate) fn coverage(self, own: u64) -> Coverage {
        if self == Self::NONE {
            Coverage::Unsure
        } else if self.consumers > own {
            Coverage::OwnDeliveries
        } else {
            Coverage::All
        }
    }
}

/// Counts a queue. `None` if it does not exist; the server has then closed the channel.
pub(crate) async fn count(
    channel: &OpenChannel,
    name: ShortString,
) -> Result<Option<Counts>, BrokerError> {
    let passive = QueueDeclareOptions::default().passive();
    let declare = channel
        .amqp
        .queue_declare(name, passive, FieldTable::default());
    match channel.answer("count a queue", declare).await {
        Ok(queue) => Ok(Some(Counts {
            ready: queue.message_count().into(),
            consumers: queue.consumer_count().into(),
        })),
        Err(e) if e.code == Some(NOT_FOUND) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumers_of_others_may_hold_messages_that_are_not_counted() {
        let coverage = |ready, consumers, own| Counts { ready, consumers }.coverage(own);
        assert_eq!(coverage(0, 1, 1), Coverage::All);
        assert_eq!(coverage(7, 0, 0), Coverage::All);
        assert_eq!(coverage(0, 1, 0), Coverage::OwnDeliveries);
        assert_eq!(coverage(7, 2, 1), Coverage::OwnDeliveries);
        assert_eq!(coverage(0, 0, 0), Coverage::Unsure);
        assert_eq!(coverage(0, 0, 1), Coverage::Unsure);
    }
}
