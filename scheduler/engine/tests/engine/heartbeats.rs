//! Heartbeats, and the declaration of queues that follows from them.

use std::time::Duration;

use cueline_broker::ErrorKind;
use cueline_broker::conformance::{Fault, Operation};
use cueline_runtime::{Ended, Lifecycle};
use cueline_store::Store as _;
use cueline_test_support::SOON;
use serde_json::json;

use crate::fixture::{FakeExecutor, Fixture, eventually, tick};

async fn is_known(fixture: &Fixture, executor: &FakeExecutor) -> bool {
    let known = fixture.store.executors().await.expect("reads");
    known
        .iter()
        .any(|e| e.heartbeat.executor.name.as_str() == executor.name)
}

#[tokio::test]
async fn a_slow_queue_declaration_delays_neither_heartbeats_nor_triggers_nor_the_stop() {
    let fixture = Fixture::new().await;
    fixture.apply("job", json!({})).await;
    let lifecycle = Lifecycle::new();
    let engine = fixture.start(&lifecycle).await;
    let e1 = fixture.silent_executor("e1").await;
    let e2 = fixture.silent_executor("e2").await;
    let stuck = Fault::Late(Duration::from_hours(1));
    fixture.broker_faults.always(Operation::Declare, stuck);
    for executor in [&e1, &e2] {
        executor.heartbeat().await;
        eventually("the heartbeat is recorded", async || {
            is_known(&fixture, executor).await
        })
        .await;
    }
    e1.leave().await;
    let run = fixture.trigger("job").await;
    engine.admin().wake_claim();
    let mut sent = Vec::new();
    eventually("it goes out", async || {
        sent.extend(e2.take().await);
        !sent.is_empty()
    })
    .await;
    assert_eq!(sent[0].run, run);
    assert_eq!(lifecycle.shut_down(SOON).await, Ended::Asked);
}

#[tokio::test]
async fn the_last_heartbeat_of_a_batch_counts() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    e1.leave().await;
    e1.drain().await;
    e1.heartbeat().await;
    fixture.trigger("job").await;
    let declared = fixture.broker_faults.calls(Operation::Declare);
    assert_eq!(tick(&mut engine).await, 1);
    let declared = fixture.broker_faults.calls(Operation::Declare) - declared;
    assert_eq!(declared, 1, "its queue, once");
    e1.heartbeat().await;
    e1.leave().await;
    fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 0);
}

/// The queue could not be declared after the heartbeat.
#[tokio::test]
async fn the_first_trigger_declares_a_missing_queue() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    let run = fixture.trigger("job").await;
    fixture
        .broker
        .delete(&e1.queue(), false)
        .await
        .expect("deletes");
    let away = Fault::Before(ErrorKind::Transient);
    fixture.broker_faults.next(Operation::Declare, away, 1);
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_one().await.run, run);
}

#[tokio::test]
async fn an_executor_that_waits_for_its_queue_gets_it_with_its_next_heartbeat() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.silent_executor("e1").await;
    fixture
        .broker
        .delete(&e1.queue(), false)
        .await
        .expect("deletes");
    let away = Fault::Before(ErrorKind::Transient);
    fixture.broker_faults.next(Operation::Declare, away, 1);
    let is_there = async || {
        let stats = fixture.broker.stats(&[e1.queue()]).await.expect("counts");
        stats.iter().any(|s| s.queue == e1.queue())
    };
    for expected in [false, true] {
        e1.drain().await;
        engine
            .receive_heartbeats()
            .await
            .expect("stores heartbeats");
        assert_eq!(is_there().await, expected);
    }
}
