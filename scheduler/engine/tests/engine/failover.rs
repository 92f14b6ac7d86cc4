//! G10: the work of a silent executor goes to others. Silence counts only while the node could have received
//! heartbeats.

use cueline_broker::conformance::{Fault as BrokerFault, Operation};
use cueline_engine::ManualEngine;
use cueline_model::{AttemptId, OutcomeKind, RunState};
use serde_json::json;

use crate::fixture::{FakeExecutor, Fault, Fixture, eventually, tick};

/// `count` triggers of one job in the queue of `e1`, the only executor.
async fn given(count: usize, rest: serde_json::Value) -> (Fixture, ManualEngine, FakeExecutor) {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", rest).await;
    for _ in 0..count {
        fixture.trigger("job").await;
    }
    engine.receive_loopback_heartbeat();
    assert_eq!(tick(&mut engine).await, count);
    (fixture, engine, e1)
}

/// Lets time pass in steps of a second, each with a loopback heartbeat.
async fn pass(fixture: &Fixture, engine: &mut ManualEngine, from_ms: i64, to_ms: i64) {
    for at in (from_ms..=to_ms).step_by(1_000) {
        fixture.set(at);
        engine.receive_loopback_heartbeat();
        engine.tick().await.expect("a turn without faults");
    }
}

#[tokio::test]
async fn triggers_in_its_queue_are_routed_again_as_new_attempts() {
    let (fixture, mut engine, e1) = given(3, json!({})).await;
    pass(&fixture, &mut engine, 0, 29_000).await;
    let e2 = fixture.executor("e2").await;
    engine
        .receive_heartbeats()
        .await
        .expect("stores heartbeats");
    assert_eq!(engine.fail_over().await.expect("looks"), 0);
    pass(&fixture, &mut engine, 30_000, 31_000).await;
    e2.heartbeat().await;
    assert_eq!(engine.fail_over().await.expect("fails over"), 3);
    assert_eq!(tick(&mut engine).await, 3);
    let sent = e2.take().await;
    assert_eq!(
        sent.iter().map(|t| t.attempt).collect::<Vec<_>>(),
        [2, 2, 2]
    );
    assert!(e1.take().await.is_empty());
    for run in fixture.runs("job").await {
        assert_eq!((run.state, run.retries), (RunState::Queued, 0));
    }
    assert_eq!(engine.fail_over().await.expect("looks"), 0);
}

/// The executor had accepted both attempts, and one is known to have started.
#[tokio::test]
async fn accepted_attempts_end_by_on_lost() {
    for (on_lost, expected) in [("fail", RunState::Lost), ("rerun", RunState::Queued)] {
        let (fixture, mut engine, e1) = given(2, json!({ "on_lost": on_lost })).await;
        let taken = e1.take().await;
        e1.started(&taken[1], fixture.now()).await;
        pass(&fixture, &mut engine, 0, 31_000).await;
        let e2 = fixture.executor("e2").await;
        engine
            .receive_heartbeats()
            .await
            .expect("stores heartbeats");
        assert_eq!(engine.fail_over().await.expect("fails over"), 2);
        tick(&mut engine).await;
        assert_eq!(fixture.states("job").await, [expected; 2]);
        let again = e2.take().await;
        assert_eq!(again.len(), if on_lost == "rerun" { 2 } else { 0 });
        // The executor returns and reports the attempts that were taken from it.
        for trigger in &taken {
            e1.ended(trigger, OutcomeKind::Succeeded, fixture.now())
                .await;
        }
        tick(&mut engine).await;
        assert_eq!(fixture.states("job").await, [expected; 2]);
    }
}

/// Results that the executor published before it fell silent count.
#[tokio::test]
async fn published_results_are_ingested_before_attempts_count_as_lost() {
    let (fixture, mut engine, e1) = given(1, json!({})).await;
    let taken = e1.take().await;
    pass(&fixture, &mut engine, 0, 31_000).await;
    e1.ended(&taken[0], OutcomeKind::Succeeded, fixture.now())
        .await;
    assert_eq!(engine.fail_over().await.expect("waits"), 0);
    tick(&mut engine).await;
    assert_eq!(engine.fail_over().await.expect("looks"), 0);
    assert_eq!(fixture.states("job").await, [RunState::Succeeded]);
}

