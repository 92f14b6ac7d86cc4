//! The end of a node: its lease goes first, and what is left to be taken in does not keep it.

use std::time::Duration;

use cueline_broker::conformance::{Fault, Operation};
use cueline_engine::{Engine, ManualEngine};
use cueline_protocol::Trigger;
use cueline_runtime::{Ended, Lifecycle};
use serde_json::json;
use tokio::time::timeout;

use crate::executor::Executor;
use crate::scene::{PATIENCE, Scene, until};

/// A node that has been stopped and holds a run that is due in a second, another that is alive, and a trigger to report about.
async fn stopped(scene: &Scene) -> (Engine, ManualEngine, Executor, Trigger) {
    let e1 = Executor::silent(scene, "e1").await;
    let lifecycle = Lifecycle::new();
    let engine = scene.start(&lifecycle).await;
    e1.heartbeat().await;
    scene.apply("now", json!({})).await;
    scene.trigger("now").await;
    let rest = json!({ "schedule": { "at": Scene::at(1_000).to_string() } });
    scene.apply("soon", rest).await;
    engine.nudges().due.wake();
    let mut sent = Vec::new();
    until("both are seen to", async || {
        sent.extend(e1.take().await);
        !sent.is_empty() && scene.runs("soon").await.len() == 1
    })
    .await;
    assert_eq!(lifecycle.shut_down(PATIENCE).await, Ended::Asked);
    let other = scene.engine("other").await;
    (engine, other, e1, sent.remove(0))
}

/// The broker does not answer: what the node had claimed is the other's all the same, before the end.
#[tokio::test]
async fn the_lease_is_given_up_before_anything_is_waited_for() {
    let scene = Scene::new().await;
    let (engine, mut other, e1, _) = stopped(&scene).await;
    let stuck = Fault::Late(Duration::from_hours(1));
    scene.broker_faults.always(Operation::Fetch, stuck);
    scene.set(1_000);
    let finished = timeout(PATIENCE, engine.finish());
    let taken_over = until("it is taken over", async || {
        other.claim().await.expect("claims");
        other.prepare().await.expect("prepares");
        other.publish().await.expect("publishes") == 1
    });
    let (finished, ()) = tokio::join!(finished, taken_over);
    finished.expect("in time").expect("without an error");
    scene.broker_faults.clear();
    assert_eq!(e1.take_names().await, ["soon"]);
}

/// Others work on, and report faster than this node takes in.
#[tokio::test]
async fn a_load_that_never_ends_holds_up_no_stop() {
    let scene = Scene::new().await;
    let (engine, _other, e1, trigger) = stopped(&scene).await;
    let slow = Fault::Late(Duration::from_millis(100));
    scene.broker_faults.always(Operation::Fetch, slow);
    let load = async {
        loop {
            e1.started(&trigger, scene.now()).await;
        }
    };
    tokio::select! {
        finished = timeout(PATIENCE, engine.finish()) => {
            finished.expect("in time").expect("without an error");
        }
        () = load => {}
    }
}
