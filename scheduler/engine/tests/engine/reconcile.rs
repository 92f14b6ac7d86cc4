//! What got lost on the way to an executor is found and published again.

use cueline_engine::ManualEngine;
use cueline_model::{OutcomeKind, RunState};
use cueline_protocol::Trigger;
use serde_json::json;

use crate::executor::{Executor, id_of};
use crate::scene::{Scene, tick};

/// Three triggers that the executor took from its queue.
async fn taken() -> (Scene, ManualEngine, Executor, Vec<Trigger>) {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    scene.apply("job", json!({ "params": "old" })).await;
    for _ in 0..3 {
        scene.trigger("job").await;
    }
    assert_eq!(tick(&mut engine).await, 3);
    let triggers = e1.take().await;
    scene.set(10_000);
    e1.heartbeat().await;
    tick(&mut engine).await;
    (scene, engine, e1, triggers)
}

/// It would say that it holds nothing.
async fn assert_not_asked(engine: &mut ManualEngine, executor: &mut Executor, older_than_ms: u64) {
    tokio::select! {
        again = engine.reconcile(older_than_ms) => assert_eq!(again.expect("compares"), 0),
        asked = executor.answer(&[]) => panic!("it was asked about {asked:?}"),
    }
}

#[tokio::test]
async fn what_the_executor_does_not_hold_is_published_again_as_it_is() {
    let (scene, mut engine, mut e1, triggers) = taken().await;
    e1.started(&triggers[1], scene.now()).await;
    tick(&mut engine).await;
    // Somebody else would be first now.
    let e0 = Executor::start(&scene, "e0").await;
    engine.hear().await.expect("hears");
    let held = [id_of(&triggers[0])];
    let (again, asked) = tokio::join!(engine.reconcile(5_000), e1.answer(&held));
    assert_eq!(again.expect("compares"), 2);
    assert_eq!(asked, triggers.iter().map(id_of).collect::<Vec<_>>());
    assert_eq!(tick(&mut engine).await, 2);
    let sent = e1.take().await;
    assert_eq!(
        sent.iter().map(id_of).collect::<Vec<_>>(),
        triggers[1..].iter().map(id_of).collect::<Vec<_>>()
    );
    assert!(e0.take().await.is_empty());
    let timeline = scene.timeline(triggers[2].run).await;
    assert_eq!(timeline.last().unwrap(), "republished");
    e1.ended(&sent[0], OutcomeKind::Succeeded, scene.now())
        .await;
    tick(&mut engine).await;
    assert_eq!(scene.state(sent[0].run).await, RunState::Succeeded);
}

#[tokio::test]
async fn what_it_holds_is_left_alone() {
    let (_scene, mut engine, mut e1, triggers) = taken().await;
    let held: Vec<_> = triggers.iter().map(id_of).collect();
    let (again, _) = tokio::join!(engine.reconcile(5_000), e1.answer(&held));
    assert_eq!(again.expect("compares"), 0);
    assert_eq!(tick(&mut engine).await, 0);
}

/// What was just published has not had the time to arrive.
#[tokio::test]
async fn what_is_young_is_left_alone() {
    let (_scene, mut engine, mut e1, _) = taken().await;
    assert_not_asked(&mut engine, &mut e1, 10_000).await;
}

#[tokio::test]
async fn what_is_still_in_its_queue_is_left_alone() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let mut e1 = Executor::start(&scene, "e1").await;
    scene.apply("job", json!({})).await;
    scene.trigger("job").await;
    tick(&mut engine).await;
    scene.set(10_000);
    e1.heartbeat().await;
    tick(&mut engine).await;
    assert_not_asked(&mut engine, &mut e1, 5_000).await;
    assert_eq!(e1.take().await.len(), 1);
}

/// Nothing can be said about an executor that is not there.
#[tokio::test]
async fn a_silent_executor_is_not_asked() {
    let (scene, mut engine, mut e1, _) = taken().await;
    for ms in [20_000, 30_000] {
        scene.set(ms);
        tick(&mut engine).await;
    }
    assert_not_asked(&mut engine, &mut e1, 5_000).await;
}

/// The whole queue was lost with its broker, before the executor had seen any of it.
#[tokio::test]
async fn a_lost_queue_heals() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let mut e1 = Executor::start(&scene, "e1").await;
    scene.apply("job", json!({})).await;
    let run = scene.trigger("job").await;
    tick(&mut engine).await;
    let lost = scene.broker.delete(&e1.queue(), false).await;
    assert!(lost.expect("deletes"));
    scene.set(10_000);
    e1.heartbeat().await;
    tick(&mut engine).await;
    let (again, _) = tokio::join!(engine.reconcile(5_000), e1.answer(&[]));
    assert_eq!(again.expect("compares"), 1);
    assert_eq!(tick(&mut engine).await, 1, "into a queue that is made anew");
    assert_eq!(e1.take_one().await.run, run);
}