/// Other executors report all the time, so the results queue is never empty. Once as many results as were in it have
/// been ingested, none of the silent executor is left.
#[tokio::test]
async fn a_lasting_load_does_not_delay_failover() {
    let (fixture, mut engine, e1) = given(1, json!({})).await;
    let e2 = fixture.executor("e2").await;
    let taken = e1.take().await;
    let report = async || {
        for _ in 0..3 {
            e2.started(&taken[0], fixture.now()).await;
        }
    };
    pass(&fixture, &mut engine, 0, 31_000).await;
    report().await;
    assert_eq!(engine.fail_over().await.expect("waits"), 0);
    engine.tick().await.expect("takes in what was there");
    report().await;
    e2.heartbeat().await;
    assert_eq!(engine.fail_over().await.expect("fails over"), 1);
    assert_eq!(fixture.states("job").await, [RunState::Lost]);
}

/// The broker was down, or this node was cut off or suspended.
#[tokio::test]
async fn silence_during_a_gap_of_the_self_check_fails_over_nothing() {
    let (fixture, mut engine, e1) = given(1, json!({})).await;
    fixture.set(40_000);
    engine.tick().await.expect("a turn without faults");
    engine.receive_loopback_heartbeat();
    assert_eq!(engine.fail_over().await.expect("looks"), 0);
    pass(&fixture, &mut engine, 41_000, 69_000).await;
    assert_eq!(engine.fail_over().await.expect("looks"), 0);
    pass(&fixture, &mut engine, 70_000, 71_000).await;
    assert_eq!(engine.fail_over().await.expect("fails over"), 1);
    assert!(e1.take().await.is_empty());
}

/// The gap is not over yet, so the count of the silence has not been restarted.
#[tokio::test]
async fn a_node_without_loopback_heartbeats_fails_over_nothing() {
    let (fixture, mut engine, e1) = given(1, json!({})).await;
    pass(&fixture, &mut engine, 0, 29_000).await;
    fixture.set(45_000);
    assert_eq!(engine.fail_over().await.expect("looks"), 0);
    engine.receive_loopback_heartbeat();
    assert_eq!(engine.fail_over().await.expect("looks"), 0);
    assert_eq!(e1.take().await.len(), 1);
}

/// Silence is counted from the store, which misses the heartbeats that could not be written.
#[tokio::test]
async fn a_node_that_cannot_store_heartbeats_fails_over_nothing() {
    let (fixture, mut engine, e1) = given(1, json!({})).await;
    pass(&fixture, &mut engine, 0, 25_000).await;
    for at in (26_000..=34_000).step_by(1_000) {
        fixture.set(at);
        engine.receive_loopback_heartbeat();
        e1.heartbeat().await;
        fixture.store.fail_next("record_heartbeats", Fault::Before);
        assert!(engine.receive_heartbeats().await.is_err());
    }
    assert_eq!(engine.fail_over().await.expect("looks"), 0);
    e1.heartbeat().await;
    engine
        .receive_heartbeats()
        .await
        .expect("stores heartbeats");
    assert_eq!(engine.fail_over().await.expect("looks"), 0);
    assert_eq!(e1.take().await.len(), 1);
}

