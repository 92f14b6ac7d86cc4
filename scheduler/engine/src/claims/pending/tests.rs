//! Order, holds and the bound of what waits behind them.

use cueline_model::AttemptId;
use proptest::prelude::*;

use super::*;

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn queue(number: u8) -> QueueId {
    QueueId::Executor {
        group: "default".to_owned(),
        executor: format!("e{number}"),
    }
}

fn trigger(run: i64, due_ms: i64, number: u8) -> PendingPublish {
    let run = RunId(run);
    PendingPublish {
        dispatch: DispatchRequest {
            attempt: AttemptId { run, attempt: 1 },
            job_version: 1,
            executor: format!("e{number}").parse().expect("a valid name"),
            lane: None,
            limits: None,
        },
        is_dispatch_uncertain: false,
        maybe_published: false,
        is_skipped_if_late: false,
        group: "default".parse().expect("a valid name"),
        session: None,
        rebuild_after: at(i64::MAX),
        due_at: at(due_ms),
        order_at: at(due_ms),
        priority: 5,
        message: Outgoing {
            queue: queue(number),
            topic: "job".to_owned(),
            id: run.0.to_string(),
            payload: "trigger".into(),
        },
    }
}

fn runs(triggers: &[PendingPublish]) -> Vec<i64> {
    triggers.iter().map(|t| t.dispatch.attempt.run.0).collect()
}

#[test]
fn a_held_queue_continues_in_order_and_holds_up_no_other() {
    let mut pending = PendingPublishes::default();
    pending.hold_queue(queue(1), at(1_000));
    for (run, due_ms, number) in [(3, 30, 1), (1, 10, 1), (2, 20, 2)] {
        pending.insert(trigger(run, due_ms, number));
    }
    assert_eq!(runs(&pending.pop_due(at(500), 9)), [2]);
    pending.insert(trigger(4, 600, 1));
    pending.insert(trigger(5, 600, 2));
    assert_eq!(runs(&pending.pop_due(at(999), 9)), [5]);
    assert_eq!(pending.next_due(), Some(at(1_000)));
    assert_eq!(pending.len(), 3);
    assert_eq!(runs(&pending.pop_due(at(1_000), 2)), [1, 3]);
    assert_eq!(runs(&pending.pop_due(at(1_000), 2)), [4]);
    assert_eq!((pending.len(), pending.next_due()), (0, None));
}

/// The clock was an hour ahead when the publish remained without an answer.
#[test]
fn a_hold_that_began_in_the_future_is_over() {
    let mut pending = PendingPublishes::default();
    pending.hold_queue(queue(1), at(3_601_000));
    pending.insert(trigger(1, 10, 1).unanswered());
    pending.insert(trigger(2, 20, 1));
    assert_eq!(runs(&pending.pop_due(at(1_000), 1)), [1]);
    pending.hold_queue(queue(1), at(2_000));
    pending.insert(trigger(1, 10, 1).unanswered());
    pending.insert(trigger(2, 20, 1));
    assert!(pending.pop_stuck(at(31_999), 9).is_empty());
    assert_eq!(runs(&pending.pop_stuck(at(32_000), 9)), [2]);
}

/// An executor has left, and the run was routed again.
#[test]
fn a_run_has_one_trigger() {
    let mut pending = PendingPublishes::default();
    pending.hold_queue(queue(1), at(1_000));
    pending.insert(trigger(1, 10, 1));
    assert!(pending.pop_due(at(500), 9).is_empty());
    pending.insert(trigger(1, 20, 2));
    assert_eq!(pending.len(), 1);
    assert_eq!(runs(&pending.pop_due(at(500), 9)), [1]);
    assert!(pending.pop_due(at(2_000), 9).is_empty());
}

#[test]
fn the_end_of_a_hold_returns_no_trigger_of_another_queue() {
    let mut pending = PendingPublishes::default();
    pending.hold_queue(queue(1), at(1_000));
    pending.hold_queue(queue(2), at(2_000));
    for run in 1..=3 {
        pending.insert(trigger(run, 0, 1));
        pending.insert(trigger(run + 3, 0, 2));
    }
    assert_eq!(runs(&pending.pop_due(at(1_000), 1)), [1]);
    assert_eq!((pending.wheel.len(), pending.held.len()), (2, 3));
    assert_eq!(runs(&pending.pop_due(at(1_000), 9)), [2, 3]);
    assert_eq!(pending.next_due(), Some(at(2_000)));
    assert_eq!(runs(&pending.pop_due(at(2_000), 9)), [4, 5, 6]);
}

#[test]
fn triggers_behind_a_queue_that_accepts_nothing_leave_after_30_s() {
    let mut pending = PendingPublishes::default();
    pending.hold_queue(queue(1), at(1_000));
    pending.insert(trigger(1, 0, 1).unanswered());
    assert_eq!(runs(&pending.pop_due(at(1_000), 1)), [1]);
    pending.note_accepted(&queue(1));
    for retry_ms in [2_000, 40_000] {
        pending.hold_queue(queue(1), at(retry_ms));
    }
    pending.insert(trigger(2, 0, 1).unanswered());
    for run in [5, 4, 3] {
        pending.insert(trigger(run, 20_000, 1));
    }
    pending.insert(trigger(6, 39_000, 1));
    assert!(pending.pop_stuck(at(31_999), 9).is_empty());
    assert_eq!(pending.next_due(), Some(at(32_000)));
    assert_eq!(runs(&pending.pop_stuck(at(32_000), 2)), [3, 4]);
    assert_eq!(runs(&pending.pop_stuck(at(32_000), 2)), [5]);
    assert!(pending.pop_stuck(at(32_000), 2).is_empty());
    assert_eq!(pending.next_due(), Some(at(39_000)), "it follows when due");
    assert_eq!(runs(&pending.pop_stuck(at(39_000), 2)), [6]);
    assert_eq!(pending.len(), 1);
    assert_eq!(runs(&pending.pop_due(at(40_000), 9)), [2]);
}

