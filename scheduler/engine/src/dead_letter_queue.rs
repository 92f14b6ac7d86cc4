//! Finds the queue that a dead letter came from.

use cueline_broker::QueueId;
use cueline_protocol::{Trigger, decode};

/// The queue that a dead letter came from. `name` is that queue as the broker displays it. Names of groups and executors
/// may contain dots, so the trigger in the letter decides where the name is split. `None` without a readable trigger if
/// the name is ambiguous.
pub(crate) fn queue_of(name: &str, payload: &[u8]) -> Option<QueueId> {
    for queue in [QueueId::Results, QueueId::Requests] {
        if queue.to_string() == name {
            return Some(queue);
        }
    }
    let rest = name.strip_prefix("x.")?;
    let executor = match decode::<Trigger>(payload) {
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
    use super::*;

    fn from(queue: &str) -> Option<QueueId> {
        queue_of(queue, b"not a trigger")
    }

    #[test]
    fn an_unambiguous_name_gives_the_queue() {
        let executor = |group: &str, executor: &str| {
            Some(QueueId::Executor {
                group: group.to_owned(),
                executor: executor.to_owned(),
            })
        };
        assert_eq!(from("results"), Some(QueueId::Results));
        assert_eq!(from("requests"), Some(QueueId::Requests));
        assert_eq!(from("x.default.e1"), executor("default", "e1"));
        assert_eq!(from("x.a.b.c"), None);
        assert_eq!(from("dead"), None);
    }
}
