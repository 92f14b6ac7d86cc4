//! G10: the work of a silent executor goes to others. Silence counts only while the node could have received
//! heartbeats.

use std::time::Duration;

use cueline_broker::conformance::{Fault as BrokerFault, Operation};
use cueline_broker::{Coverage, QueueId, Settlement};
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

/// It had taken both triggers and acked one. None of them had started, because another attempt was in the lane.
#[tokio::test]
async fn attempts_that_have_not_started_are_routed_again() {
    let (fixture, mut engine, e1) = given(1, json!({})).await;
    assert_eq!(e1.accept().await.len(), 1);
    fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 1);
    let queue = e1.queue();
    let unsettled = fixture.broker.fetch(&queue, 10, Duration::ZERO);
    assert_eq!(unsettled.await.expect("fetches").len(), 1);
    pass(&fixture, &mut engine, 0, 31_000).await;
    let e2 = fixture.executor("e2").await;
    engine
        .receive_heartbeats()
        .await
        .expect("stores heartbeats");
    assert_eq!(engine.fail_over().await.expect("fails over"), 2);
    tick(&mut engine).await;
    let again = e2.take().await;
    assert_eq!(again.iter().map(|t| t.attempt).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(fixture.states("job").await, [RunState::Queued; 2]);
}

/// Without the log it is unknown what has started.
#[tokio::test]
async fn accepted_attempts_are_lost_with_the_start_log() {
    let (fixture, mut engine, e1) = given(1, json!({})).await;
    assert_eq!(e1.accept().await.len(), 1);
    let deleted = fixture.broker.delete_log(&e1.start_log()).await;
    deleted.expect("deletes");
    pass(&fixture, &mut engine, 0, 31_000).await;
    assert_eq!(engine.fail_over().await.expect("fails over"), 1);
    assert_eq!(fixture.states("job").await, [RunState::Lost]);
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

/// Another scheduler has fetched the results. It writes them late, or was killed and they are delivered again. The broker
/// does not count what it holds.
#[tokio::test]
async fn results_that_another_node_may_hold_are_waited_for() {
    for (is_delivered_again, expected) in [(true, RunState::Succeeded), (false, RunState::Lost)] {
        let (fixture, mut engine, e1) = given(1, json!({})).await;
        let taken = e1.take_one().await;
        e1.ended(&taken, OutcomeKind::Succeeded, fixture.now())
            .await;
        let results = QueueId::Results;
        let held = fixture.broker.fetch(&results, 10, Duration::ZERO).await;
        let held = held.expect("fetches");
        assert_eq!(held.len(), 1);
        let partial = BrokerFault::Coverage(Coverage::OwnDeliveries);
        fixture.broker_faults.always(Operation::Stats, partial);
        for (from_ms, to_ms) in [(0, 31_000), (32_000, 35_000)] {
            pass(&fixture, &mut engine, from_ms, to_ms).await;
            assert_eq!(engine.fail_over().await.expect("waits"), 0);
        }
        if is_delivered_again {
            let again = [(held[0].receipt, Settlement::Retry(Duration::ZERO))];
            let settled = fixture.broker.settle(&results, &again).await;
            settled.expect("settles");
        }
        pass(&fixture, &mut engine, 36_000, 36_000).await;
        let moved = engine.fail_over().await.expect("fails over");
        assert_eq!(moved, usize::from(!is_delivered_again));
        assert_eq!(fixture.states("job").await, [expected]);
    }
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
    let (fixture, mut engine, e1) = given(1, json!({ "scope": "executor" })).await;
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

/// The start log of one silent executor does not answer for a while.
#[tokio::test]
async fn a_slow_executor_does_not_delay_the_others() {
    let (fixture, mut engine, e1) = given(1, json!({ "scope": "executor" })).await;
    e1.leave().await;
    let _e2 = fixture.executor("e2").await;
    engine
        .receive_heartbeats()
        .await
        .expect("stores heartbeats");
    fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 1);
    pass(&fixture, &mut engine, 0, 31_000).await;
    let faults = &fixture.broker_faults;
    faults.next(Operation::ReadLog, BrokerFault::Held, 1);
    let moved = async || {
        let runs = fixture.runs("job").await;
        runs.iter().filter(|run| run.attempt == 2).count()
    };
    let (total, ()) = tokio::join!(engine.fail_over(), async {
        eventually("one of them is failed over", async || moved().await == 1).await;
        faults.release();
    });
    assert_eq!(total.expect("fails over"), 2);
    assert_eq!(moved().await, 2);
}

/// A count may list the queues of all executors.
#[tokio::test]
async fn what_has_not_started_is_moved_without_counting_the_queue() {
    let (fixture, mut engine, _e1) = given(3, json!({})).await;
    pass(&fixture, &mut engine, 0, 31_000).await;
    let counts = fixture.broker_faults.calls(Operation::Stats);
    assert_eq!(engine.fail_over().await.expect("fails over"), 3);
    assert_eq!(fixture.broker_faults.calls(Operation::Stats), counts);
}

/// Four executors are worked on at once, and a turn begins none after three failures. So with seven that fail at once, one
/// is left out. The one whose failure is the oldest comes first.
#[tokio::test]
async fn executors_that_go_on_failing_leave_the_others_their_turn() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let mut executors = Vec::new();
    for name in ["e1", "e2", "e3", "e4", "e5", "e6", "e7"] {
        executors.push(fixture.executor(name).await);
    }
    fixture.apply("job", json!({ "route": "broadcast" })).await;
    let stored = engine.receive_heartbeats().await;
    stored.expect("stores heartbeats");
    fixture.trigger("job").await;
    engine.receive_loopback_heartbeat();
    assert_eq!(tick(&mut engine).await, 7);
    pass(&fixture, &mut engine, 0, 31_000).await;
    let plan = |fault| fixture.store.fail_next("outstanding_attempts", fault);
    // e1 to e6 fail, then e7 and e1 to e5.
    for next_ms in [32_000, 33_000] {
        [Fault::Broken; 6].into_iter().for_each(plan);
        assert!(engine.fail_over().await.is_err());
        pass(&fixture, &mut engine, next_ms, next_ms).await;
    }
    plan(Fault::Takes(0));
    [Fault::Broken; 6].into_iter().for_each(plan);
    assert!(engine.fail_over().await.is_err());
    for (i, executor) in executors.iter().enumerate() {
        let expected = usize::from(i != 5);
        assert_eq!(executor.take().await.len(), expected, "executor {}", i + 1);
    }
}

