//! The broker does not say whether it has a trigger: the run stays `dispatching`, at the same executor, until that is known.

use std::collections::BTreeSet;
use std::time::Duration;

use cueline_broker::conformance::{Fault, Operation};
use cueline_broker::{ErrorKind, Settlement};
use cueline_broker_embedded::EmbeddedOptions;
use cueline_engine::ManualEngine;
use cueline_model::{OutcomeKind, RunId, RunState};
use cueline_store::Store as _;
use serde_json::json;

use crate::executor::Executor;
use crate::scene::{Scene, tick};

async fn publishing(scene: &Scene, run: RunId) -> usize {
    let job = scene.run(run).await.job_id;
    scene
        .store
        .dispatching_attempts(&[job])
        .await
        .expect("lists")
        .len()
}

/// Two executors, and a job that goes to the first of them that there is.
async fn world(options: EmbeddedOptions) -> (Scene, ManualEngine, Executor, Executor) {
    let scene = Scene::with(options).await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    let e2 = Executor::start(&scene, "e2").await;
    scene.apply("job", json!({ "route": "first" })).await;
    tick(&mut engine).await;
    (scene, engine, e1, e2)
}

/// A pause has to wait for it: it may be in its queue.
#[tokio::test]
async fn what_was_not_answered_is_published_again_until_it_is_taken() {
    let (scene, mut engine, e1, _) = world(EmbeddedOptions::default()).await;
    let run = scene.trigger("job").await;
    let other = scene.trigger("job").await;
    scene
        .broker_faults
        .next(Operation::Publish, Fault::Unanswered, 1);
    assert_eq!(tick(&mut engine).await, 0);
    scene.pause("job").await;
    for run in [run, other] {
        assert_eq!(scene.state(run).await, RunState::Dispatching);
    }
    assert_eq!(publishing(&scene, run).await, 2);
    assert_eq!(tick(&mut engine).await, 0, "not at once");
    scene.set(1_000);
    assert_eq!(tick(&mut engine).await, 2);
    assert_eq!(publishing(&scene, run).await, 0);
    assert_eq!(scene.state(run).await, RunState::Queued);
    // Each is there twice where the broker does not tell copies apart; the executor does, by run and attempt.
    let taken: BTreeSet<_> = e1.take().await.iter().map(|t| t.run).collect();
    assert_eq!(taken, BTreeSet::from([run, other]));
}

/// Its executor has it, and says so: there is nothing left to publish.
#[tokio::test]
async fn what_has_arrived_all_the_same_is_not_published_again() {
    let (scene, mut engine, e1, _) = world(EmbeddedOptions::default()).await;
    let run = scene.trigger("job").await;
    scene
        .broker_faults
        .next(Operation::Publish, Fault::Unanswered, 1);
    tick(&mut engine).await;
    let trigger = e1.take_one().await;
    e1.ended(&trigger, OutcomeKind::Succeeded, scene.now())
        .await;
    tick(&mut engine).await;
    assert_eq!(scene.state(run).await, RunState::Succeeded);
    let calls = scene.broker_faults.calls(Operation::Publish);
    scene.set(1_000);
    assert_eq!(tick(&mut engine).await, 0);
    assert_eq!(scene.broker_faults.calls(Operation::Publish), calls);
}

/// The first try may have been taken. Given back, its run could go to another executor while this one has it.
#[tokio::test]
async fn what_may_have_been_published_is_not_given_back_when_its_queue_is_full() {
    let (scene, mut engine, e1, e2) = world(EmbeddedOptions {
        queue_limit: 1,
        ..EmbeddedOptions::default()
    })
    .await;
    let run = scene.trigger("job").await;
    let lost = Fault::Before(ErrorKind::Transient);
    scene.broker_faults.next(Operation::Publish, lost, 1);
    engine.tick().await.expect_err("there is no answer");
    scene.put(&e1.queue(), &b"something else"[..]).await;
    assert_eq!(tick(&mut engine).await, 0);
    assert_eq!(scene.state(run).await, RunState::Dispatching);
    // Nobody else is to get it, not even when its executor leaves.
    e1.leave().await;
    e2.heartbeat().await;
    scene.set(1_000);
    assert_eq!(tick(&mut engine).await, 0);
    assert!(e2.take().await.is_empty());
    let odd = scene.broker.fetch(&e1.queue(), 9, Duration::ZERO).await;
    let odd: Vec<_> = odd
        .expect("fetches")
        .iter()
        .map(|d| (d.receipt, Settlement::Ack))
        .collect();
    let settled = scene.broker.settle(&e1.queue(), &odd).await;
    settled.expect("settles");
    scene.set(2_000);
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_one().await.run, run);
    assert!(e2.take().await.is_empty());
}

/// What surely was not published is free to go elsewhere.
#[tokio::test]
async fn what_was_refused_is_given_back_and_goes_to_another() {
    let (scene, mut engine, e1, e2) = world(EmbeddedOptions {
        queue_limit: 1,
        ..EmbeddedOptions::default()
    })
    .await;
    scene.put(&e1.queue(), &b"something else"[..]).await;
    let run = scene.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 0);
    assert_eq!(scene.state(run).await, RunState::Scheduled);
    e1.leave().await;
    e2.heartbeat().await;
    scene.set(1_000);
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e2.take_one().await.run, run);
}
