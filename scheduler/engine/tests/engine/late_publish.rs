//! G2 and G10: a node stalls for longer than its lease before a trigger reaches the broker. Meanwhile the executor of
//! the trigger is failed over and returns.
//!
//! A node that stalls right after a check of its lease publishes all the same. So the late trigger names the session for
//! which it was written, and the executor returns it.

use cueline_broker::ErrorKind;
use cueline_broker::conformance::{Fault, Operation};
use cueline_engine::ManualEngine;
use cueline_model::{AttemptId, OutcomeKind, RunState, Session};
use cueline_protocol::Trigger;
use serde_json::json;

use crate::fixture::{FakeExecutor, Fixture, eventually, tick};

/// The session of each executor at the beginning.
const FIRST: Session = Session(1);
/// The session of e1 after its absence.
const SECOND: Session = Session(2);

/// Node one has marked a run for e1 and written its trigger, which is not published. e2 is alive too.
async fn marked() -> (Fixture, [ManualEngine; 2], [FakeExecutor; 2]) {
    let fixture = Fixture::new().await;
    let mut one = fixture.engine("one").await;
    let mut two = fixture.engine("two").await;
    let executors = [fixture.executor("e1").await, fixture.executor("e2").await];
    one.receive_heartbeats().await.expect("stores heartbeats");
    tick(&mut two).await;
    fixture.apply("job", json!({ "route": "first" })).await;
    fixture.trigger("job").await;
    one.claim().await.expect("claims");
    one.prepare().await.expect("prepares");
    let run = fixture.only_run("job").await;
    assert_eq!(run.state, RunState::Dispatching);
    (fixture, [one, two], executors)
}

/// Node two takes over the claim and publishes the trigger. e1 stays silent, and node two moves the run to e2. Then e1
/// returns with a new session. Returns the trigger of e2.
async fn move_to_e2(
    fixture: &Fixture,
    two: &mut ManualEngine,
    [e1, e2]: &[FakeExecutor; 2],
) -> Trigger {
    let mut published = 0;
    for second in 0..=31 {
        fixture.set(second * 1_000);
        two.receive_loopback_heartbeat();
        e2.heartbeat().await;
        published += tick(two).await;
    }
    assert_eq!(published, 1, "after the lease of node one");
    assert_eq!(two.fail_over().await.expect("fails over"), 1);
    assert_eq!(tick(two).await, 1);
    let moved = e2.take_one().await;
    assert_eq!(moved.attempt, 2);
    e1.heartbeat_with(|heartbeat| heartbeat.session = SECOND)
        .await;
    moved
}

/// Ends the attempt of `trigger`. Returns the state and the attempt of its run.
async fn end(
    fixture: &Fixture,
    two: &mut ManualEngine,
    executor: &FakeExecutor,
    trigger: &Trigger,
    kind: OutcomeKind,
) -> (RunState, u32) {
    executor.ended(trigger, kind, fixture.now()).await;
    assert_eq!(two.ingest().await.expect("ingests"), 1);
    let run = fixture.run(trigger.run).await;
    (run.state, run.attempt)
}

/// The only trigger at e1 is of its first session, so e1 returns it. The run stays with e2.
async fn assert_returned(
    fixture: &Fixture,
    two: &mut ManualEngine,
    [e1, e2]: &[FakeExecutor; 2],
    moved: &Trigger,
) {
    let late = e1.accept().await;
    let found: Vec<_> = late.iter().map(|t| (t.attempt_id(), t.session)).collect();
    let first = AttemptId {
        run: moved.run,
        attempt: 1,
    };
    assert_eq!(found, [(first, Some(FIRST))]);
    let after = end(fixture, two, e1, &late[0], OutcomeKind::Returned).await;
    assert_eq!(after, (RunState::Queued, 2));
    let after = end(fixture, two, e2, moved, OutcomeKind::Succeeded).await;
    assert_eq!(after, (RunState::Succeeded, 2));
}

/// After the stall, the node receives the heartbeat with the new session before it publishes. After the longer one, it
/// gives the trigger a new deadline.
#[tokio::test]
async fn a_trigger_that_a_stalled_node_publishes_names_the_earlier_session() {
    for late_ms in [31_000, 40 * 60_000] {
        let (fixture, [mut one, mut two], executors) = Box::pin(marked()).await;
        let moved = move_to_e2(&fixture, &mut two, &executors).await;
        fixture.set(late_ms);
        one.receive_heartbeats().await.expect("stores heartbeats");
        assert_eq!(one.publish().await.expect("publishes"), 1);
        assert_returned(&fixture, &mut two, &executors, &moved).await;
    }
}

/// The message is on its way for that long. Its confirmation comes late too.
#[tokio::test]
async fn a_trigger_that_reaches_the_broker_late_names_the_earlier_session() {
    let (fixture, [mut one, mut two], executors) = Box::pin(marked()).await;
    let faults = &fixture.broker_faults;
    faults.next(Operation::Publish, Fault::Held, 1);
    let calls = faults.calls(Operation::Publish);
    let (published, moved) = tokio::join!(one.publish(), async {
        let is_held = async || faults.calls(Operation::Publish) > calls;
        eventually("the publish has begun", is_held).await;
        let moved = move_to_e2(&fixture, &mut two, &executors).await;
        faults.release();
        moved
    });
    assert_eq!(published.expect("publishes"), 1);
    assert_returned(&fixture, &mut two, &executors, &moved).await;
}

/// Its first publish had no answer, so the node asks the store again. Only a trigger that the store confirms would name
/// the new session.
#[tokio::test]
async fn a_stalled_node_drops_an_unanswered_trigger_whose_run_has_moved() {
    let (fixture, [mut one, mut two], executors) = Box::pin(marked()).await;
    let faults = &fixture.broker_faults;
    let no_answer = Fault::Before(ErrorKind::Transient);
    faults.next(Operation::Publish, no_answer, 1);
    one.publish().await.expect_err("there is no answer");
    move_to_e2(&fixture, &mut two, &executors).await;
    one.receive_heartbeats().await.expect("stores heartbeats");
    let calls = faults.calls(Operation::Publish);
    assert_eq!(one.publish().await.expect("drops it"), 0);
    assert_eq!(faults.calls(Operation::Publish), calls);
    assert_eq!(tick(&mut one).await, 0, "it joins again");
    let [e1, _] = &executors;
    assert!(e1.accept().await.is_empty());
}
