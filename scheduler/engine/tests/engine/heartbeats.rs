//! Signs of life: everybody is heard, whatever it takes to make somebody's queue.

use std::time::Duration;

use cueline_broker::ErrorKind;
use cueline_broker::conformance::{Fault, Operation};
use cueline_runtime::{Ended, Lifecycle};
use cueline_store::Store as _;
use serde_json::json;

use crate::executor::Executor;
use crate::scene::{PATIENCE, Scene, tick, until};

async fn is_known(scene: &Scene, executor: &Executor) -> bool {
    let known = scene.store.executors().await.expect("reads");
    known
        .iter()
        .any(|e| e.heartbeat.executor.name.as_str() == executor.name)
}

/// Neither those who speak after it, nor what is due, nor the stop.
#[tokio::test]
async fn a_queue_that_takes_long_to_be_made_holds_up_nobody() {
    let scene = Scene::new().await;
    scene.apply("job", json!({})).await;
    let lifecycle = Lifecycle::new();
    let engine = scene.start(&lifecycle).await;
    let e1 = Executor::silent(&scene, "e1").await;
    let e2 = Executor::silent(&scene, "e2").await;
    let stuck = Fault::Late(Duration::from_hours(1));
    scene.broker_faults.always(Operation::Declare, stuck);
    for executor in [&e1, &e2] {
        executor.heartbeat().await;
        until("it is heard", async || is_known(&scene, executor).await).await;
    }
    e1.leave().await;
    let run = scene.trigger("job").await;
    engine.nudges().due.wake();
    let mut sent = Vec::new();
    until("it goes out", async || {
        sent.extend(e2.take().await);
        !sent.is_empty()
    })
    .await;
    assert_eq!(sent[0].run, run);
    assert_eq!(lifecycle.shut_down(PATIENCE).await, Ended::Asked);
}

/// Of several that came together the last counts.
#[tokio::test]
async fn the_last_sign_of_life_counts() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    scene.apply("job", json!({})).await;
    e1.leave().await;
    e1.drain().await;
    e1.heartbeat().await;
    scene.trigger("job").await;
    let declared = scene.broker_faults.calls(Operation::Declare);
    assert_eq!(tick(&mut engine).await, 1);
    let declared = scene.broker_faults.calls(Operation::Declare) - declared;
    assert_eq!(declared, 1, "its queue, once");
    e1.heartbeat().await;
    e1.leave().await;
    scene.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 0);
}

/// It could not be declared when it was heard: the trigger makes its queue, and does not wait for the next second.
#[tokio::test]
async fn the_first_trigger_does_not_wait_for_its_queue() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    scene.apply("job", json!({})).await;
    let run = scene.trigger("job").await;
    scene
        .broker
        .delete(&e1.queue(), false)
        .await
        .expect("deletes");
    let away = Fault::Before(ErrorKind::Transient);
    scene.broker_faults.next(Operation::Declare, away, 1);
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_one().await.run, run);
}

/// One that waits for its queue gets it with its next sign of life.
#[tokio::test]
async fn who_waits_for_its_queue_gets_it() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::silent(&scene, "e1").await;
    scene
        .broker
        .delete(&e1.queue(), false)
        .await
        .expect("deletes");
    let away = Fault::Before(ErrorKind::Transient);
    scene.broker_faults.next(Operation::Declare, away, 1);
    let is_there = async || {
        let stats = scene.broker.stats(&[e1.queue()]).await.expect("counts");
        stats.iter().any(|s| s.queue == e1.queue())
    };
    for expected in [false, true] {
        e1.drain().await;
        engine.hear().await.expect("hears");
        assert_eq!(is_there().await, expected);
    }
}
