//! Attempts that were lost on the way to their executor are published again.

use cueline_engine::ManualEngine;
use cueline_model::{OutcomeKind, RunState};
use cueline_protocol::Trigger;
use serde_json::json;

use crate::fixture::{FakeExecutor, Fixture, tick};

/// Three triggers that the executor has taken from its queue.
async fn taken() -> (Fixture, ManualEngine, FakeExecutor, Vec<Trigger>) {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({ "params": "old" })).await;
    for _ in 0..3 {
        fixture.trigger("job").await;
    }
    assert_eq!(tick(&mut engine).await, 3);
    let triggers = e1.take().await;
    fixture.set(10_000);
    e1.heartbeat().await;
    tick(&mut engine).await;
    (fixture, engine, e1, triggers)
}

/// If the executor were asked, it would answer that it holds nothing.
async fn assert_not_asked(
    engine: &mut ManualEngine,
    executor: &mut FakeExecutor,
    older_than_ms: u64,
) {
    tokio::select! {
        again = engine.reconcile(older_than_ms) => assert_eq!(again.expect("compares"), 0),
        asked = executor.answer_holdings(&[]) => panic!("it was asked about {asked:?}"),
    }
}

#[tokio::test]
async fn a_missing_attempt_is_published_again_to_the_same_executor() {
    let (fixture, mut engine, mut e1, triggers) = taken().await;
    e1.started(&triggers[1], fixture.now()).await;
    tick(&mut engine).await;
    // Another executor would be the first candidate now.
    let e0 = fixture.executor("e0").await;
    engine
        .receive_heartbeats()
        .await
        .expect("stores heartbeats");
    let held = [triggers[0].attempt_id()];
    let (again, asked) = tokio::join!(engine.reconcile(5_000), e1.answer_holdings(&held));
    assert_eq!(again.expect("compares"), 2);
    assert_eq!(
        asked,
        triggers.iter().map(Trigger::attempt_id).collect::<Vec<_>>()
    );
    assert_eq!(tick(&mut engine).await, 2);
    let sent = e1.take().await;
    assert_eq!(
        sent.iter().map(Trigger::attempt_id).collect::<Vec<_>>(),
        triggers[1..]
            .iter()
            .map(Trigger::attempt_id)
            .collect::<Vec<_>>()
    );
    assert!(e0.take().await.is_empty());
    let timeline = fixture.timeline(triggers[2].run).await;
    assert_eq!(timeline.last().unwrap(), "republished");
    e1.ended(&sent[0], OutcomeKind::Succeeded, fixture.now())
        .await;
    tick(&mut engine).await;
    assert_eq!(fixture.state(sent[0].run).await, RunState::Succeeded);
}

#[tokio::test]
async fn a_held_attempt_is_not_published_again() {
    let (_scene, mut engine, mut e1, triggers) = taken().await;
    let held: Vec<_> = triggers.iter().map(Trigger::attempt_id).collect();
    let (again, _) = tokio::join!(engine.reconcile(5_000), e1.answer_holdings(&held));
    assert_eq!(again.expect("compares"), 0);
    assert_eq!(tick(&mut engine).await, 0);
}

/// A recent trigger may still be on its way.
#[tokio::test]
async fn a_recently_queued_attempt_is_not_compared() {
    let (_scene, mut engine, mut e1, _) = taken().await;
    assert_not_asked(&mut engine, &mut e1, 10_000).await;
}

#[tokio::test]
async fn an_executor_with_triggers_in_its_queue_is_not_asked() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let mut e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    fixture.trigger("job").await;
    tick(&mut engine).await;
    fixture.set(10_000);
    e1.heartbeat().await;
    tick(&mut engine).await;
    assert_not_asked(&mut engine, &mut e1, 5_000).await;
    assert_eq!(e1.take().await.len(), 1);
}

#[tokio::test]
async fn a_silent_executor_is_not_asked() {
    let (fixture, mut engine, mut e1, _) = taken().await;
    for ms in [20_000, 30_000] {
        fixture.set(ms);
        tick(&mut engine).await;
    }
    assert_not_asked(&mut engine, &mut e1, 5_000).await;
}

/// The queue was lost with its broker before the executor had read it.
#[tokio::test]
async fn a_lost_queue_is_declared_and_filled_again() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let mut e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    let run = fixture.trigger("job").await;
    tick(&mut engine).await;
    let lost = fixture.broker.delete(&e1.queue(), false).await;
    assert!(lost.expect("deletes"));
    fixture.set(10_000);
    e1.heartbeat().await;
    tick(&mut engine).await;
    let (again, _) = tokio::join!(engine.reconcile(5_000), e1.answer_holdings(&[]));
    assert_eq!(again.expect("compares"), 1);
    assert_eq!(tick(&mut engine).await, 1, "into a queue that is made anew");
    assert_eq!(e1.take_one().await.run, run);
}
