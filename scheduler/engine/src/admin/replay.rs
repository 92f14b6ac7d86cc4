//! Decides into which queue a dead letter may be replayed. Pure.
//!
//! A dead letter claims a queue. Anybody who can publish dead letters could have a scheduler put a message into any
//! queue, and a scheduler has rights on all of them. So a letter goes only where its verified origin could have had it
//! from.

use cueline_broker::QueueId;
use cueline_store::DeadLetter;

use crate::dead_letter_queue::queue_of;
use crate::refused_messages::BY_SCHEDULER;

/// The queue that the letter may be published to, or why there is none.
pub(super) fn queue_for(letter: &DeadLetter) -> Result<QueueId, String> {
    let Some(origin) = letter.origin.as_deref() else {
        return Err(
            "its origin is not verified: no scheduler and no enrolled worker has refused or sent it. Trigger its job again if it should run"
                .to_owned(),
        );
    };
    let queue = queue_of(&letter.queue, &letter.payload)
        .ok_or_else(|| format!("the queue {:?} is not known", letter.queue))?;
    let may_hold = match &queue {
        // Ingest verifies the results again.
        QueueId::Results => true,
        QueueId::Executor { group, executor } => {
            origin == BY_SCHEDULER || origin == format!("executor {group}/{executor}")
        }
        _ => origin == BY_SCHEDULER,
    };
    if may_hold {
        Ok(queue)
    } else {
        Err(format!("its origin, {origin}, has not had it from {queue}"))
    }
}

/// The id of a replayed message. With the original one, the broker would drop it as a duplicate.
///
/// NATS drops the second of two messages with one id, whichever account published the first. All workers publish results,
/// so the id of a result has a number that they do not know. Of other letters, two replays at the same time are one.
pub(super) fn message_id(queue: &QueueId, letter: i64, nonce: u64) -> String {
    match queue {
        QueueId::Results => format!("dead:{letter}:{nonce:016x}"),
        _ => format!("dead:{letter}"),
    }
}

#[cfg(test)]
mod tests {
    use cueline_model::Timestamp;

    use super::*;

    fn replayed(origin: Option<&str>, queue: &str) -> Result<String, String> {
        let letter = DeadLetter {
            id: 1,
            queue: queue.to_owned(),
            topic: String::new(),
            reason: String::new(),
            origin: origin.map(str::to_owned),
            namespace: None,
            at: Timestamp::from_millis(0),
            payload: b"not a trigger".to_vec(),
        };
        queue_for(&letter).map(|queue| queue.to_string())
    }

    #[test]
    fn a_letter_goes_where_its_origin_had_it_from() {
        let one = Some("executor default/one");
        for (origin, queue) in [
            (Some("scheduler"), "results"),
            (Some("scheduler"), "requests"),
            (Some("scheduler"), "x.default.one"),
            (one, "results"),
            (one, "x.default.one"),
        ] {
            assert_eq!(replayed(origin, queue), Ok(queue.to_owned()), "{origin:?}");
        }
    }

    #[test]
    fn no_other_letter_is_replayed() {
        let one = Some("executor default/one");
        for (origin, queue) in [
            (None, "results"),
            (None, "requests"),
            (None, "x.default.one"),
            (one, "requests"),
            (one, "x.default.two"),
            (one, "x.other.one"),
            (one, "x.a.b.c"),
            (Some("scheduler"), "dead"),
            (Some("ann"), "x.default.one"),
        ] {
            assert!(replayed(origin, queue).is_err(), "{origin:?} {queue}");
        }
        let unverified = replayed(None, "requests").expect_err("refused");
        assert!(unverified.contains("not verified"), "{unverified}");
    }

    #[test]
    fn no_worker_knows_the_id_of_a_replayed_result() {
        let id = |queue, nonce| message_id(queue, 7, nonce);
        assert_ne!(id(&QueueId::Results, 1), id(&QueueId::Results, 2));
        assert_eq!(id(&QueueId::Requests, 1), id(&QueueId::Requests, 2));
    }
}