/// The server with the queue has died together with the executor.
#[tokio::test]
async fn what_has_not_started_does_not_wait_for_a_queue_without_an_answer() {
    let (fixture, mut engine, _e1) = given(3, json!({})).await;
    let e2 = fixture.executor("e2").await;
    pass(&fixture, &mut engine, 0, 31_000).await;
    e2.heartbeat().await;
    engine
        .receive_heartbeats()
        .await
        .expect("stores heartbeats");
    let no_answer = BrokerFault::Before(cueline_broker::ErrorKind::Transient);
    fixture.broker_faults.always(Operation::Fetch, no_answer);
    assert!(engine.fail_over().await.is_err());
    let runs = fixture.runs("job").await;
    assert!(runs.iter().all(|run| run.attempt == 2), "{runs:?}");
    fixture.broker_faults.clear();
    tick(&mut engine).await;
    assert_eq!(e2.take().await.len(), 3);
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

/// A turn handles silent executors a few at a time, from a list made at its beginning.
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

/// Its queue, or the results, may hold what the executor had or reported.
#[tokio::test]
async fn attempts_are_not_lost_while_a_queue_does_not_answer() {
    let (fixture, mut engine, e1) = given(1, json!({})).await;
    let run = e1.take_one().await.run;
    pass(&fixture, &mut engine, 0, 31_000).await;
    let faults = &fixture.broker_faults;
    // The queue of the executor is counted first, then the results.
    for answered in [0, 1] {
        for fault in [
            BrokerFault::Unanswered,
            BrokerFault::Coverage(Coverage::Unsure),
        ] {
            let answer = BrokerFault::Coverage(Coverage::All);
            faults.next(Operation::Stats, answer, answered);
            faults.next(Operation::Stats, fault, 1);
            let calls = faults.calls(Operation::Stats);
            assert_eq!(engine.fail_over().await.expect("goes on"), 0);
            assert_eq!(faults.calls(Operation::Stats), calls + 2);
            assert_eq!(fixture.state(run).await, RunState::Queued);
        }
    }
    assert_eq!(engine.fail_over().await.expect("fails over"), 1);
    assert_eq!(fixture.state(run).await, RunState::Lost);
}

/// Most silent executors have ended everything. They stay known for an hour.
#[tokio::test]
async fn the_start_log_of_an_executor_that_has_nothing_left_is_not_read() {
    let (fixture, mut engine, e1) = given(1, json!({})).await;
    let taken = e1.take_one().await;
    e1.ended(&taken, OutcomeKind::Succeeded, fixture.now())
        .await;
    for (from_ms, to_ms) in [(0, 31_000), (32_000, 62_000)] {
        pass(&fixture, &mut engine, from_ms, to_ms).await;
        assert_eq!(engine.fail_over().await.expect("looks"), 0);
    }
    assert_eq!(fixture.states("job").await, [RunState::Succeeded]);
    assert_eq!(fixture.broker_faults.calls(Operation::ReadLog), 0);
}

/// The store does not list them, because the broker has not answered. Without a count, the queue is looked at as well.
#[tokio::test]
async fn triggers_in_its_queue_that_the_store_does_not_list_are_routed_again() {
    for is_counted in [true, false] {
        let fixture = Fixture::new().await;
        let mut engine = fixture.engine("one").await;
        let e1 = fixture.executor("e1").await;
        fixture.apply("job", json!({})).await;
        // The start log is some seconds older than the run.
        pass(&fixture, &mut engine, 0, 5_000).await;
        let faults = &fixture.broker_faults;
        faults.always(Operation::Publish, BrokerFault::Unanswered);
        fixture.trigger("job").await;
        assert_eq!(tick(&mut engine).await, 0);
        pass(&fixture, &mut engine, 6_000, 31_000).await;
        if !is_counted {
            faults.next(Operation::Stats, BrokerFault::Unanswered, 1);
        }
        assert!(engine.fail_over().await.expect("fails over") > 0);
        assert_eq!(faults.calls(Operation::ReadLog), 1);
        assert!(e1.take().await.is_empty());
    }
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
    faults.next(Operation::ReadLog, BrokerFault::Held, 1);
    let calls = faults.calls(Operation::ReadLog);
    let (moved, ()) = tokio::join!(engine.fail_over(), async {
        let asked = async || faults.calls(Operation::ReadLog) > calls;
        eventually("it looks for what is left", asked).await;
        fixture.set(31_400);
        let confirmed = [AttemptId { run, attempt: 1 }];
        let written = fixture.real().confirm_dispatch(&confirmed).await;
        written.expect("is written down");
        fixture.set(31_500);
        faults.release();
    });
    assert_eq!(moved.expect("fails over"), 1);
    assert_eq!(fixture.state(old).await, RunState::Lost);
    assert_eq!(fixture.state(run).await, RunState::Queued);
    fixture.set(32_000);
    engine.receive_loopback_heartbeat();
    assert_eq!(engine.fail_over().await.expect("fails over"), 1);
    assert_eq!(fixture.state(run).await, RunState::Lost);
}

/// A scheduler is stopped while it marks the log. Meanwhile the log is lost, with a start in it, and declared again.
#[tokio::test]
async fn a_mark_that_comes_into_a_new_log_proves_nothing() {
    let (fixture, mut engine, e1) = given(0, json!({})).await;
    let mut stopped = fixture.engine("two").await;
    fixture.set(1_000);
    // News, so that the log is marked again.
    e1.drain().await;
    let run = fixture.trigger("job").await;
    let faults = &fixture.broker_faults;
    let is_declared = BrokerFault::Coverage(Coverage::All);
    faults.next(Operation::Append, is_declared, 1);
    faults.next(Operation::Append, BrokerFault::Held, 1);
    let calls = faults.calls(Operation::Append);
    let (stored, ()) = tokio::join!(stopped.receive_heartbeats(), async {
        let marks = async || faults.calls(Operation::Append) == calls + 2;
        eventually("it marks the log", marks).await;
        fixture.set(2_000);
        engine.claim().await.expect("claims");
        engine.prepare().await.expect("prepares");
        assert_eq!(engine.publish().await.expect("publishes"), 1);
        assert_eq!(e1.take_one().await.run, run);
        let log = e1.start_log();
        fixture.broker.delete_log(&log).await.expect("is lost");
        fixture.broker.declare_log(&log).await.expect("declares");
        faults.release();
    });
    stored.expect("stores heartbeats");
    pass(&fixture, &mut engine, 3_000, 34_000).await;
    assert_eq!(engine.fail_over().await.expect("fails over"), 1);
    assert_eq!(fixture.state(run).await, RunState::Lost);
}

/// The first publish had no answer, and the executor started the attempt from it. Then the start log was lost and declared
/// again. Only after that, the second publish was confirmed. Its copy is taken by the executor or still in the queue.
#[tokio::test]
async fn an_attempt_that_started_before_its_confirmation_is_lost_with_the_start_log() {
    for is_taken in [true, false] {
        let (fixture, mut engine, e1) = given(0, json!({})).await;
        let mut other = fixture.engine("two").await;
        let faults = &fixture.broker_faults;
        faults.next(Operation::Publish, BrokerFault::Unanswered, 1);
        let run = fixture.trigger("job").await;
        assert_eq!(tick(&mut engine).await, 0);
        assert_eq!(e1.take_one().await.run, run);
        let deleted = fixture.broker.delete_log(&e1.start_log()).await;
        deleted.expect("is lost");
        fixture.set(1_000);
        // News, so that the log is declared and marked again.
        e1.drain().await;
        let stored = other.receive_heartbeats().await;
        stored.expect("stores heartbeats");
        fixture.set(2_001);
        assert_eq!(tick(&mut engine).await, 1);
        if is_taken {
            assert_eq!(e1.accept().await.len(), 1, "the second copy");
        }
        pass(&fixture, &mut engine, 3_000, 34_000).await;
        assert_eq!(engine.fail_over().await.expect("fails over"), 1);
        assert_eq!(fixture.state(run).await, RunState::Lost);
    }
}

/// The same, but the broker has answered no publish yet, so the store does not list the attempt. Further copies are in the
/// queue. The attempt ends once it is confirmed.
#[tokio::test]
async fn an_unconfirmed_attempt_that_started_is_not_returned_because_of_its_second_copy() {
    let (fixture, mut engine, e1) = given(0, json!({})).await;
    let mut other = fixture.engine("two").await;
    let faults = &fixture.broker_faults;
    faults.always(Operation::Publish, BrokerFault::Unanswered);
    let run = fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 0);
    assert_eq!(e1.take_one().await.run, run);
    let deleted = fixture.broker.delete_log(&e1.start_log()).await;
    deleted.expect("is lost");
    fixture.set(1_000);
    // News, so that the log is declared and marked again.
    e1.drain().await;
    let stored = other.receive_heartbeats().await;
    stored.expect("stores heartbeats");
    pass(&fixture, &mut engine, 2_000, 34_000).await;
    assert_eq!(engine.fail_over().await.expect("fails over"), 0);
    assert_eq!(fixture.state(run).await, RunState::Dispatching);
    faults.clear();
    pass(&fixture, &mut engine, 35_000, 36_000).await;
    assert_eq!(fixture.state(run).await, RunState::Queued);
    // An executor of which the store lists nothing is looked at again after 30 s.
    pass(&fixture, &mut engine, 37_000, 65_000).await;
    assert_eq!(engine.fail_over().await.expect("fails over"), 1);
    assert_eq!(fixture.state(run).await, RunState::Lost);
}
