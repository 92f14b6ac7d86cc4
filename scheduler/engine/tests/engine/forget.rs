//! Executors that have been silent for long are forgotten with their queues, and lose nothing by it.

use cueline_engine::{EngineOptions, ManualEngine};
use cueline_model::Heartbeat;
use serde_json::json;

use crate::fixture::{FakeExecutor, Fixture, eventually, tick};

/// An executor, and an engine that forgets it after a minute. The job has `count` triggers in its queue.
async fn given(count: usize) -> (Fixture, ManualEngine, FakeExecutor) {
    let fixture = Fixture::new().await;
    let options = EngineOptions {
        forget_executors_after_ms: 60_000,
        ..EngineOptions::default()
    };
    let mut engine = fixture.engine_with(options).await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
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

async fn forget(engine: &mut ManualEngine) -> usize {
    engine.forget_executors().await.expect("forgets")
}

async fn has_queue(fixture: &Fixture, executor: &FakeExecutor) -> bool {
    let queue = executor.queue();
    let stats = fixture.broker.stats(&[executor.queue()]).await;
    stats
        .expect("counts")
        .queues
        .iter()
        .any(|s| s.queue == queue)
}

async fn known(fixture: &Fixture) -> usize {
    fixture.real().executors().await.expect("reads").len()
}

#[tokio::test]
async fn a_long_silent_executor_is_forgotten_and_may_return() {
    let (fixture, mut engine, e1) = given(0).await;
    pass(&fixture, &mut engine, 1_000, 60_000).await;
    assert_eq!(forget(&mut engine).await, 0, "not for long enough");
    pass(&fixture, &mut engine, 61_000, 61_000).await;
    assert_eq!(forget(&mut engine).await, 1);
    assert!(!has_queue(&fixture, &e1).await);
    assert_eq!(known(&fixture).await, 0);
    e1.heartbeat().await;
    engine
        .receive_heartbeats()
        .await
        .expect("stores heartbeats");
    assert!(has_queue(&fixture, &e1).await, "it is declared anew");
    assert_eq!(known(&fixture).await, 1);
    let run = fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_one().await.run, run);
}

#[tokio::test]
async fn an_executor_with_triggers_or_attempts_is_not_forgotten() {
    let (fixture, mut engine, e1) = given(1).await;
    pass(&fixture, &mut engine, 1_000, 61_000).await;
    assert_eq!(forget(&mut engine).await, 0, "a trigger is in its queue");
    let trigger = e1.take_one().await;
    assert_eq!(forget(&mut engine).await, 0, "it may run the attempt");
    e1.started(&trigger, fixture.now()).await;
    tick(&mut engine).await;
    assert_eq!(engine.fail_over().await.expect("fails over"), 1);
    assert_eq!(forget(&mut engine).await, 1);
}

/// A node that receives nothing does not know whether the executor is silent.
#[tokio::test]
async fn a_node_without_loopback_heartbeats_forgets_nothing() {
    let (fixture, mut engine, e1) = given(0).await;
    fixture.set(3_600_000);
    engine.tick().await.expect("a turn without faults");
    assert_eq!(forget(&mut engine).await, 0);
    assert!(has_queue(&fixture, &e1).await);
}

/// The executor's heartbeat is stored by another node while this one deletes the queue.
#[tokio::test]
async fn an_executor_that_returns_during_the_deletion_keeps_its_queue() {
    let (fixture, mut engine, e1) = given(0).await;
    pass(&fixture, &mut engine, 1_000, 61_000).await;
    fixture.store.hold("forget_executors");
    let returns = async {
        eventually("the queue is deleted", async || {
            fixture.store.calls("forget_executors") > 0
        })
        .await;
        let heartbeat = Heartbeat {
            executor: e1.id(),
            incarnation: "2".to_owned(),
            session: cueline_model::Session(2),
            capabilities: vec!["native:work".to_owned()],
            capacity: 8,
            labels: cueline_model::ExecutorLabels::default(),
            weight: cueline_model::Weight::default(),
            held: 0,
            running: 0,
            draining: false,
            gone: false,
            refusal: None,
        };
        let recorded = fixture.real().record_heartbeats(&[heartbeat]).await;
        recorded.expect("stores");
        fixture.store.release("forget_executors");
    };
    let (forgotten, ()) = tokio::join!(engine.forget_executors(), returns);
    assert_eq!(forgotten.expect("forgets"), 0);
    assert!(has_queue(&fixture, &e1).await);
}
