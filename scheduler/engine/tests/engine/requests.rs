//! Requests to trigger a job that come over the broker.

use std::time::Duration;

use cueline_broker::{DeadLetter, QueueId};
use cueline_runtime::{Ended, Lifecycle};
use serde_json::json;

use crate::executor::Executor;
use crate::failing_store::Fault;
use crate::scene::{PATIENCE, Scene, tick, until};

/// By anybody who may publish: a key counts once, and what makes no sense is not lost.
#[tokio::test]
async fn a_message_triggers_a_job() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    scene.apply("job", json!({})).await;
    for text in [
        r#"{"v":1,"job":"job","params":"p","by":"ann"}"#,
        r#"{"v":1,"job":"job","key":"k"}"#,
        r#"{"v":1,"job":"job","key":"k"}"#,
        r#"{"v":1,"job":"nothing"}"#,
        r#"{"v":7,"job":"job"}"#,
        "job",
    ] {
        scene.put(&QueueId::Requests, text).await;
    }
    assert_eq!(engine.take_requests().await.expect("carries out"), 6);
    assert_eq!(tick(&mut engine).await, 2);
    let params: Vec<_> = e1.take().await.into_iter().map(|t| t.params).collect();
    assert_eq!(params, [Some("p".to_owned()), None]);
    let dead = scene
        .broker
        .fetch(&QueueId::Dead, 9, Duration::ZERO)
        .await
        .expect("fetches");
    let reasons: Vec<String> = dead
        .iter()
        .map(|d| {
            DeadLetter::decode(&d.payload)
                .expect("a dead letter")
                .reason
        })
        .collect();
    assert_eq!(reasons.len(), 3, "{reasons:?}");
    assert!(
        reasons[0].contains("there is no job \"nothing\""),
        "{reasons:?}"
    );
    assert!(reasons[1].contains("version is 7"), "{reasons:?}");
}

/// The store fails: the request stays, and counts once.
#[tokio::test]
async fn a_request_outlives_a_failure_of_the_store() {
    let scene = Scene::new().await;
    let mut engine = scene.engine("one").await;
    let e1 = Executor::start(&scene, "e1").await;
    scene.apply("job", json!({})).await;
    scene
        .put(&QueueId::Requests, r#"{"v":1,"job":"job","key":"k"}"#)
        .await;
    scene.store.fail_next("trigger_claimed", Fault::After);
    assert_eq!(engine.take_requests().await.expect("tries"), 1);
    until("it comes again", async || {
        engine.take_requests().await.expect("carries out") == 1
    })
    .await;
    assert_eq!(scene.runs("job").await.len(), 1);
    // It was claimed by the node that did not hear the answer.
    tick(&mut engine).await;
    assert_eq!(e1.take().await.len(), 1);
}

/// A slow store: what has not been begun in time is given back before the broker hands it out again by itself, and what was done is settled.
#[tokio::test]
async fn what_there_is_no_time_for_is_given_back() {
    let scene = with_requests(30).await;
    let mut engine = scene.engine("one").await;
    for _ in 0..2 {
        scene
            .store
            .fail_next("trigger_claimed", Fault::Takes(6_000));
    }
    assert_eq!(engine.take_requests().await.expect("carries out"), 30);
    assert_eq!(scene.runs("job").await.len(), 2);
    assert_eq!(engine.take_requests().await.expect("carries out"), 28);
    assert_eq!(scene.runs("job").await.len(), 30);
    assert_eq!(engine.take_requests().await.expect("looks"), 0);
}

/// A stop in the middle of a batch: what was carried out is settled, and does not come again.
#[tokio::test]
async fn a_stop_carries_nothing_out_twice() {
    const COUNT: usize = 150;
    let scene = with_requests(COUNT).await;
    let lifecycle = Lifecycle::new();
    let engine = scene.start(&lifecycle).await;
    until("it has begun", async || !scene.runs("job").await.is_empty()).await;
    assert_eq!(lifecycle.shut_down(PATIENCE).await, Ended::Asked);
    engine.finish().await.expect("gives up its lease");
    let mut next = scene.engine("one").await;
    until("the rest is carried out", async || {
        next.take_requests().await.expect("carries out");
        scene.runs("job").await.len() >= COUNT
    })
    .await;
    let queues = next.desk().queues().await.expect("counts");
    let requests = queues.iter().find(|q| q.queue == QueueId::Requests);
    assert_eq!(requests.map_or(0, |q| q.ready + q.unsettled), 0);
    assert_eq!(scene.runs("job").await.len(), COUNT);
}

#[tokio::test]
async fn a_key_that_is_too_long_is_refused_with_what_would_be_right() {
    let scene = with_requests(0).await;
    let mut engine = scene.engine("one").await;
    for bytes in [256, 257] {
        let request = json!({ "v": 1, "job": "job", "key": "k".repeat(bytes) });
        scene.put(&QueueId::Requests, request.to_string()).await;
    }
    assert_eq!(engine.take_requests().await.expect("carries out"), 2);
    assert_eq!(scene.runs("job").await.len(), 1);
    let dead = scene.broker.fetch(&QueueId::Dead, 9, Duration::ZERO).await;
    let dead = dead.expect("fetches");
    assert_eq!(dead.len(), 1);
    let letter = DeadLetter::decode(&dead[0].payload).expect("a dead letter");
    assert_eq!(
        letter.reason,
        "failed to trigger job: `key` takes a text of at most 256 bytes; this one has 257"
    );
}

/// So many requests, without keys: carried out twice they would count twice. What is not settled comes again soon.
async fn with_requests(count: usize) -> Scene {
    let scene = Scene::with_short_ack_wait().await;
    scene.apply("job", json!({})).await;
    for _ in 0..count {
        scene
            .put(&QueueId::Requests, r#"{"v":1,"job":"job"}"#)
            .await;
    }
    scene
}
