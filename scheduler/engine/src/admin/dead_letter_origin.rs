//! Finds the queue that a dead letter came from.

use cueline_broker::QueueId;
use cueline_protocol::{Trigger, decode};
use cueline_store::DeadLetter;

/// The queue that a dead letter came from. Names of groups and executors may contain dots, so the trigger in the letter
/// decides where the name is split. `None` without a readable trigger if the name is ambiguous.
pub(super) fn queue_of(letter: &DeadLetter) -> Option<QueueId> {
    let name = letter.queue.as_str();
    for queue in [QueueId::Results, QueueId::Requests] {
        if queue.to_string() == name {
            return Some(queue);
        }
    }
    let rest = name.strip_prefix("x.")?;
    let executor = match decode::<Trigger>(&letter.payload) {
        Ok(trigger) => trigger.executor.to_string(),
        // Without a readable trigger, only a name with one dot can be split.
        Err(_) => rest
            .split_once('.')
            .filter(|(_, e)| !e.contains('.'))?
            .1
            .to_owned(),
    };
    let group = rest.strip_suffix(&format!(".{executor}")).or_else(|| {
        // The trigger names another executor than the queue.
        rest.split_once('.')
            .filter(|(_, e)| !e.contains('.'))
            .map(|(g, _)| g)
    })?;
    let executor = rest.strip_prefix(group)?.strip_prefix('.')?;
    Some(QueueId::Executor {
        group: group.to_owned(),
        executor: executor.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use cueline_model::Timestamp;

    use super::*;

    fn from(queue: &str) -> DeadLetter {
        DeadLetter {
            id: 1,
            queue: queue.to_owned(),
            topic: String::new(),
            reason: String::new(),
            at: Timestamp::from_millis(0),
            payload: b"not a trigger".to_vec(),
            origin: None,
        }
    }

    #[test]
    fn an_unambiguous_name_gives_the_queue() {
        let executor = |group: &str, executor: &str| {
            Some(QueueId::Executor {
                group: group.to_owned(),
                executor: executor.to_owned(),
            })
        };
        assert_eq!(queue_of(&from("results")), Some(QueueId::Results));
        assert_eq!(queue_of(&from("requests")), Some(QueueId::Requests));
        assert_eq!(queue_of(&from("x.default.e1")), executor("default", "e1"));
        assert_eq!(queue_of(&from("x.a.b.c")), None);
        assert_eq!(queue_of(&from("dead")), None);
    }
}
