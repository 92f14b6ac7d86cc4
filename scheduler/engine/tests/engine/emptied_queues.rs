//! G5: a drain or a purge of a live executor's queue. The executor may have the attempt of a trigger from another copy.

use std::time::Duration;

use cueline_broker::Settlement;
use cueline_broker::conformance::{Fault, Operation};
use cueline_model::{AttemptId, OutcomeKind, RunState};
use cueline_store::admin::EmptiedQueue;
use serde_json::json;

use crate::fixture::{FakeExecutor, Fixture, actor, eventually, tick};

/// Waits for a request, while the executor answers all questions with `held`.
pub(crate) async fn answered<T>(
    executor: &mut FakeExecutor,
    held: &[AttemptId],
    request: impl Future<Output = T>,
) -> T {
    tokio::select! {
        done = request => done,
        never = executor.keep_answering(held) => match never {},
    }
}

pub(crate) fn emptied(count: u64, left: u64) -> EmptiedQueue {
    EmptiedQueue { count, left }
}

/// A publish without an answer was repeated. The executor starts the attempt from the first copy, and the second one is in
/// its queue.
#[tokio::test]
async fn an_attempt_that_the_executor_starts_from_another_copy_stays_there() {
    for purge in [false, true] {
        let fixture = Fixture::new().await;
        let mut engine = fixture.engine("one").await;
        let mut e1 = fixture.executor("e1").await;
        fixture.apply("job", json!({})).await;
        let run = fixture.trigger("job").await;
        let faults = &fixture.broker_faults;
        faults.next(Operation::Publish, Fault::Unanswered, 1);
        assert_eq!(tick(&mut engine).await, 0);
        let starting = e1.take_one().await;
        fixture.set(2_001);
        assert_eq!(tick(&mut engine).await, 1);
        fixture.set(2_010);
        let (admin, id) = (engine.admin(), e1.id());
        let held = [starting.attempt_id()];
        let done = if purge {
            answered(&mut e1, &held, admin.purge(&id, &actor("ann"))).await
        } else {
            answered(&mut e1, &held, admin.drain(&id, &actor("ann"))).await
        };
        let found = fixture.run(run).await;
        assert_eq!((found.state, found.attempt), (RunState::Queued, 1));
        assert_eq!(done.expect("empties the queue"), emptied(0, 0));
        assert!(e1.accept().await.is_empty(), "the second copy is gone");
        e1.ended(&starting, OutcomeKind::Succeeded, fixture.now())
            .await;
        tick(&mut engine).await;
        let found = fixture.run(run).await;
        assert_eq!((found.state, found.attempt), (RunState::Succeeded, 1));
    }
}

/// The first copy was delivered and is on its way into the journal, so the executor does not hold it yet.
#[tokio::test]
async fn an_attempt_whose_other_copy_was_delivered_is_left() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let mut e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    let run = fixture.trigger("job").await;
    let faults = &fixture.broker_faults;
    faults.next(Operation::Publish, Fault::Unanswered, 1);
    assert_eq!(tick(&mut engine).await, 0);
    let queue = e1.queue();
    let first = fixture.broker.fetch(&queue, 9, Duration::ZERO).await;
    let first = first.expect("fetches");
    assert_eq!(first.len(), 1);
    fixture.set(2_001);
    assert_eq!(tick(&mut engine).await, 1);
    fixture.set(2_010);
    let (admin, id) = (engine.admin(), e1.id());
    let drained = answered(&mut e1, &[], admin.drain(&id, &actor("ann"))).await;
    assert_eq!(drained.expect("drains"), emptied(0, 1));
    let found = fixture.run(run).await;
    assert_eq!((found.state, found.attempt), (RunState::Queued, 1));
    // Now the journal has it. The second copy comes back.
    let acks = [(first[0].receipt, Settlement::Ack)];
    fixture.broker.settle(&queue, &acks).await.expect("settles");
    eventually("the second copy is delivered again", async || {
        e1.accept().await.len() == 1
    })
    .await;
}

/// The triggers go back into its queue. They count as delivered from then on, so another copy is looked for.
#[tokio::test]
async fn triggers_are_left_to_an_executor_that_does_not_answer() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let mut e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    for _ in 0..2 {
        fixture.trigger("job").await;
    }
    assert_eq!(tick(&mut engine).await, 2);
    fixture.set(10);
    let (admin, id) = (engine.admin(), e1.id());
    let drained = admin.drain(&id, &actor("ann")).await;
    assert_eq!(drained.expect("drains"), emptied(0, 2));
    assert_eq!(fixture.states("job").await, [RunState::Queued; 2]);
    eventually("they are delivered again", async || {
        let drained = answered(&mut e1, &[], admin.drain(&id, &actor("ann"))).await;
        drained.expect("drains") == emptied(2, 0)
    })
    .await;
    let runs = fixture.runs("job").await;
    assert!(runs.iter().all(|run| run.attempt == 2), "{runs:?}");
}