/// The attempts of one silent executor cannot be read. The others do not wait for that.
#[tokio::test]
async fn an_error_with_one_executor_does_not_delay_the_others() {
    let (fixture, mut engine, e1) = given(1, json!({})).await;
    e1.leave().await;
    let e2 = fixture.executor("e2").await;
    engine
        .receive_heartbeats()
        .await
        .expect("stores heartbeats");
    fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 1);
    pass(&fixture, &mut engine, 0, 31_000).await;
    fixture
        .store
        .fail_next("outstanding_attempts", Fault::Broken);
    assert!(engine.fail_over().await.is_err());
    assert!(e2.take().await.is_empty(), "it was drained");
    let attempts: Vec<u32> = fixture
        .runs("job")
        .await
        .iter()
        .map(|r| r.attempt)
        .collect();
    assert_eq!(attempts.iter().filter(|attempt| **attempt == 2).count(), 1);
    assert_eq!(engine.fail_over().await.expect("fails over"), 1);
    assert!(e1.take().await.is_empty());
}

/// A heartbeat arrives in time.
#[tokio::test]
async fn a_short_silence_changes_nothing() {
    let (fixture, mut engine, e1) = given(2, json!({})).await;
    pass(&fixture, &mut engine, 0, 29_000).await;
    e1.heartbeat().await;
    pass(&fixture, &mut engine, 30_000, 55_000).await;
    assert_eq!(engine.fail_over().await.expect("looks"), 0);
    assert_eq!(e1.take().await.len(), 2);
}

/// Triggers that are returned to their queue would count as delivered before, and so as perhaps started.
#[tokio::test]
async fn a_failover_waits_for_a_failing_store() {
    let (fixture, mut engine, _e1) = given(5, json!({})).await;
    pass(&fixture, &mut engine, 0, 31_000).await;
    let e2 = fixture.executor("e2").await;
    engine
        .receive_heartbeats()
        .await
        .expect("stores heartbeats");
    fixture.store.fail_next("ingest_reports", Fault::Before);
    fixture.store.fail_next("ingest_reports", Fault::After);
    assert_eq!(engine.fail_over().await.expect("fails over"), 5);
    tick(&mut engine).await;
    assert_eq!(e2.take().await.len(), 5);
}

/// Silent executors are handled one after the other, from a list made at the beginning of the turn.
#[tokio::test]
async fn an_executor_that_returns_before_its_turn_keeps_its_attempts() {
    let (fixture, mut engine, e1) = given(1, json!({})).await;
    e1.take_one().await;
    pass(&fixture, &mut engine, 0, 31_000).await;
    fixture.store.freeze_executors().await;
    e1.heartbeat().await;
    let new = fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_one().await.run, new);
    assert_eq!(engine.fail_over().await.expect("looks"), 0);
    assert_eq!(fixture.states("job").await, [RunState::Queued; 2]);
}

/// The publish of a trigger is confirmed during the turn.
#[tokio::test]
async fn an_attempt_queued_during_a_failover_turn_is_moved_by_the_next_turn() {
    let (fixture, mut engine, e1) = given(1, json!({})).await;
    let old = e1.take_one().await.run;
    let faults = &fixture.broker_faults;
    faults.always(Operation::Publish, BrokerFault::Unanswered);
    let run = fixture.trigger("job").await;
    pass(&fixture, &mut engine, 0, 31_000).await;
    e1.take().await;
    let slow = BrokerFault::Late(std::time::Duration::from_millis(200));
    faults.next(Operation::Stats, slow, 1);
    let calls = faults.calls(Operation::Stats);
    let (moved, ()) = tokio::join!(engine.fail_over(), async {
        let asked = async || faults.calls(Operation::Stats) > calls;
        eventually("it looks for what is left", asked).await;
        fixture.set(31_400);
        let confirmed = [AttemptId { run, attempt: 1 }];
        let written = fixture.real().confirm_dispatch(&confirmed).await;
        written.expect("is written down");
        fixture.set(31_500);
    });
    assert_eq!(moved.expect("fails over"), 1);
    assert_eq!(fixture.state(old).await, RunState::Lost);
    assert_eq!(fixture.state(run).await, RunState::Queued);
    fixture.set(32_000);
    engine.receive_loopback_heartbeat();
    assert_eq!(engine.fail_over().await.expect("fails over"), 1);
    assert_eq!(fixture.state(run).await, RunState::Lost);
}