proptest! {
    /// Queue 0 accepts nothing. Each trigger is accepted or leaves, but those that may have been published stay.
    #[test]
    fn a_queue_that_accepts_nothing_keeps_one_batch(
        triggers in prop::collection::vec((0_i64..40_000, 0_u8..3), 1..60),
        batch in 1_usize..8,
    ) {
        let mut pending = PendingPublishes::default();
        let for_queue_0 = triggers.iter().filter(|(_, number)| *number == 0).count();
        let others = triggers.len() - for_queue_0;
        for (run, (due_ms, number)) in (0..).zip(triggers) {
            pending.insert(trigger(run, due_ms, number));
        }
        let (mut accepted, mut given_up) = (0_usize, 0_usize);
        for now_ms in (0..80_000).step_by(500) {
            let stuck = pending.pop_stuck(at(now_ms), batch);
            prop_assert!(stuck.len() <= batch);
            for trigger in stuck {
                prop_assert!(!trigger.maybe_published);
                prop_assert_eq!(&trigger.message.queue, &queue(0));
                given_up += 1;
            }
            loop {
                let popped = pending.pop_due(at(now_ms), batch);
                if popped.is_empty() {
                    break;
                }
                for trigger in popped {
                    if trigger.message.queue == queue(0) {
                        pending.hold_queue(queue(0), at(now_ms + 1_000));
                        pending.insert(trigger.unanswered());
                    } else {
                        pending.note_accepted(&trigger.message.queue);
                        accepted += 1;
                    }
                }
            }
        }
        prop_assert_eq!(accepted, others);
        prop_assert_eq!(given_up + pending.len(), for_queue_0);
        prop_assert!(pending.len() <= batch);
    }

    /// Some publishes are not answered. Of the triggers that are pending together, none is accepted before an older
    /// one of its queue.
    #[test]
    fn no_trigger_overtakes_an_older_one_of_its_queue(
        triggers in prop::collection::vec((0_i64..50, 0_u8..3), 1..60),
        unanswered in prop::collection::vec(prop::bool::weighted(0.3), 200),
        batch in 1_usize..8,
    ) {
        let mut pending = PendingPublishes::default();
        let count = triggers.len();
        for (run, (due_ms, number)) in (0..).zip(triggers) {
            pending.insert(trigger(run, due_ms, number));
        }
        let mut accepted = HashMap::<QueueId, Vec<(Timestamp, RunId)>>::new();
        let mut unanswered = unanswered.into_iter();
        let (mut now_ms, mut total) = (0, 0);
        while pending.len() > 0 {
            prop_assert!(now_ms < 10_000, "all are published in the end");
            let popped = pending.pop_due(at(now_ms), batch);
            prop_assert!(pending.pop_stuck(at(now_ms), batch).is_empty());
            // The driver answers for each queue: an outage begins at one message and lasts until the end.
            let mut failed = Vec::<QueueId>::new();
            for trigger in popped {
                let to = trigger.message.queue.clone();
                if failed.contains(&to) || unanswered.next().unwrap_or(false) {
                    failed.push(to.clone());
                    pending.hold_queue(to, at(now_ms + 10));
                    pending.insert(trigger.unanswered());
                } else {
                    pending.note_accepted(&to);
                    let order = (trigger.due_at, trigger.dispatch.attempt.run);
                    accepted.entry(to).or_default().push(order);
                    total += 1;
                }
            }
            now_ms += 1;
        }
        prop_assert_eq!(total, count);
        prop_assert!(accepted.values().all(|order| order.is_sorted()));
    }
}

/// A handover releases them. The others may be published already.
#[test]
fn triggers_that_were_certainly_not_published_are_taken_from_the_wheel_and_from_holds() {
    let mut pending = PendingPublishes::default();
    pending.hold_queue(queue(1), at(1_000));
    pending.insert(trigger(1, 10, 1).unanswered());
    pending.insert(trigger(2, 20, 1));
    pending.insert(trigger(3, 30, 2));
    pending.insert(trigger(4, 40, 3).unanswered());
    let mut taken = runs(&pending.take_unpublished());
    taken.sort_unstable();
    assert_eq!(taken, [2, 3]);
    assert_eq!(pending.len(), 2);
    assert_eq!(runs(&pending.pop_due(at(1_000), 9)), [1, 4]);
    assert_eq!(pending.len(), 0);
}

#[test]
fn all_triggers_are_marked_again_after_the_node_has_another_id() {
    let mut pending = PendingPublishes::default();
    pending.hold_queue(queue(1), at(1_000));
    pending.insert(trigger(1, 10, 1));
    pending.insert(trigger(2, 20, 2));
    pending.mark_again();
    let popped = pending.pop_due(at(1_000), 9);
    assert_eq!(runs(&popped), [1, 2]);
    assert!(popped.iter().all(|t| t.is_dispatch_uncertain));
}
